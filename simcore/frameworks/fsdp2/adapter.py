"""torch's `fully_shard` as the engine sees it."""

from __future__ import annotations

from simcore.frameworks.adapter import FrameworkAdapter
from simcore.frameworks.common.lora import name_adapters
from simcore.frameworks.fsdp2.hooks import Fsdp2Hooks
from simcore.frameworks.fsdp2.table import VERSIONS, in_fp8, table
from simcore.frameworks.fsdp2.trainers import TRAINERS

__all__ = ["ADAPTERS"]

ADAPTERS = {"fsdp2": FrameworkAdapter(
    table=table, hooks=Fsdp2Hooks, lora_tensors=name_adapters, versions=VERSIONS,
    implementations=tuple(TRAINERS), implementation_of=lambda family, method: "hf",
    options=lambda implementation: TRAINERS[implementation].options,
    in_low_precision=in_fp8, serves_qlora=True, casts_parameters=True,
    freezes=("hf",),  # a unit may have trainable and frozen parameters (torch 2.13 `_fsdp_param_group.py`)
)}
