"""Adapter of torch's FullyShardedDataParallel."""

from __future__ import annotations

from simcore.frameworks.adapter import AtRest, FrameworkAdapter, MemoryOption
from simcore.frameworks.common.lora import name_adapters, peft_dropout
from simcore.frameworks.common.qlora import STORAGE_OPTION
from simcore.frameworks.fsdp1.flat_parameters import exact_in_units, mean_in_units, unit_padding_bytes
from simcore.frameworks.fsdp1.hooks import Fsdp1Hooks
from simcore.frameworks.fsdp1.table import ADAPTED, CAPABILITIES, OPTIONS, TRAINERS, VERSIONS, in_fp8, table
from simcore.frameworks.summons import Summons
from simcore.models.vision_blocks import GridPatches

__all__ = ["ADAPTERS"]

ADAPTERS = {"fsdp1": FrameworkAdapter(
    write_table=table, hooks=Fsdp1Hooks, lora_tensors=name_adapters, takes_pattern=True, lora_dropout=peft_dropout,
    versions=VERSIONS,
    implementations=tuple(TRAINERS), implementation_of=lambda family, method: "hf",
    options=lambda implementation: TRAINERS[implementation].options if implementation in TRAINERS else OPTIONS,
    at_rest=AtRest(mean=mean_in_units, exact=exact_in_units, padding=unit_padding_bytes),
    quantize=in_fp8, casts_parameters=True, serves_qlora=True,
    reads_images=True, replays_towers=True, trained_fronts=(GridPatches,), scores_images=True,
    summons=Summons(by_unit=True, placed_late=True),
    axes=lambda graph: CAPABILITIES.axes,
    memory_options=(MemoryOption("sync", {"framework_options.sync_gradients": "every"}),),
    needs={"lora": ADAPTED, "qlora": {**ADAPTED, STORAGE_OPTION: "bfloat16"}},
)}
