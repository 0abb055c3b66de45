"""Matrices that ranks share under DeepSpeed's AutoTP: how each is cut, and what is refused.

[Note: AutoTP] `tensor_parallel: {autotp_size: n}`. DeepSpeed 0.19.6 as released, `runtime/engine.py`,
_apply_autotp_partitioning: transformers' plan of the model (`tp_plan`) becomes specs (`module_inject/
tp_plan_converter.py`), by which linears are replaced (`module_inject/layers.py`; `operators/shared/splits/autotp.py`
has their operators). Embeddings stay whole, and with them a head that is tied to one (`module_inject/auto_tp.py`,
_configure_gathered_column_tie_fallbacks); another head is cut by vocabulary, and its logits are gathered. Neighbours
share matrices and the inputs of a microbatch; each stage of ZeRO then works over the ranks that have the same part
(`utils/groups.py`, _init_tp_mesh_device), with what tp has left of each parameter as its length: thresholds, buckets
and parts count that. Norms of gradients are summed up over tp too, in a few bytes. Before its release (edaa72212) the
converter refused the whole plan for its `embedding_rowwise`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from simcore.models.blocks import Attention, Mlp, Moe
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.operators.shared.splits.plans import PLAIN
from simcore.placement.job import Job
from simcore.placement.layout import Placements, Shard

__all__ = ["AS_WHOLE", "check_matrices", "cut_of", "cuts_of", "shares_matrices"]

_EXPERTS: Final = "moe_tp_experts, packed_colwise"
_STYLES: Final = {
    **dict.fromkeys(("deepseek_v3", "gemma4_text", "glm4_moe", "granitemoehybrid", "hy_v3", "mixtral", "qwen2_moe",
                     "qwen3_5_moe_text", "qwen3_moe", "qwen3_next"), _EXPERTS),
    **dict.fromkeys(("deepseek_v2", "glm4_moe_lite"), f"mla_kv_a_proj, {_EXPERTS}"),
    **dict.fromkeys(("glm", "glm4", "olmo2", "olmo3", "phi3"), "rowwise_split_input"),
    **dict.fromkeys(("minimax_m2", "olmoe"), f"{_EXPERTS}, rowwise_split_input"), "nemotron_h": "moe_tp_experts"}
"""Styles of a family's `base_model_tp_plan` (transformers 5.23) that AutoTP does not know."""
_ROWS: Final = ("o_proj", "down_proj", "dense", "fc2", "c_proj")
_LOSSES: Final = ("auto", "hf", "hf_keep_logits")
AS_WHOLE: Final = ("model under zero3 and AutoTP", "loaded whole, then cut", "assumed", "deepspeed 0.19.6 "
                   "module_inject/auto_tp.py _replace_module: weights that zero.Init has cut before (from_pretrained "
                   "under HfDeepSpeedConfig) have one dimension, and AutoTP passes them by without a word (measured)")
"""The assumption about ZeRO-3: what from_pretrained has in parts, AutoTP leaves as it is."""


def shares_matrices(graph: ModelGraph) -> bool:
    """True if ranks may share the matrices of a model."""
    experts = any(isinstance(branch.block, Moe) for kind in graph.kinds for branch in kind.branches)
    return (graph.implementation == "hf" and graph.architecture.family in PLAIN
            and not experts and not graph.architecture.has_tower)


def check_matrices(job: Job) -> None:
    """Raises IllegalLayout or NotYet for matrices that ranks cannot share under AutoTP, or are not served so."""
    tp, family = job.mesh.tp, job.graph.architecture.family
    if tp == 1:
        return
    if job.graph.implementation == "hf" and family in _STYLES:
        raise job.illegal("mesh.tp", f"HuggingFace tp_plan contains unsupported partition style(s): {_STYLES[family]}",
                          "deepspeed 0.19.6 module_inject/tp_plan_converter.py convert; transformers 5.23 models/"
                          f"{family.removesuffix('_text')} base_model_tp_plan")
    if not shares_matrices(job.graph):
        raise job.not_yet("mesh.tp", f"AutoTP's plan for {family} (served: {', '.join(PLAIN)}, with transformers' "
                          "layers)")
    if job.graph.architecture.vocab % tp and not job.graph.has_tied_head:
        raise job.not_yet("mesh.tp", f"{job.graph.architecture.vocab} entries of the vocabulary on {tp} ranks, "
                          "unevenly")
    for block in (branch.block for kind in job.graph.kinds for branch in kind.branches):
        if isinstance(block, Attention) and block.num_kv_heads % tp:
            raise job.not_yet("mesh.tp", f"{block.num_kv_heads} key and value heads on {tp} ranks, unevenly")
        if isinstance(block, Mlp) and block.ffn % tp:
            raise job.not_yet("mesh.tp", f"an MLP of width {block.ffn} on {tp} ranks, unevenly")
    _check_beside(job)


def _check_beside(job: Job) -> None:
    training, options = job.scenario.training, job.scenario.framework_options
    for key, said, what in (
            ("workload", job.scenario.workload != "train", f"{job.scenario.workload} beside AutoTP"),
            ("mesh.cp", job.mesh.cp > 1, "ranks that share sequences beside AutoTP"),
            ("training.method", training.method != "full", f"{training.method} beside AutoTP"),
            ("training.lengths", training.lengths == "packed", "packed sequences beside AutoTP"),
            ("training.loss", training.loss not in _LOSSES, f"{training.loss} of a head that AutoTP splits"),
            ("training.offload", any(training.offload.part(part)[1] > 0 for part in ("params", "optimizer", "gradients",
                                                                                     "activations")),
             "tensors on the host beside AutoTP"),
            *((f"framework_options.{name}", bool(options.get(name)), f"{name} beside AutoTP")
              for name in ("use_liger_kernel", "compile", "zero_hpz_partition_size"))):
        if said:
            raise job.not_yet(key, what)


def cut_of(spec: TensorSpec) -> Placements:
    """Returns how AutoTP cuts a tensor over tp, as (mesh axis, placement) pairs; empty if it is whole.

    Weights are [out, in]: those of `LinearLayer` are cut on rows (dimension 0), with their biases, those of
    `LinearAllreduce` on columns (1), and their biases are whole.
    """
    if spec.is_buffer or spec.tied or spec.module in ("norm", "embedding"):
        return ()
    if spec.path.endswith(_ROWS):
        return () if len(spec.shape) == 1 else (("tp", Shard(1, even=True)),)
    return (("tp", Shard(0, even=True)),)


@lru_cache(maxsize=64)
def cuts_of(graph: ModelGraph) -> tuple[Placements, ...]:
    """Returns every way in which AutoTP cuts a tensor of the model; whole ones not."""
    return tuple(dict.fromkeys(cut for specs in graph.tensors for cut in map(cut_of, specs) if cut))
