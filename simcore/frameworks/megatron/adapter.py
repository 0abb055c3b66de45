"""Megatron-Core under Megatron-Bridge as the engine sees it."""

from __future__ import annotations

from simcore.frameworks.adapter import AtRest, FrameworkAdapter, MemoryOption
from simcore.frameworks.megatron.flat_parameters import buffer_padding, exact_at_rest, registered_pools
from simcore.frameworks.megatron.hooks import MEGATRON_HOOKS
from simcore.frameworks.megatron.lora import adapters, bridge_dropout
from simcore.frameworks.megatron.options import DISPATCHERS, IMPLIED, OPTIONS, VERSIONS
from simcore.frameworks.megatron.table import QLORA_REFUSAL, default_etp, in_fp8, table

__all__ = ["ADAPTERS"]

PRECISE = "framework_options.use_precision_aware_optimizer"

ADAPTERS = {"megatron": FrameworkAdapter(
    write_table=table, hooks=MEGATRON_HOOKS, lora_tensors=adapters, lora_dropout=bridge_dropout,
    versions=VERSIONS,
    implementations=("megatron",), implementation_of=lambda family, method: "megatron",
    options=lambda implementation: OPTIONS,
    at_rest=AtRest(exact=exact_at_rest, padding=buffer_padding, pools=registered_pools),
    quantize=in_fp8, default_etp=default_etp, qlora_refusal=QLORA_REFUSAL,
    dispatchers=DISPATCHERS, chunks_loss=True, implied=IMPLIED,
    freezes=("megatron",), reads_images=True, trains_towers=True,
    copies_tied_head=True,  # the last stage's copy of the embedding: core 0.16.1 language_module.py:167
    foreign=("Automodel", "torchtitan", "axolotl", "TRL", "DeepSpeed"),
    memory_options=(
        MemoryOption("formats", {PRECISE: True}),
        MemoryOption("formats", {PRECISE: True, "training.optimizer.moments": "bf16"})),
)}
