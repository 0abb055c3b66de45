"""Layers with DeepSpeed's experts as its stages see them: what AutoEP takes, and what it refuses.

[Note: DeepSpeed's expert parallelism] `module_inject/auto_ep.py` (0.19.6, edaa72212) takes blocks of experts out of a
model when the engine is made, and puts `AutoEPMoELayer` there. Ranks are cut twice: ep neighbours have different
experts and exchange rows; ranks that have the same experts, `expert_dp`, reduce and cut their gradients, divided by all
ranks (`utils/groups.py`, _create_expert_data_and_model_parallel). Router and shared expert belong to all ranks.

[Note: who makes the optimizer] AutoEP makes new parameters, and ZeRO-1 and 2 want those of experts in groups marked
`moe` (`stage_1_and_2.py`:779). The engine makes such groups where the optimizer is its own and it is handed no list of
parameters (`engine.py`:2028). transformers' Trainer hands it one that it took before, and accelerate an optimizer. As
run, stages 1 and 2 then stop, stage 3 too ('Parameter' object has no attribute 'partition_numel'), and at stage 0 no
expert is trained: no recipe of theirs can ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.frameworks.common import transformers as _transformers
from simcore.frameworks.common.expert_modules import LAYERS as _COMMON
from simcore.frameworks.common.expert_modules import Layers
from simcore.frameworks.common.hot_ranks import hot_ranks_assumption
from simcore.frameworks.common.liger import LIGER_OPTIONS
from simcore.inputs.training import Draws
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph
from simcore.operators.hf.options import HfOptions
from simcore.placement.checkpoint_files import Files
from simcore.placement.framework import Rule
from simcore.placement.job import Draft, Job
from simcore.placement.layout import Shard, TensorLayout
from simcore.placement.plan import Placed

__all__ = ["EXPERTS_AXIS", "LAYERS", "assumptions", "axes_of", "axis_of", "check_experts", "files_of",
           "has_own_experts", "refuse_capacity", "with_experts"]

_NAME: Final = "experts"
"""Name of the policy of routed experts that are gathered where they run."""
EXPERTS_AXIS: Final = "expert_dp"
"""Ranks that have the same experts."""
_FOLDING: Final = "deepspeed 0.19.6 module_inject/auto_ep_folding.py"
_DROPS: Final = "deepspeed 0.19.6 module_inject/auto_ep_layer.py:621 AutoEPMoELayer"
_DETECTION: Final = "deepspeed 0.19.6 module_inject/auto_ep_config.py validate_autoep_post_detection"
_COMPATIBLE: Final = "deepspeed 0.19.6 runtime/engine.py _validate_zero3_moe_compatibility"
_PRESETS: Final = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Families with a preset, of those that are recorded."""
_LATER: Final = ("qwen3_5_moe_text", "deepseek_v2", "deepseek_v3")
"""Families with a preset that are not recorded."""


def has_own_experts(graph: ModelGraph) -> bool:
    """Returns True if the experts of a model are DeepSpeed's."""
    return graph.implementation == "autoep"


def refuse_capacity(job: Job) -> None:
    """Raises IllegalLayout for a capacity of experts, which neither DeepSpeed's nor transformers' have."""
    job.refuse_capacity(f"{_DROPS}: drop_mask is zeros: no token is dropped" if has_own_experts(job.graph)
                        else _transformers.NO_CAPACITY)


def check_experts(job: Job, stage: int) -> None:
    """Raises IllegalLayout, InputError or NotYet for experts that a stage of ZeRO does not take (0 without ZeRO)."""
    mesh = job.mesh
    if not has_own_experts(job.graph):
        if mesh.ep > 1 and not job.has_experts:
            raise InputError(Problem(job.scenario.where("mesh", "ep"), f"ep: expected 1 in a model without experts, "
                                     f"got {mesh.ep}: it changes nothing under DeepSpeed"))
        if mesh.ep > 1 or mesh.etp > 1:
            raise job.not_yet("mesh.ep" if mesh.ep > 1 else "mesh.etp", "experts split over ranks under "
                              "DeepSpeed in other layers than its own (served: implementation: autoep, which is its "
                              "expert_parallel)")
        return
    if mesh.etp > 1:
        raise job.illegal("mesh.etp", f"expert_parallel.expert_tensor_parallel_size={mesh.etp} is reserved for "
                          "expert-internal tensor parallelism and is not supported yet",
                          f"{_FOLDING} validate_folding_global")
    if mesh.stage_size % mesh.ep:
        raise job.illegal("mesh.ep", f"expert_parallel.autoep_size {mesh.ep} must divide the stage size "
                          f"({mesh.stage_size}): computed edp would be non-integral", f"{_FOLDING} build_folding_spec")
    if mesh.cp > 1 and stage == 3:
        raise job.illegal("mesh.cp", "AutoEP with ZeRO Stage 3 does not support sequence parallelism yet "
                          f"(sequence_parallel_size={mesh.cp})", _COMPATIBLE)
    if mesh.tp > 1 and stage == 3:
        raise job.illegal("mesh.tp", "AutoEP+AutoTP with ZeRO stage 3 is reserved for the separate ZeRO-3 composition "
                          "lane", f"{_FOLDING} validate_folding_global")
    for axis in ("cp", "tp"):
        if mesh.axis(axis).size > 1:
            raise job.not_yet(f"mesh.{axis}", "DeepSpeed's experts beside its sequence or tensor parallelism")
    if stage == 3 and (job.scenario.framework_options.get("zero_hpz_partition_size") or 1) > 1:
        raise job.illegal("framework_options.zero_hpz_partition_size", "AutoEP with ZeRO Stage 3 does not support "
                          "hpZeRO secondary tensor groups yet", _COMPATIBLE)
    _check_offload(job)


def _check_offload(job: Job) -> None:
    for part in ("optimizer", "params"):
        if job.scenario.training.offload.part(part)[1]:
            raise job.not_yet(f"training.offload.{part}", "states of DeepSpeed's experts on the host")
    options = job.scenario.framework_options
    if options.get("contiguous_gradients") is False:
        raise job.illegal("framework_options.contiguous_gradients", "Contiguous Gradients in ZeRO Stage 2 must be set "
                          "to True for MoE. Other code paths are not tested with MoE",
                          "deepspeed 0.19.6 runtime/zero/stage_1_and_2.py _configure_moe_settings")
    if options.get("round_robin_gradients"):
        raise job.not_yet("framework_options.round_robin_gradients", "gradients of DeepSpeed's experts in turns")


def _check(job: Job, options: dict[str, Any]) -> None:
    """Raises IllegalLayout or NotYet for models in which AutoEP finds no experts, or that are not recorded."""
    _transformers.check_layers(job, options)
    _check_model(job)
    for block in (branch.block for kind in job.graph.kinds for branch in kind.branches):
        if isinstance(block, Moe) and job.mesh.ep > block.num_experts:
            raise job.illegal("mesh.ep", f"autoep_size={job.mesh.ep} exceeds num_experts={block.num_experts}: each "
                              "rank must own at least one expert", _DETECTION)
        if isinstance(block, Moe) and block.num_experts % job.mesh.ep:
            raise job.illegal("mesh.ep", f"num_experts={block.num_experts} is not divisible by "
                              f"autoep_size={job.mesh.ep}", _DETECTION)
    if isinstance(job.scenario.training.routing, Draws):
        raise job.not_yet("training.routing", "routing drawn at random in DeepSpeed's experts")
    kernels = next((name for name in LIGER_OPTIONS if options.get(name)), None)
    if kernels is not None:
        raise job.not_yet(f"framework_options.{kernels}", "Liger's kernels in layers with DeepSpeed's experts")


def _check_model(job: Job) -> None:
    family = job.graph.architecture.family
    if job.graph.architecture.has_tower or job.graph.architecture.family in _LATER or family not in _PRESETS:
        raise job.not_yet("implementation", f"DeepSpeed's experts in {family} (served: {', '.join(_PRESETS)}; it has "
                          f"presets of {', '.join(_LATER)} too, which are not simulated)")
    if job.scenario.training.method != "full":
        raise job.illegal("training.method", f"AutoEP: no MoE layers detected for model_type='{family}': PEFT's model "
                          "is around the one whose layers it looks for (moe_layer_pattern='model\\.layers\\.\\d+"
                          "\\.mlp')", "deepspeed 0.19.6 module_inject/auto_ep.py _raise_no_moe_layers_detected")


def _layer_options(job: Draft, options: dict[str, Any]) -> HfOptions:
    if job.graph.architecture.family in _PRESETS:
        job.note("transformers 5.23 beside DeepSpeed's experts", "as with a transformers before 5.23",
                 "an assumption: transformers 5.23 utils/output_capturing.py _CanRecordRegistry.get takes no default, "
                 "at which deepspeed 0.19.6 module_inject/auto_ep_presets/base.py:305 stops with a TypeError")
    return replace(_transformers.dense_options_of(job, options), experts_unit=False)


LAYERS: Final[Mapping[str, Layers]] = MappingProxyType({**_COMMON, "autoep": Layers(
    options={**{name: _transformers.LAYER_OPTIONS[name] for name in ("attn_implementation", "sdpa_backend")},
             **LIGER_OPTIONS},
    check=_check, layer_options=_layer_options)})
"""Implementations under DeepSpeed: transformers' layers, and those with DeepSpeed's experts."""


def assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what is assumed of DeepSpeed's experts as (key, value, kind, source); () in other layers."""
    if not has_own_experts(job.graph):
        return ()
    made = ("optimizer of DeepSpeed's experts", "made by DeepSpeed, from its configuration", "derived",
            "deepspeed 0.19.6 runtime/engine.py _configure_optimizer: transformers' Trainer hands over parameters that "
            "AutoEP has replaced, at which stages 1 and 2 stop (stage_1_and_2.py:779)")
    replaced = ("blocks of experts that AutoEP replaces", "on the CPU, where the script has loaded the model",
                "assumed", "deepspeed 0.19.6 utils/debug.py debug_extract_module_and_param_names refers to them: those "
                "that are loaded on a GPU stay there")
    return (made, replaced, *hot_ranks_assumption(job))


def with_experts(job: Job, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Returns a stage's rules with those for routed experts first; the same rules in other layers.

    Experts are cut over ep, and over `expert_dp` as the stage's own rules cut over its axis: the last, and under ZeRO-3
    that of small parameters, which stay gathered, too.
    """
    return _with_experts(rules, job.mesh.ep) if has_own_experts(job.graph) else rules


@lru_cache(maxsize=64)
def _with_experts(rules: tuple[Rule, ...], ep: int) -> tuple[Rule, ...]:
    def own(layout: TensorLayout) -> TensorLayout:
        placements = tuple((EXPERTS_AXIS, placement) for _, placement in layout.placements)
        return replace(layout, placements=(("ep", Shard(0, even=True)), *placements))

    def of_experts(rule: Rule) -> Rule:
        dense = rule.policy
        policy = replace(dense, name=_NAME if rule is rules[-1] else dense.name, at_rest=own(dense.at_rest),
                         in_use=own(dense.in_use), unreduced_grad=own(dense.unreduced_grad), grad=own(dense.grad),
                         optimizer_states=tuple((name, own(layout)) for name, layout in dense.optimizer_states))
        return Rule(lambda t: t.component == "routed_experts" and rule.matches(replace(t, shape=(
            t.shape[0] // ep, *t.shape[1:]))), policy)

    dense = [rule for rule in rules if rule.policy.name != "buffer"]
    return (*map(of_experts, dense), *rules)


def axis_of(placed: Placed) -> str:
    """Returns the mesh axis over which a parameter's gradient is reduced: that of all ranks, or `expert_dp`."""
    return placed.policy.unreduced_grad.placements[-1][0]


def axes_of(job: Job) -> tuple[str, ...]:
    """Returns the mesh axes of experts over which something is sent; () in other layers."""
    return ("ep", EXPERTS_AXIS) if has_own_experts(job.graph) else ()


def files_of(job: Job, files: Files) -> Files:
    """Returns how a job reads and writes checkpoints: `files`, but DeepSpeed's experts are not written.

    NotYet where the scenario asks for that.
    """
    if not has_own_experts(job.graph):
        return files
    if job.scenario.checkpoint.save not in ("auto", "none"):
        raise job.not_yet("checkpoint.save", "checkpoints of DeepSpeed's experts, each a file")
    return replace(files, save=None)
