"""Adapter of torch's DistributedDataParallel."""

from __future__ import annotations

from simcore.frameworks.adapter import FrameworkAdapter
from simcore.frameworks.common.lora import name_adapters, peft_dropout
from simcore.frameworks.ddp.hooks import DdpHooks
from simcore.frameworks.ddp.table import OPTIONS, VERSIONS, table

__all__ = ["ADAPTERS"]

ADAPTERS = {"ddp": FrameworkAdapter(
    write_table=table, hooks=DdpHooks, lora_tensors=name_adapters, lora_dropout=peft_dropout,
    versions=VERSIONS,
    implementations=("hf",), implementation_of=lambda family, method: "hf",
    options=lambda implementation: OPTIONS,
    serves_qlora=True,
)}
