"""Matrices of transformers' layers that ranks share under FSDP2, by transformers' own plans (`tp_plan`).

transformers 5.23 `distributed/tensor_parallel.py`, apply_tensor_parallelism, before `distributed/fsdp.py`: with
`DistributedConfig(tp_size=..., fsdp_size=...)` parameters that a plan names are DTensors over tp, and FSDP2 cuts what
is left of them on dimension 0. Styles of the plans that are served (`models/llama/configuration_llama.py`,
base_model_tp_plan): colwise and rowwise linears, `embedding_rowwise` (by vocabulary), `colwise_gather_output` of the
head, whose logits are whole on every rank, and `replicated_with_grad_allreduce` of norms of heads, whose gradients are
summed when they are there. Hidden states, and all other norms, are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.common import transformers
from simcore.frameworks.common.trainer import Trainer
from simcore.frameworks.fsdp2.pairs.rules import REFERENCE_OPTION
from simcore.frameworks.fsdp2.split import mixtures
from simcore.inputs.optimizers import optimizers_of
from simcore.models.blocks import Attention, Mlp, Moe
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.operators.hf.options import HfOptions
from simcore.operators.shared.splits.plans import PLAIN
from simcore.placement.job import Draft, Job
from simcore.placement.layout import Placements, Shard

__all__ = ["HF_TRAINER", "has_plan", "ties_again"]

_ROWS: Final = ("o_proj", "down_proj", "dense", "fc2", "c_proj")
_PLAN: Final = "transformers 5.23 distributed/tensor_parallel.py"
_APART: Final = "separate_embedding_head"
_LOSSES: Final = ("auto", "hf", "hf_keep_logits")


def check(job: Job, options: dict[str, Any]) -> None:
    """Raises NotYet or IllegalLayout for a job that is not served with transformers' layers under FSDP2.

    What `common/transformers.py` refuses, and of tensor parallelism what no plan does or is not modelled.
    """
    if job.mesh.tp > 1:
        _check_plan(job)
        _check_beside(job, options)
    mixtures.check_exchange(job)
    transformers.check(job, options)


def has_plan(graph: ModelGraph) -> bool:
    """True if ranks may share the matrices of a model: its plan has no other styles, and no mixture ties its head."""
    experts = any(isinstance(branch.block, Moe) for kind in graph.kinds for branch in kind.branches)
    dense = graph.architecture.family in PLAIN and not experts
    mixture = graph.architecture.family in mixtures.FAMILIES and not graph.has_tied_head
    return (dense or mixture) and not graph.architecture.has_tower


def ties_again(job: Job) -> bool:
    """True if a tied head is cut by transformers' plan.

    [Note: tied behind a plan] When `from_pretrained` cuts a model, on the meta device, the head has a parameter of its
    own. transformers 5.23 `distributed/fsdp.py`, _resolve_tied_embed_lm_head_plan: embedding and last norm are one
    unit, which never reshards, and so the head falls to the root. Behind that weights are tied, and FSDP2 finds one
    parameter in both modules (torch 2.13 `_fsdp_param.py`, reset_sharded_param): it rests once, and is gathered and
    reduced twice.
    """
    return job.mesh.tp > 1 and job.graph.implementation == "hf" and job.graph.has_tied_head


def _check_plan(job: Job) -> None:
    tp, family = job.mesh.tp, job.graph.architecture.family
    served = tuple(sorted((*PLAIN, *mixtures.FAMILIES)))
    if family not in served or job.graph.architecture.has_tower:
        raise job.not_yet("mesh.tp", f"transformers' plan of tensor parallelism for {family} (served: "
                          f"{', '.join(served)}; with implementation: torchtitan and kempnerforge their own plans)")
    mixtures.check_width(job)
    if job.graph.architecture.vocab % tp:
        raise job.not_yet("mesh.tp", f"{job.graph.architecture.vocab} entries of the vocabulary on {tp} ranks, "
                          "unevenly")
    for block in (branch.block for kind in job.graph.kinds for branch in kind.branches):
        if isinstance(block, Attention) and block.num_kv_heads % tp:
            raise job.illegal("mesh.tp", f"{block.num_kv_heads} key and value heads are not cut evenly over {tp} "
                              "ranks, whose view(*input_shape, -1, head_dim) then fails", f"{_PLAN} ColwiseParallel")
        if isinstance(block, Mlp) and block.ffn % tp:
            raise job.not_yet("mesh.tp", f"an MLP of width {block.ffn} on {tp} ranks, unevenly")


def _check_beside(job: Job, options: Mapping[str, Any]) -> None:
    mesh, training = job.mesh, job.scenario.training
    _check_stops(job, options)
    optimizers = optimizers_of("torch", by_matrix=False)
    for key, said, what in (
            ("workload", job.scenario.workload != "train", f"{job.scenario.workload} with transformers' tensor "
             "parallelism (NeMo RL has plans of its own, whose logits stay cut)"),
            ("training.optimizer.name", training.optimizer.name not in optimizers, f"{training.optimizer.name} of "
             "matrices that ranks split"),
            ("mesh.tp", mesh.dp_shard == 1, "transformers' tensor parallelism without shards of FSDP2"),
            ("mesh.ep", mesh.ep > 1 and not mixtures.dispatches(job), "experts that ranks hold whole beside tensor "
             f"parallelism (served with experts: {transformers.DISPATCHED})"),
            ("mesh.cp", mesh.cp > 1, "sequences that verl's exchanges share beside transformers' tensor parallelism"),
            ("framework_options.wrap", ties_again(job) and options.get("wrap", _APART) != _APART, "a tied "
             f"head that ranks split, but in transformers' own units (wrap: {_APART})"),
            ("model", ties_again(job) and job.graph.architecture.vocab % (mesh.tp * mesh.dp_shard) != 0,
             f"a tied head of {job.graph.architecture.vocab} rows over tp {mesh.tp} that dp_shard {mesh.dp_shard} "
             "pads"),
            ("training.lengths", training.lengths == "packed" and job.has_experts, "packed sequences of mixtures "
             "beside transformers' tensor parallelism"),
            ("training.loss", training.loss not in _LOSSES, f"{training.loss} of a head that tensor parallelism "
             "splits"),
            ("model", any(kind.dropout for kind in job.graph.kinds) or any(
                isinstance(branch.block, Attention) and branch.block.dropout for kind in job.graph.kinds
                for branch in kind.branches), "dropout in layers that tensor parallelism splits"),
            ("training.offload", training.offload.part("params")[1] > 0, "parameters on the host that ranks split"),
            ("framework_options.compile", bool(options.get("compile")), "compiled layers that ranks split"),
            ("framework_options.use_liger_kernel", bool(options.get("use_liger_kernel")), "Liger's kernels in layers "
             "that ranks split")):
        if said:
            raise job.not_yet(key, what)


def _check_stops(job: Job, options: Mapping[str, Any]) -> None:
    """Raises IllegalLayout for what upstream's own code stops at beside a plan (`tests/truth/draw_hf_tp_beside.py`).

    [Note: adapters beside a plan] `from_pretrained` cuts a model over tp and FSDP2 before PEFT sees it. An adapter then
    has the sizes of what the rank has of the weight, by both cuts (`_get_in_out_features`), or, where inputs are split,
    says the rank's number of inputs to a style that asks for all of them: its first product raises.
    """
    training, split = job.scenario.training, "beside transformers' tensor parallelism and FSDP2"
    if training.method == "lora":
        raise job.illegal("training.method", f"adapters {split}: PEFT makes them as large as a rank's part of a "
                          "weight, and the first product raises: shape '[...]' is invalid for input of size ...",
                          "PEFT 0.21.2 tuners/tuners_utils.py:186 _get_in_out_features")
    if training.method == "qlora":
        raise job.illegal("training.method", f"adapters of weights in 4 bits {split}: 'DTensor' object has no "
                          "attribute 'compress_statistics'", "PEFT 0.21.2 tuners/lora/bnb.py:585 dispatch_bnb_4bit")
    if job.mesh.cp > 1 and options.get("attn_implementation") != "flash_attention_2":
        raise job.illegal("mesh.cp", f"context parallelism {split}, which accelerate alone would make: cannot import "
                          "name 'ReplicateParallel' from 'transformers.integrations.tensor_parallel' (transformers "
                          "5.23.0)", "accelerate 1.15.0 accelerator.py:1618 _prepare_tp")


def tp_layout(spec: TensorSpec) -> Placements:
    """Returns how transformers' plan cuts a tensor over tp, as (mesh axis, placement) pairs; empty if it is whole.

    Weights are [out, in]: colwise ones, the embedding and the head are cut on rows (dimension 0), with their biases,
    rowwise ones on columns (1), and their biases are whole. Experts are cut by their width.
    """
    if spec.component == "routed_experts":
        return (("tp", Shard(spec.dims.index("expert_ffn"), even=True)),)
    if spec.is_buffer or spec.module == "norm" or mixtures.is_whole(spec):
        return ()
    if spec.path.endswith(_ROWS):
        return () if len(spec.shape) == 1 else (("tp", Shard(1, even=True)),)
    return (("tp", Shard(0, even=True)),)


def layer_options(job: Draft, options: dict[str, Any]) -> HfOptions:
    """Returns the settings of transformers' layers for a job (`HfOptions`), with their defaults.

    Where the trainer waits for the last microbatch to reduce, an embedding's gradient stays whole until then: torch
    2.13 `_fsdp_param.py`, unsharded_grad_data, redistributes it, and is called when gradients are reduced.
    """
    waits = job.scenario.num_microbatches > 1 and options.get("sync_gradients", "last") == "last"
    given = mixtures.grouped(job, options)
    return replace(transformers.options_of(job, given), keeps_rows=job.mesh.tp > 1 and waits)


HF_TRAINER: Final[Trainer] = replace(
    transformers.TRAINER, check=check, tp_layout=tp_layout, layer_options=layer_options,
    options=transformers.OPTIONS | {REFERENCE_OPTION: ("fp32", "bf16")}, experts_axes=mixtures.experts_axes,
    cut_late=lambda spec: spec.module == "embedding",
    defaults=replace(transformers.DEFAULTS, splits_stream=False))
