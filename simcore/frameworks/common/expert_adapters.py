"""Adapters of transformers 5's fused experts: what PEFT makes of the names that the experts' linears had before.

[Note: names of fused experts]
PEFT 0.21.2 `utils/transformers_weight_conversion.py`, _convert_peft_config_moe, for families that transformers 5.23
`conversion_mapping.py` loads into fused experts: a target that names a linear of an expert of transformers 4 leaves
the list of modules, also for modules that still have that name (dense layers, shared experts), and its parameter is
adapted in every expert; `exclude_modules` does not reach it. Gate and up are one parameter: both are targets or none,
and its rank is twice the rank. The router, `gate`, is a parameter too. `ParamWrapper` refuses dropout and DoRA.
Other families' experts get no adapters by these names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from simcore.frameworks.adapter import LoraChoice
from simcore.models.blocks import LayerKind
from simcore.models.tensor import TensorSpec
from simcore.placement.job import Draft, Job

__all__ = ["TARGETS", "adapts_experts", "check_expert_adapters", "expert_adapters", "names_of_experts"]

_LAYERS: Final = "hf"
_QWEN: Final = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}
_MIXTRAL: Final = {"w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}
_NAMES: Final = {**dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "olmoe", "qwen3_moe",
                                  "qwen3_next"), _QWEN),
                 **dict.fromkeys(("minimax_m2", "mixtral"), _MIXTRAL)}
"""By family: parameters by the names that linears of experts had (_MODEL_TO_CONVERSION_PATTERN of transformers)."""
_ROUTER: Final = "gate"
_PEFT: Final = "PEFT 0.21.2 "
_CONVERTED: Final = f"{_PEFT}utils/transformers_weight_conversion.py _convert_peft_config_moe"
_WRAPPER: Final = f"{_PEFT}tuners/lora/layer.py ParamWrapper"
TARGETS: Final = "training.lora.target_modules"


def names_of_experts(family: str, implementation: str) -> tuple[str, ...]:
    """Returns the targets that name linears of experts and no module; () without fused experts."""
    return tuple(_NAMES.get(family, {})) if implementation == _LAYERS else ()


def expert_adapters(kind: LayerKind, specs: tuple[TensorSpec, ...], lora: LoraChoice) -> Iterator[TensorSpec]:
    """Yields the adapters of a layer's fused experts, of those parts that `lora` names.

    `lora_a` [r * e, in] and `lora_b` [out, r * e] for e experts; r is the rank, twice that for gate and up together.
    """
    if lora.implementation != _LAYERS:
        return
    names = _NAMES.get(kind.family, {})
    parts = {names[target] for target in lora.target_modules if target in names}
    for spec in specs:
        part = spec.name.rpartition(".")[2]
        if spec.module != "grouped" or part not in parts:
            continue
        experts, rows, columns = spec.shape
        ranks = experts * lora.rank * sum(one == part for one in names.values())
        yield TensorSpec(f"{spec.name}.lora_a.weight", (ranks, columns), ("rank", spec.dims[2]), "adapters", "adapter")
        yield TensorSpec(f"{spec.name}.lora_b.weight", (rows, ranks), (spec.dims[1], "rank"), "adapters", "adapter")


def adapts_experts(job: Job) -> bool:
    """True if fused experts of the job's model have adapters."""
    names = {spec.name for specs in job.graph.tensors for spec in specs}
    return any(spec.module == "grouped" and f"{spec.name}.lora_a.weight" in names
               for specs in job.graph.tensors for spec in specs)


def check_expert_adapters(job: Draft, targets: Iterable[str]) -> None:
    """Raises IllegalLayout or NotYet for adapters of fused experts that PEFT refuses, or that are not modelled.

    `targets`: those that the scenario names.
    """
    if job.graph.implementation != _LAYERS:
        return
    families, asked = {kind.family for kind in job.graph.kinds}, set(targets)
    names = next((names for family, names in _NAMES.items() if family in families), {})
    if names and _ROUTER in asked:
        raise job.not_yet(TARGETS, f"an adapter of the router's weight ({_ROUTER}, which PEFT adapts as a parameter)")
    _check_halves(job, names, asked)
    if not adapts_experts(job):
        return
    lora = job.scenario.training.lora
    for key, value in (("dropout", lora.dropout), ("use_dora", lora.use_dora)):
        if value:
            raise job.illegal(f"training.lora.{key}", f"adapters of experts that are one parameter ({_told(names)}) do "
                              f"not work with {key}: {value}", _WRAPPER)
    if job.mesh.ep > 1:
        raise job.not_yet(TARGETS, f"adapters of experts ({_told(names)}) that are split over ranks")
    if job.scenario.checkpoint.merge == "device" and job.scenario.training.method == "qlora":
        raise job.not_yet("checkpoint.merge", "the merge of adapters of experts beside a base in 4 bits (served: lora)")


def _check_halves(job: Draft, names: dict[str, str], asked: set[str]) -> None:
    """Gate and up are adapted together."""
    for part in dict.fromkeys(names.values()):
        halves = [name for name, of in names.items() if of == part]
        given, missing = [name for name in halves if name in asked], [name for name in halves if name not in asked]
        if given and missing:
            raise job.illegal(TARGETS, f"{', '.join(given)} cannot be adapted without {', '.join(missing)}: "
                              f"transformers 5 has both as {part}", _CONVERTED)


def _told(names: dict[str, str]) -> str:
    return ", ".join(names)
