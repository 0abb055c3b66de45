"""torch's `fully_shard` as the engine sees it."""

from __future__ import annotations

from simcore.frameworks.adapter import FrameworkAdapter, MemoryOption, open_axes
from simcore.frameworks.common.lora import name_adapters, peft_dropout
from simcore.frameworks.fsdp2.checks import axes_of
from simcore.frameworks.fsdp2.hooks import FSDP2_HOOKS
from simcore.frameworks.fsdp2.table import VERSIONS, in_fp8, table
from simcore.frameworks.fsdp2.trainers import TRAINERS
from simcore.frameworks.summons import Summons

__all__ = ["ADAPTERS"]

ADAPTERS = {"fsdp2": FrameworkAdapter(
    write_table=table, hooks=FSDP2_HOOKS, lora_tensors=name_adapters, takes_pattern=True, lora_dropout=peft_dropout,
    versions=VERSIONS,
    implementations=tuple(TRAINERS), implementation_of=lambda family, method: "hf",
    options=lambda implementation: TRAINERS[implementation].options,
    unadapted=("kempnerforge", "torchtitan"), quantize=in_fp8, serves_qlora=True, casts_parameters=True,
    reads_images=True, rests_towers=True, replays_towers=True, summons=Summons(one_unit=True, placed_late=True),
    verl_wraps=("hf",),
    freezes=("hf",),  # a unit may have trainable and frozen parameters (torch 2.13 `_fsdp_param_group.py`)
    axes=lambda graph: open_axes(graph, axes_of(graph)),
    dispatchers={"alltoall": {}},  # rows are exchanged by NCCL's all-to-all: `operators/hf/moe.py`
    memory_options=(
        MemoryOption("reshard", {"framework_options.reshard_after_forward": True}),
        MemoryOption("reshard", {"framework_options.set_last_reshard": True}),
        MemoryOption("units", {"framework_options.wrap": "separate_embedding_head"}),
        MemoryOption("sync", {"framework_options.sync_gradients": "every"})),
)}
