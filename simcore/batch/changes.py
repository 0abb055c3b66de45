"""Changes of a scenario that may lower its peak: keys with values, as `--set` takes them, and what each costs a user.

The global batch is kept where possible. A change that is refused is found by trying it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from simcore.frameworks.registry import asked_adapter
from simcore.inputs.scenario import Scenario
from simcore.recording.layer import PREFERENCE

__all__ = ["FACTORS", "Change", "Loss", "changes"]

Loss = Literal["time", "gpus", "numerics", "job"]
"""Price of a change to a user: time of a step, more GPUs, other numerics, or a job that differs from the asked one."""
FACTORS: Final = (2, 4, 8)
_BATCH: Final = "training.global_batch_size"

_HELD: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("step", {"training.optimizer.implementation": "fused"}),
    *(("loss", {"training.loss": name}) for name in ("te", "cut", "chunked", "liger")),
)
"""`te_inplace` is missing, because it is the `te` of older releases, not a choice."""
_MODULES: Final = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
_HOSTED: Final[tuple[Mapping[str, Any], ...]] = (
    {"training.recompute": "full", "training.offload.activations": "host"},
    {"training.offload.optimizer": "host"},
    {f"training.offload.{part}": "host" for part in ("params", "gradients", "optimizer")},
)
_WAITING: Final[tuple[Mapping[str, Any], ...]] = ({"rl.optimizer_offload": True}, {"rl.reference": "host"})
_SHARES: Final = (0.6, 0.3, 0.4, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Shares of a device that engines may take, that of NeMo RL and TRL first."""
_FORMATS: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("gradients are summed in bf16", {"training.precision.grad_reduce": "bf16"}),
    ("gradients are accumulated in bf16", {"training.precision.main_grads": "bf16"}),
    ("Adam's moments are rounded to bf16", {"training.optimizer.moments": "bf16"}),
    ("parameters are rounded to bf16, so that small updates are lost", {"training.precision.params": "bf16"}),
    ("Adam's moments are kept in 8 bits", {"training.optimizer.implementation": "bitsandbytes",
                                           "training.optimizer.moments": "int8"}),
)


@dataclass(frozen=True, slots=True)
class Change:
    """Keys that are set together, with what they cost.

    `kind`: of several that fit only the best of a kind is reported. `size`: effort, of which smaller is tried first;
    `factor`: of a degree of parallelism. `warning`: how the job's numbers come out differently; "" if they do not.
    """

    kind: str
    size: int
    keys: Mapping[str, Any]
    factor: int = 1
    loss: Loss = "time"
    warning: str = ""


def changes(scenario: Scenario) -> Iterator[Change]:
    """Changes to try on as many GPUs, in no order of use; the framework may refuse any of them."""
    options = asked_adapter(scenario).memory_options
    yield from (Change(option.kind, 1, option.keys) for option in options if option.kind != "formats")
    yield from (Change(kind, 1, keys) for kind, keys in _HELD
                if kind != "loss" or scenario.training.loss not in PREFERENCE)
    yield from _recompute(scenario)
    yield from _micro_batch(scenario)
    yield from _layouts(scenario)
    yield from (Change("offload", 4, keys) for keys in _HOSTED)
    yield from (Change("formats", 5, keys, loss="numerics", warning=warning) for warning, keys in _FORMATS)
    yield from (Change("formats", 5, option.keys, loss="numerics", warning="optimizer states in other formats")
                for option in options if option.kind == "formats")
    yield from _engine(scenario)
    if scenario.training.seq_len % 2 == 0:
        yield Change("length", 6, {"training.seq_len": scenario.training.seq_len // 2}, loss="job",
                     warning="sequences of half the length")


def _engine(scenario: Scenario) -> Iterator[Change]:
    """Changes of an engine that generates for the policy, and of what waits on the device meanwhile."""
    if scenario.generation is None or scenario.rl is None:
        return
    for share in _SHARES:
        yield Change("engine's memory", 2, {"generation.gpu_memory_utilization": share},
                     1 + round(10 * abs(share - (scenario.generation.gpu_memory_utilization or _SHARES[0]))))
    for factor in FACTORS:
        yield Change("engine's tp", 3, {"generation.tp": scenario.generation.tp * factor}, factor)
    yield from (Change("offload", 4, keys) for keys in _WAITING)
    yield Change("engine's cache", 5, {"generation.kv_dtype": "fp8"}, loss="numerics",
                 warning="keys and values of the engine are rounded to fp8")


def _recompute(scenario: Scenario) -> Iterator[Change]:
    """Recomputation of one more module, then of everything."""
    now = scenario.training.recompute
    if isinstance(now, tuple) or now == "none":
        modules = list(now) if isinstance(now, tuple) else []
        for name in _MODULES:
            if name not in modules:
                yield Change("recompute", 2, {"training.recompute": [*modules, name]})
    if now != "full":
        yield Change("recompute", 3, {"training.recompute": "full"})


def _micro_batch(scenario: Scenario) -> Iterator[Change]:
    size = scenario.training.micro_batch_size
    if size % 2 == 0:
        yield Change("micro batch", 3, _with_batch(scenario, {"training.micro_batch_size": size // 2}))


def _with_batch(scenario: Scenario, keys: dict[str, Any]) -> dict[str, Any]:
    """Keys with the global batch fixed, if it was left out: it would follow the change."""
    if scenario.training.global_batch_size is not None:
        return keys
    return {**keys, _BATCH: _global_batch(scenario)}


def _global_batch(scenario: Scenario) -> int:
    mesh, training = scenario.mesh, scenario.training
    return training.micro_batch_size * mesh.dp_shard * mesh.dp_replicate * scenario.num_microbatches


def _layouts(scenario: Scenario) -> Iterator[Change]:
    """Other layouts of the same number of GPUs. Expert width is kept, because an etp left out would follow tp."""
    mesh = scenario.mesh
    if mesh.dp_replicate > 1:
        yield Change("shard", 4, {"mesh.dp_replicate": 1, "mesh.dp_shard": mesh.dp_shard * mesh.dp_replicate})
    for factor in FACTORS:
        yield Change("ep", 4, {"mesh.ep": mesh.ep * factor}, factor)
        if mesh.dp_shard % factor:
            continue
        for axis, now in (("cp", mesh.cp), ("tp", mesh.tp), ("pp", mesh.pp)):
            keys: dict[str, Any] = {f"mesh.{axis}": now * factor, "mesh.dp_shard": mesh.dp_shard // factor}
            if axis == "tp" and mesh.etp is None and mesh.ep > 1 and mesh.tp == 1:
                keys["mesh.etp"] = 1
            yield Change(axis, 4, _with_batch(scenario, keys), factor)
