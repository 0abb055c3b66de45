"""Experts of transformers' layers that ranks share under FSDP2, by transformers' own plans.

transformers 5.23 `distributed/tensor_parallel.py`: `packed_colwise` of gate and up, `rowwise` of down, and
`moe_tp_experts` around them, in base_model_tp_plan of `models/qwen3_moe/configuration_qwen3_moe.py:56` and its like.
Routers, and a shared expert that no plan names (Qwen2-MoE's), are whole on every rank.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.frameworks.common.transformers import DISPATCHED
from simcore.inputs.training import Draws
from simcore.models.blocks import Attention, Moe
from simcore.models.tensor import TensorSpec
from simcore.placement.job import Draft, Job
from simcore.units import dtype_bytes

__all__ = ["FAMILIES", "check_exchange", "check_width", "dispatches", "experts_axes", "grouped", "is_whole"]

FAMILIES: Final = ("glm4_moe", "mixtral", "qwen2_moe", "qwen3_moe")
"""Mixtures whose plan splits experts by their width, whose steps are measured (`tests/truth/draw_hf_mixtures.py`)."""
EXCHANGED: Final = ("glm4_moe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
"""Mixtures whose whole experts are on different ranks (base_model_ep_plan), measured by `draw_hf_experts.py`."""
_SIZES: Final = "transformers 5.23 distributed/configuration_utils.py:182 _validate_mesh_config"
_ALIGNED: Final = "torch 2.13 _meta_registrations.py _meta_grouped_mm_common"


def check_width(job: Job) -> None:
    """Raises IllegalLayout or NotYet for a mixture whose experts, or norms of heads, tp ranks cannot share."""
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    normed = any(isinstance(block, Attention) and block.qk_norm for block in blocks)
    if normed and job.graph.architecture.family == "glm4_moe":
        raise job.illegal("mesh.tp", "norms of query and key that no rule of the plan sums: each rank would train its "
                          "own, of its heads' gradients alone", "transformers 5.23 models/glm4_moe/"
                          "configuration_glm4_moe.py:60 base_model_tp_plan (Qwen3-MoE's has "
                          "replicated_with_grad_allreduce)")
    parts = 1 if dispatches(job) else job.mesh.tp
    for block in (block for block in blocks if isinstance(block, Moe)):
        if block.expert_ffn % parts:
            raise job.not_yet("mesh.tp", f"experts of width {block.expert_ffn} on {job.mesh.tp} ranks, unevenly")
        for size in (block.expert_ffn // parts, block.hidden):
            if size * dtype_bytes(job.compute) % 16:
                raise job.illegal("mesh.tp", f"Expected mat_a stride along 0 dim to be multiple of 16 bytes: rows of "
                                  f"{size} entries in {job.compute}", _ALIGNED)


def grouped(job: Draft, options: dict[str, Any]) -> dict[str, Any]:
    """Returns `options` with transformers' grouped products of experts, its default on a GPU."""
    options = _exchanged(job, options)
    needed = job.mesh.tp > 1 or dispatches(job)
    if dispatches(job) and job.scenario.training.precision.params == job.compute:
        job.note("weights of the chosen experts", f"cast to {job.compute} with the inputs of the experts' unit",
                 "an assumption: a policy of mixed precision, as fsdp_mixed_precision: true makes it (transformers "
                 "5.23 distributed/fsdp.py _get_fsdp_policy_kwargs); without one some routers' stay in fp32")
    if not needed or not job.has_experts or options.get("experts_implementation"):
        return options
    job.auto("framework_options.experts_implementation", "auto", "grouped_mm",
             "transformers 5.23 modeling_utils.py get_correct_experts_implementation")
    return {**options, "experts_implementation": "grouped_mm"}


def _exchanged(job: Draft, options: dict[str, Any]) -> dict[str, Any]:
    """Returns `options` with the way in which rows reach experts on other ranks; a default is noted as one."""
    if job.mesh.ep == 1 or "experts" in options:
        return options
    key, own = "framework_options.experts", "models/*/configuration_*.py base_model_ep_plan: ep_dispatch_experts"
    if dispatches(job):
        job.auto(key, "auto", DISPATCHED, f"transformers 5.23 {own}")
        return {**options, "experts": DISPATCHED}
    job.auto(key, "auto", "fully_shard", "a stand-in, of DTensors and batched products over equal groups of rows: "
             f"transformers 5.23 has for most mixtures an exchange of its own ({own}), which is measured of "
             f"{', '.join(EXCHANGED)}")
    return options


def dispatches(job: Job) -> bool:
    """Returns True if rows reach experts on other ranks by transformers' own exchange, the default where measured."""
    own = job.graph.implementation == "hf" and job.graph.architecture.family in EXCHANGED
    return job.mesh.ep > 1 and job.scenario.framework_options.get("experts", DISPATCHED if own else "") == DISPATCHED


def experts_axes(job: Job) -> tuple[str, str]:
    """Returns the mesh axes over which experts of one rank are cut once more, and copied.

    transformers 5.23 `distributed/fsdp.py`, apply_fully_sharded_data_parallelism: ("dp_replicate", "efsdp").
    """
    apart = dispatches(job) and job.mesh.dp_replicate > 1
    return ("expert_dp_shard", "expert_dp_replicate") if apart else ("expert_dp", "")


def check_exchange(job: Job) -> None:
    """Raises IllegalLayout or NotYet for experts that transformers' own exchange cannot reach, or is not known to.

    InputError where it is asked for and there is none.
    """
    mesh, training, family = job.mesh, job.scenario.training, job.graph.architecture.family
    if mesh.ep == 1:
        job.refuse_idle(job.scenario.framework_options, "experts", "where each rank has all experts (mesh.ep: 1)")
    if not dispatches(job):
        return
    if family not in EXCHANGED:
        raise job.not_yet("framework_options.experts", f"{DISPATCHED} of {family} (served: {', '.join(EXCHANGED)})")
    if mesh.ep % mesh.tp:
        raise job.illegal("mesh.ep", f"`ep_size` must be a multiple of `tp_size`: {mesh.ep}, {mesh.tp}", _SIZES)
    if mesh.dp_shard * mesh.tp % mesh.ep:
        raise job.illegal("mesh.ep", f"`ep_size` must divide `fsdp_size * tp_size`: {mesh.ep}, {mesh.dp_shard} x "
                          f"{mesh.tp}", _SIZES)
    for key, said, what in (
            ("mesh.cp", mesh.cp > 1, "ranks that share sequences"),
            ("mesh.tp", training.micro_batch_size * training.seq_len % mesh.tp > 0, f"{mesh.tp} ranks with unequal "
             "shares of a batch"),
            ("training.routing", isinstance(training.routing, Draws), "routing drawn at random"),
            ("training.method", training.method != "full", training.method),
            ("training.offload", training.offload.part("params")[1] > 0, "parameters on the host")):
        if said:
            raise job.not_yet(key, f"{what} beside experts: {DISPATCHED}, transformers' own exchange (experts: "
                              "fully_shard is a stand-in for it)")


def is_whole(spec: TensorSpec) -> bool:
    """True for a tensor of a mixture that no plan splits: a router's, or one of Qwen2-MoE's shared expert."""
    return spec.component == "router" or ".shared_expert." in spec.name or ".shared_expert_gate." in spec.name
