"""NeMo Automodel as the engine sees it: FSDP2's hooks around its own layers."""

from __future__ import annotations

from simcore.frameworks.adapter import FrameworkAdapter, MemoryOption, open_axes
from simcore.frameworks.automodel.checks import SPARSE_CLASSES
from simcore.frameworks.automodel.families import implementation_of
from simcore.frameworks.automodel.lora import adapters, automodel_dropout
from simcore.frameworks.automodel.table import OPTIONS, VERSIONS, table
from simcore.frameworks.automodel.te_fp8 import in_fp8
from simcore.frameworks.fsdp2.hooks import FSDP2_HOOKS
from simcore.models.placed_blocks import MoonPatches, PlacedPatches
from simcore.models.vision_blocks import GridPatches
from simcore.placement.capabilities import ALL_AXES

__all__ = ["ADAPTERS"]

ADAPTERS = {"automodel": FrameworkAdapter(
    write_table=table, hooks=FSDP2_HOOKS, lora_tensors=adapters, lora_dropout=automodel_dropout, versions=VERSIONS,
    implementations=("automodel", "hf", "hub"), implementation_of=implementation_of,
    options=lambda implementation: OPTIONS,
    quantize=lambda job: in_fp8(job, job.options(OPTIONS)), serves_qlora=True,
    freezes=("hf", "automodel"), reads_images=True, rests_towers=True, freezes_at_rest=True,
    packs_images=True, scores_images=True, trained_fronts=(PlacedPatches, GridPatches, MoonPatches),
    of_stages=("local_batch_size",),
    foreign=("Megatron-", "torchtitan", "verl", "axolotl", "TRL", "the Hugging Face Trainer", "DeepSpeed"),
    axes=lambda graph: ALL_AXES if graph.architecture.decoder in SPARSE_CLASSES else open_axes(graph),
    dispatchers={name: {"dispatcher": name} for name in OPTIONS["dispatcher"]},
    memory_options=(
        MemoryOption("reshard", {"framework_options.moe.reshard_after_forward": True}),
        MemoryOption("reshard", {"framework_options.reshard_after_forward": True}),
        MemoryOption("reshard", {"framework_options.enable_fsdp_optimizations": False}),
        MemoryOption("sync", {"framework_options.defer_fsdp_grad_sync": False})),
)}
