"""Adapters of the three stages of DeepSpeed's ZeRO, and of DeepSpeed without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from simcore.frameworks.adapter import AtRest, FrameworkAdapter
from simcore.frameworks.common.lora import name_adapters, peft_dropout
from simcore.frameworks.deepspeed.at_rest import (
    exact_in_pieces,
    exact_of_parts,
    mean_of,
    partition_padding,
    piece_padding,
)
from simcore.frameworks.deepspeed.experts.layers import LAYERS
from simcore.frameworks.deepspeed.offload_buffers import beside_tensors
from simcore.frameworks.deepspeed.reference import zero3_hooks
from simcore.frameworks.deepspeed.split.matrices import shares_matrices
from simcore.frameworks.deepspeed.table import VERSIONS, options_of_stage, zero_table
from simcore.frameworks.deepspeed.whole_hooks import WholeHooks
from simcore.frameworks.deepspeed.whole_table import options_around, whole_table
from simcore.frameworks.deepspeed.zero12_hooks import Zero12Hooks
from simcore.frameworks.summons import Summons
from simcore.models.graph import ModelGraph

__all__ = ["ADAPTERS"]

_FOREIGN = ("Automodel", "Megatron-", "torchtitan")


def _tp(graph: ModelGraph) -> tuple[str, ...]:
    return ("tp",) if shares_matrices(graph) else ()


def _axes_of(ranks: str) -> Callable[[ModelGraph], tuple[str, ...]]:
    """Axes that the search may use: expert parallelism with DeepSpeed's experts alone."""
    return lambda graph: (
        (ranks, "ep") if graph.implementation == "autoep" else (ranks, "cp", *_tp(graph)))


_COPIED = Summons(gathers=False, sleeps="states", engines=True)
"""Summons of stages 1 and 2: parameters are whole, states of the optimizer may leave."""
_ZERO3 = FrameworkAdapter(
    write_table=partial(zero_table, stage=3), hooks=zero3_hooks, lora_tensors=name_adapters, takes_pattern=True,
    lora_dropout=peft_dropout, versions=VERSIONS, reads_images=True, replays_towers=True,
    implementations=tuple(LAYERS), implementation_of=lambda family, method: "hf",
    options=partial(options_of_stage, 3),
    at_rest=AtRest(mean=mean_of, exact=exact_in_pieces, padding=piece_padding),
    serves_qlora=True, host_buffers=beside_tensors, foreign=_FOREIGN,
    summons=Summons(whole_as="ddp", sleeps="all", engines=True),
    axes=_axes_of("dp_shard"),  # copies of shards are refused under each stage: `table.py`
)
_PARTITIONED = AtRest(mean=mean_of, exact=exact_of_parts, padding=partition_padding)
ADAPTERS = {
    "zero0": FrameworkAdapter(
        write_table=whole_table, hooks=WholeHooks, lora_tensors=name_adapters, takes_pattern=True,
        lora_dropout=peft_dropout, reads_images=True, replays_towers=True,
        versions=VERSIONS, implementations=tuple(LAYERS), implementation_of=lambda family, method: "hf",
        options=options_around, serves_qlora=True, foreign=_FOREIGN, summons=Summons(gathers=False, engines=True),
        axes=_axes_of("dp_replicate")),
    "zero1": replace(_ZERO3, write_table=partial(zero_table, stage=1), hooks=Zero12Hooks, at_rest=_PARTITIONED,
                     options=partial(options_of_stage, 1), summons=_COPIED),
    "zero2": replace(_ZERO3, write_table=partial(zero_table, stage=2), hooks=Zero12Hooks, at_rest=_PARTITIONED,
                     options=partial(options_of_stage, 2), summons=_COPIED),
    "zero3": _ZERO3,
}
