"""Adapter of Megatron-FSDP: Megatron's layers with parameters in sharded flat buckets."""

from __future__ import annotations

from simcore.frameworks.adapter import AtRest, FrameworkAdapter, open_axes
from simcore.frameworks.megatron.lora import adapters, bridge_dropout
from simcore.frameworks.megatron.options import IMPLIED
from simcore.frameworks.megatron.table import QLORA_REFUSAL, default_etp
from simcore.frameworks.megatron_fsdp.buckets import bucket_padding_bytes, exact_in_buckets, registered_pool
from simcore.frameworks.megatron_fsdp.hooks import MegatronFsdpHooks
from simcore.frameworks.megatron_fsdp.table import OPTIONS, VERSIONS, in_fp8, table
from simcore.placement.capabilities import ALL_AXES

__all__ = ["ADAPTERS"]

ADAPTERS = {"megatron_fsdp": FrameworkAdapter(
    write_table=table, hooks=MegatronFsdpHooks, lora_tensors=adapters, lora_dropout=bridge_dropout,
    versions=VERSIONS,
    implementations=("megatron",), implementation_of=lambda family, method: "megatron",
    options=lambda implementation: OPTIONS,
    at_rest=AtRest(exact=exact_in_buckets, padding=bucket_padding_bytes, pools=registered_pool),
    quantize=in_fp8, default_etp=default_etp, qlora_refusal=QLORA_REFUSAL,
    dispatchers={"alltoall": {}}, implied=IMPLIED, foreign=("torchtitan", "verl", "axolotl", "TRL", "DeepSpeed"),
    axes=lambda graph: open_axes(graph, tuple(axis for axis in ALL_AXES if axis != "pp")),
)}
