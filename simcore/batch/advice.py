"""Advice for a scenario that does not fit: the smallest changes that would make it fit, each of them simulated.

Every change is tried under every framework, and the framework's own options (`FrameworkAdapter.memory_options`); what
the framework refuses is skipped. Changes are keys, as `--set` takes them. The global batch is kept where possible.

    size  changes                                                  cost
    1     reshard, gradient sync, loss head, optimizer step        time
    2     recompute: some modules, then every layer                time
    3     half the micro batch, twice the microbatches             time
    4     other degrees of parallelism on as many GPUs             time, and maybe another recipe
          optimizer, or all persistent tensors, on the host        most time
    5     formats of gradients, states and parameters              numbers come out differently
    6     half the sequence                                        another job
    7     twice the GPUs; four times counts as two changes         money
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from simcore.errors import InputError
from simcore.frameworks.registry import asked_adapter
from simcore.frameworks.setup import prepare
from simcore.inputs.bounds import ADVISED_LOADS, ADVISED_RANKS, ADVISED_ROWS
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.inputs.training import Draws
from simcore.models.blocks import Moe
from simcore.results.detail import MAX_DETAILED
from simcore.results.report import Advice, Report
from simcore.results.verdict import Verdict
from simcore.simulate import rows_of, simulate

__all__ = ["advise", "work"]

_FEW: Final = 8
"""Largest run whose scenarios get advice by default: advice takes dozens of simulations for each."""

_MOST: Final = 5
_NEAREST: Final = 3
"""Number of changes that are shown if none fits: those with the lowest peak."""
_FACTORS: Final = (2, 4, 8)
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
_FORMATS: Final[tuple[Mapping[str, Any], ...]] = (
    {"training.precision.grad_reduce": "bf16"},
    {"training.precision.main_grads": "bf16"},
    {"training.optimizer.moments": "bf16"},
    {"training.precision.params": "bf16"},
)


_ENGINES: Final[tuple[Mapping[str, Any], ...]] = (
    {"generation.max_num_seqs": 256},
    {"generation.gpu_memory_utilization": 0.95},
    {"generation.kv_dtype": "fp8"},
)


@dataclass(frozen=True, slots=True)
class _Change:
    """Keys that are set together. Only the best of each kind is reported; smaller sizes first, then smaller factors."""

    kind: str
    size: int
    keys: Mapping[str, Any]
    factor: int = 1


@dataclass(frozen=True, slots=True)
class _Tried:
    """A simulated change: its verdict, device bytes on the fullest rank, and headroom in bytes."""

    change: _Change
    verdict: Verdict
    peak: int
    headroom: int

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"


def work(num_scenarios: int, *, asked: bool | None, drawn: bool = False, shown: bool = False) -> Callable[..., Report]:
    """Function that simulates one `Scenario` and returns its report, with advice unless it fits.

    With its keyword `rank` (one rank alone) there is no advice. `asked`: True: with advice; False: without; None: with
    advice in a run of at most 8 scenarios. `drawn`: reports go into an HTML page, so those of a run of at most
    `MAX_DETAILED` scenarios carry the details for its figures. `shown`: reports go to a terminal, so that of a single
    scenario carries its memory over the step.
    """
    chosen = _advised if asked or (asked is None and num_scenarios <= _FEW) else simulate
    detail, series = drawn and num_scenarios <= MAX_DETAILED, shown and num_scenarios == 1
    return partial(chosen, detail=detail, series=series) if detail or series else chosen


def _advised(scenario: Scenario, *, detail: bool = False, series: bool = False, rank: int | None = None) -> Report:
    """Result of `simulate`, with advice unless it fits. With `rank` there is no advice: others may be fuller."""
    report = simulate(scenario, detail=detail, series=series, rank=rank)
    if report.verdict in ("fits", None) or rank is not None:
        return report
    return report.model_copy(update={"advice": advise(scenario)})


def advise(scenario: Scenario) -> tuple[Advice, ...]:
    """At most 5 changes of keys under which `scenario` fits, each simulated; only the best of each kind.

    Changes that cost least (1: time only ... 7: more GPUs) come first, of equal ones that with the shorter step. Two
    changes together are tried only if no single one fits, or only offload to the host does; then all are ordered by
    step time. If nothing surely fits: the 3 with the lowest peak, with verdict "unsure" or "oom". Empty if the scenario
    has no peak, or is too large to be simulated dozens of times. For workload "serve": of each kind the smallest change
    with which the inference engine starts, in a fixed order of kinds; empty if none helps.
    """
    if scenario.workload == "serve":
        return tuple(_of_engine(scenario))[:_MOST]
    if (scenario.world_size > ADVISED_RANKS or rows_of(scenario) > ADVISED_ROWS
            or _num_loads(scenario) > ADVISED_LOADS):
        return ()
    base = _peak(simulate(scenario, timed=False))
    if base is None:
        return ()
    singles = [tried for tried in _all_tried(scenario, _changes(scenario)) if tried.peak < base[0]]
    fitting, nearest = _best(tried for tried in singles if tried.fits), list[_Tried]()
    paired = all(tried.change.kind == "offload" for tried in fitting)
    if paired:
        others = [tried for tried in singles if tried.change.kind != "offload"] if fitting else singles
        pairs = _pairs_that_fit(scenario, others)
        nearest = sorted(pairs or singles, key=lambda tried: tried.peak)[:_NEAREST]
        fitting = [*fitting, *_best(tried for tried in pairs if tried.fits)]
    advice = [(tried.change.size, _told(scenario, tried)) for tried in (fitting or nearest)[:_MOST]]
    if fitting:
        advice.sort(key=lambda tried: (0 if paired else tried[0], tried[1].step_s or math.inf))
    return tuple(tried for _, tried in advice)


def _num_loads(scenario: Scenario) -> int:
    """Loads that random routing draws in a simulation: of each rank, microbatch and layer with experts."""
    routing = scenario.training.routing
    if not isinstance(routing, Draws):
        return 0
    graph = prepare(scenario)[0].graph
    layers = sum(any(isinstance(branch.block, Moe) for branch in graph.kinds[layer.kind].branches)
                 for layer in graph.layers)
    return routing.draws * scenario.world_size * scenario.num_microbatches * layers


def _told(scenario: Scenario, tried: _Tried) -> Advice:
    time = simulate(changed(scenario, tried.change.keys)).time
    return Advice(changes=dict(tried.change.keys), verdict=tried.verdict, peak_bytes=tried.peak,
                  headroom_bytes=tried.headroom, step_s=time.step_s if time else None)


def _of_engine(scenario: Scenario) -> Iterator[Advice]:
    """Smallest change of each kind with which an engine starts that does not."""
    tp, length = scenario.mesh.tp, scenario.training.seq_len
    more = [{"generation.tp": tp * factor, "mesh.tp": tp * factor} for factor in _FACTORS]
    shorter = [{"generation.max_model_len": length // factor} for factor in _FACTORS if length >= factor]
    ways: list[Sequence[Mapping[str, Any]]] = [*([keys] for keys in _ENGINES), shorter, more]
    for way in ways:
        tried = ((keys, simulate(changed(scenario, keys))) for keys in way)
        starts = next(((keys, report) for keys, report in tried if report.verdict == "fits"), None)
        if starts is not None and (peak := _peak(starts[1])):
            yield Advice(changes=dict(starts[0]), verdict="fits", peak_bytes=peak[0], headroom_bytes=peak[1])


def _pairs_that_fit(scenario: Scenario, singles: Sequence[_Tried]) -> list[_Tried]:
    """Pairs in the order in which they were tried, until enough of them fit."""
    pairs: list[_Tried] = []
    for tried in _all_tried(scenario, sorted((*_pairs(singles), _more_gpus(scenario, 4)), key=_effort)):
        pairs.append(tried)
        if len(_best(pair for pair in pairs if pair.fits)) == _MOST:
            break
    return pairs


def _effort(change: _Change) -> tuple[int, int, int]:
    return (change.size, change.factor, len(change.keys))


def _best(tried: Iterable[_Tried]) -> list[_Tried]:
    """First change of each kind: the smallest, then the one with most headroom."""
    first: dict[str, _Tried] = {}
    for change in sorted(tried, key=lambda tried: (*_effort(tried.change), -tried.headroom)):
        first.setdefault(change.change.kind, change)
    return list(first.values())


def _pairs(singles: Sequence[_Tried]) -> Iterator[_Change]:
    """Pairs of the best changes of each kind and factor; and pairs of recomputed modules."""
    most: dict[tuple[str, int], _Change] = {}
    for tried_change in sorted(singles, key=lambda tried: tried.peak):
        most.setdefault((tried_change.change.kind, tried_change.change.factor), tried_change.change)
    for a, b in itertools.combinations(sorted(most.values(), key=_effort), 2):
        if all(key == _BATCH and a.keys[key] == b.keys[key] for key in set(a.keys) & set(b.keys)):
            yield _Change(f"{a.kind}, {b.kind}", a.size + b.size, {**a.keys, **b.keys}, a.factor * b.factor)
    modules = [single.change for single in singles
               if isinstance(single.change.keys.get("training.recompute"), list)]
    for a, b in itertools.combinations(modules, 2):
        together = dict.fromkeys((*a.keys["training.recompute"], *b.keys["training.recompute"]))
        yield replace(a, size=a.size + b.size, keys={"training.recompute": list(together)})


# ---- simulated ------------------------------------------------------------------------------------------------------
def _all_tried(scenario: Scenario, changes: Iterable[_Change]) -> Iterator[_Tried]:
    for change in changes:
        tried = _tried(scenario, change)
        if tried is not None:
            yield tried


def _tried(scenario: Scenario, change: _Change) -> _Tried | None:
    """Simulated change; None if it is refused (by scenario, framework or topology) or rests on an assumption."""
    try:
        other = changed(scenario, change.keys)
    except InputError:
        return None
    if other == scenario:
        return None
    report = simulate(other, timed=False)
    if any(a.what in change.keys and a.kind == "assumed" for a in report.assumptions):
        return None
    peak = _peak(report)
    return peak and report.verdict and _Tried(change, report.verdict, *peak)


def _peak(report: Report) -> tuple[int, int] | None:
    """(device bytes, headroom) on the fullest rank; None without a result."""
    highest, headroom = report.highest_bytes, report.headroom_bytes
    return None if highest is None or headroom is None else (highest, headroom)


# ---- what there is to change ----------------------------------------------------------------------------------------
def _changes(scenario: Scenario) -> Iterator[_Change]:
    options = asked_adapter(scenario).memory_options
    yield from (_Change(option.kind, 1, option.keys) for option in options if option.kind != "formats")
    yield from (_Change(kind, 1, keys) for kind, keys in _HELD)
    yield from _recompute(scenario)
    yield from _micro_batch(scenario)
    yield from _layouts(scenario)
    yield from (_Change("offload", 4, keys) for keys in _HOSTED)
    yield from (_Change("formats", 5, keys) for keys in _FORMATS)
    yield from (_Change("formats", 5, option.keys) for option in options if option.kind == "formats")
    if scenario.training.seq_len % 2 == 0:
        yield _Change("length", 6, {"training.seq_len": scenario.training.seq_len // 2})
    yield _more_gpus(scenario, 2)


def _recompute(scenario: Scenario) -> Iterator[_Change]:
    """Recomputation of one more module, then of everything."""
    now = scenario.training.recompute
    if isinstance(now, tuple) or now == "none":
        modules = list(now) if isinstance(now, tuple) else []
        for name in _MODULES:
            if name not in modules:
                yield _Change("recompute", 2, {"training.recompute": [*modules, name]})
    if now != "full":
        yield _Change("recompute", 3, {"training.recompute": "full"})


def _micro_batch(scenario: Scenario) -> Iterator[_Change]:
    size = scenario.training.micro_batch_size
    if size % 2 == 0:
        yield _Change("micro batch", 3, _with_batch(scenario, {"training.micro_batch_size": size // 2}))


def _with_batch(scenario: Scenario, keys: dict[str, Any]) -> dict[str, Any]:
    """Keys with the global batch fixed, if it was left out: it would follow the change."""
    if scenario.training.global_batch_size is not None:
        return keys
    return {**keys, _BATCH: _global_batch(scenario)}


def _global_batch(scenario: Scenario) -> int:
    mesh, training = scenario.mesh, scenario.training
    return training.micro_batch_size * mesh.dp_shard * mesh.dp_replicate * scenario.num_microbatches


def _layouts(scenario: Scenario) -> Iterator[_Change]:
    """Other layouts of the same number of GPUs. Expert width is kept, because an etp left out would follow tp."""
    mesh = scenario.mesh
    if mesh.dp_replicate > 1:
        yield _Change("shard", 4, {"mesh.dp_replicate": 1, "mesh.dp_shard": mesh.dp_shard * mesh.dp_replicate})
    for factor in _FACTORS:
        yield _Change("ep", 4, {"mesh.ep": mesh.ep * factor}, factor)
        if mesh.dp_shard % factor:
            continue
        for axis, now in (("cp", mesh.cp), ("tp", mesh.tp), ("pp", mesh.pp)):
            keys: dict[str, Any] = {f"mesh.{axis}": now * factor, "mesh.dp_shard": mesh.dp_shard // factor}
            if axis == "tp" and mesh.etp is None and mesh.ep > 1 and mesh.tp == 1:
                keys["mesh.etp"] = 1
            yield _Change(axis, 4, _with_batch(scenario, keys), factor)


def _more_gpus(scenario: Scenario, factor: int) -> _Change:
    """`factor` times as many GPUs; a larger batch only if some GPUs would get no sequence."""
    keys: dict[str, Any] = {"mesh.dp_shard": scenario.mesh.dp_shard * factor}
    if scenario.training.global_batch_size is not None and scenario.num_microbatches % factor:
        keys[_BATCH] = _global_batch(scenario) * factor
    topology = scenario.topology
    if not isinstance(topology, str) and topology.num_nodes is not None:
        keys["topology.num_nodes"] = topology.num_nodes * factor
    return _Change("GPUs", 7 * factor // 2, keys, factor)
