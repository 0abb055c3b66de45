"""Sequences that ranks share under FSDP2 by torch's ring attention, as accelerate and transformers' Trainer have it.

accelerate 1.15.0 `parallelism_config.py` (cp_size, dp_shard_cp: FSDP2 cuts over these ranks too), `accelerator.py`
_prepare_cp; transformers 5.23 `trainer.py`, _prepare_context_parallel_inputs; torch 2.13
`distributed/tensor/experimental/_context_parallel/_attention.py`. Keys and values are gathered by `cp_comm_strategy:
allgather`, the default; tokens are balanced from head and tail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.common import kernels
from simcore.frameworks.fsdp2.split.ulysses import check_split
from simcore.models.blocks import Attention, Mlp, Moe
from simcore.models.graph import ModelGraph
from simcore.operators.hf.chunked import LM_HEAD
from simcore.operators.hf.options import HfOptions
from simcore.operators.shared.aten import WIDEST
from simcore.placement.job import Draft, Job

__all__ = ["check_context", "ringed", "shares_sequences"]

_HOOKS: Final = "accelerate 1.15.0 big_modeling.py _attach_context_parallel_hooks"
_TRAINER: Final = "transformers 5.23 trainer.py _prepare_context_parallel_inputs"
_LOSSES: Final = ("auto", "hf", "hf_keep_logits", "cut", LM_HEAD)


def check_context(job: Job, options: Mapping[str, Any]) -> None:
    """Raises IllegalLayout or NotYet for sequences that ranks cannot share, by verl's exchanges or accelerate's ring.

    The latter but for `attn_implementation: flash_attention_2`.
    """
    given = options.get("attn_implementation")
    if given == "flash_attention_2":
        check_split(job, options)
        return
    if given not in (None, "sdpa"):
        raise job.illegal("framework_options.attn_implementation", "Context parallelism is supported only with SDPA "
                          f"attention, you are using {given}", _TRAINER)
    _check_layers(job, options)
    _check_training(job)


def shares_sequences(graph: ModelGraph) -> bool:
    """True if ranks may share sequences of a model: attention and MLPs alone, without windows, sinks and a tower."""
    blocks = [branch.block for kind in graph.kinds for branch in kind.branches]
    return not graph.architecture.has_tower and all(isinstance(block, Mlp | Moe) or (
        isinstance(block, Attention) and not (block.window or block.sinks or block.two_way)) for block in blocks)


def _check_layers(job: Job, options: Mapping[str, Any]) -> None:
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    if any(not isinstance(block, Attention | Mlp | Moe) for block in blocks) or job.graph.architecture.has_tower:
        raise job.not_yet("mesh.cp", "sequences that ranks share through other layers than attention and MLPs")
    for block in (block for block in blocks if isinstance(block, Attention)):
        if block.window:
            raise job.illegal("mesh.cp", "Context parallelism does not support attention layers of type "
                              "['sliding_attention']", _HOOKS)
        if block.sinks or block.dropout or block.two_way or block.head_dim > WIDEST:
            raise job.not_yet("mesh.cp", f"ring attention with sinks, dropout, both ways, or heads wider than {WIDEST}")
    if kernels.runs_math(job, options):
        raise job.not_yet("mesh.cp", "attention of plain operators over sequences that ranks share (torch's ring is of "
                          "kernels alone, which take grouped heads in 16 bits)")
    for name in ("compile", "use_liger_kernel"):
        if options.get(name):
            raise job.not_yet(f"framework_options.{name}", "kernels of that kind beside accelerate's context "
                              "parallelism")


def _check_training(job: Job) -> None:
    training, ranks = job.scenario.training, job.mesh.cp
    if job.scenario.workload != "train":
        raise job.not_yet("workload", f"{job.scenario.workload} with accelerate's context parallelism (NeMo RL has a "
                          "context of its own)")
    if job.mesh.dp_shard == 1 and job.mesh.dp_replicate > 1:
        raise job.illegal("mesh.cp", "Tensor/Context parallelism (tp/cp_size > 1) cannot be used with pure data "
                          "parallelism (dp_replicate_size > 1 and dp_shard_size == 1)",
                          "accelerate 1.15.0 parallelism_config.py:336")
    if training.seq_len % (2 * ranks):
        raise job.not_yet("training.seq_len", f"{training.seq_len} over cp {ranks}, which torch shares without a "
                          f"balance of head and tail (served: multiples of {2 * ranks})")
    if training.lengths == "packed":
        raise job.illegal("training.lengths", "Packing is not compatible with context parallelism (`cp_size > 1`)",
                          "TRL 1.16.0 trainer/sft_trainer.py SFTTrainer.__init__")
    if training.loss not in _LOSSES:
        raise job.not_yet("training.loss", f"{training.loss} beside accelerate's context parallelism (served: "
                          f"{', '.join(_LOSSES)})")


def ringed(job: Draft, options: HfOptions) -> HfOptions:
    """Returns settings of layers with torch's ring as attention, where ranks share sequences and run SDPA."""
    if job.mesh.cp == 1 or options.attn_implementation != "sdpa":
        return options
    job.note("context parallel attention", "keys and values all-gathered, balanced from head and tail",
             "accelerate 1.15.0 utils/dataclasses.py cp_comm_strategy; torch 2.13 _cp_options.enable_load_balance")
    return replace(options, sequences="ring")
