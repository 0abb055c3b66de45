"""Adapter of torch's DistributedDataParallel."""

from __future__ import annotations

from simcore.frameworks.adapter import FrameworkAdapter
from simcore.frameworks.common.expert_modules import LAYERS
from simcore.frameworks.common.lora import name_adapters, peft_dropout
from simcore.frameworks.ddp.hooks import DdpHooks
from simcore.frameworks.ddp.table import CAPABILITIES, VERSIONS, options_around, table
from simcore.frameworks.summons import Summons

__all__ = ["ADAPTERS"]

ADAPTERS = {"ddp": FrameworkAdapter(
    write_table=table, hooks=DdpHooks, lora_tensors=name_adapters, takes_pattern=True,
    lora_dropout=peft_dropout, versions=VERSIONS,
    implementations=tuple(LAYERS), implementation_of=lambda family, method: "hf",
    options=options_around,
    serves_qlora=True, saves_modules=("hf",), reads_images=True, replays_towers=True,
    rests_towers=True, summons=Summons(gathers=False),
    axes=lambda graph: CAPABILITIES.axes,
)}
