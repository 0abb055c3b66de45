"""Experts of transformers' layers that ranks share under FSDP2, by transformers' own plans.

transformers 5.23 `distributed/tensor_parallel.py`: `packed_colwise` of gate and up, `rowwise` of down, and
`moe_tp_experts` around them, in base_model_tp_plan of `models/qwen3_moe/configuration_qwen3_moe.py:56` and its like.
Routers, and a shared expert that no plan names (Qwen2-MoE's), are whole on every rank.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.models.blocks import Attention, Moe
from simcore.models.tensor import TensorSpec
from simcore.placement.job import Draft, Job
from simcore.units import dtype_bytes

__all__ = ["FAMILIES", "check_width", "grouped", "is_whole"]

FAMILIES: Final = ("glm4_moe", "mixtral", "qwen2_moe", "qwen3_moe")
"""Mixtures whose plan splits experts by their width, whose steps are measured (`tests/truth/draw_hf_mixtures.py`)."""
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
    for block in (block for block in blocks if isinstance(block, Moe)):
        if block.expert_ffn % job.mesh.tp:
            raise job.not_yet("mesh.tp", f"experts of width {block.expert_ffn} on {job.mesh.tp} ranks, unevenly")
        for size in (block.expert_ffn // job.mesh.tp, block.hidden):
            if size * dtype_bytes(job.compute) % 16:
                raise job.illegal("mesh.tp", f"Expected mat_a stride along 0 dim to be multiple of 16 bytes: rows of "
                                  f"{size} entries in {job.compute}", _ALIGNED)


def grouped(job: Draft, options: dict[str, Any]) -> dict[str, Any]:
    """Returns `options` with transformers' grouped products of experts, its default on a GPU."""
    if not job.has_experts or options.get("experts_implementation"):
        return options
    job.auto("framework_options.experts_implementation", "auto", "grouped_mm",
             "transformers 5.23 modeling_utils.py get_correct_experts_implementation")
    return {**options, "experts_implementation": "grouped_mm"}


def is_whole(spec: TensorSpec) -> bool:
    """True for a tensor of a mixture that no plan splits: a router's, or one of Qwen2-MoE's shared expert."""
    return spec.component == "router" or ".shared_expert." in spec.name or ".shared_expert_gate." in spec.name
