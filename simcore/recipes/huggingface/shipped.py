"""DeepSpeed's configurations that come with a trainer: a recipe names one by its path, and has no copy of it.

Values are those of axolotl 067b021c `deepspeed_configs/` (also in `deepspeed/`, as older releases had it) and of
LLaMA-Factory ff6d4d12 `examples/deepspeed/`. A file of that name beside the recipe goes before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

from simcore.inputs.document import Document
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.companions import Companions
from simcore.recipes.huggingface.deepspeed import check_named
from simcore.recipes.reader import Reader, Taken

__all__ = ["AXOLOTL", "LLAMA_FACTORY", "Shipped", "own_files", "with_own"]

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shipped:
    """Files of one trainer: `release`, its folder of them, other folders of that name (none: any), files by name."""

    release: str
    folder: str
    older: tuple[str, ...]
    files: Mapping[str, Config]

    def named(self, path: str) -> Document | None:
        """The configuration that a recipe's path means; None if the trainer has none of that name there."""
        name, parent = PurePosixPath(path).name, PurePosixPath(path).parent.name
        folders = (PurePosixPath(self.folder).name, *self.older)
        if name not in self.files or (self.older and parent not in folders):
            return None
        return Document(f"{self.release} {self.folder}/{name}", {**self.files[name]})


_SIZES: Final = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                               "gradient_clipping"), "auto")
_SCALING: Final = {"loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}
_HOST: Final = {"device": "cpu", "pin_memory": True}
_FILLED: Final = dict.fromkeys(("reduce_bucket_size", "stage3_prefetch_bucket_size",
                                "stage3_param_persistence_threshold"), "auto")


def _of_axolotl(zero: Config, *, bf16: Any = "auto", **more: Any) -> Config:
    half = {"fp16": {"enabled": "auto", "auto_cast": False, "initial_scale_power": 32, **_SCALING}}
    return {"zero_optimization": zero, "bf16": {"enabled": bf16}, **(half if bf16 == "auto" else {}), **more, **_SIZES,
            "wall_clock_breakdown": False}


def _of_factory(zero: Config, **more: Any) -> Config:
    return {**_SIZES, "zero_allow_untested_optimizer": True, "fp16": {
        "enabled": "auto", "initial_scale_power": 16, **_SCALING}, "bf16": {"enabled": "auto"},
        "zero_optimization": zero, **more}


_FIRST: Final = {"stage": 1, "overlap_comm": True}
_SECOND: Final = {"stage": 2, "offload_optimizer": {"device": "cpu"}, "contiguous_gradients": True,
                  "overlap_comm": True}
_THIRD: Final = {"stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 0, **_FILLED,
                 "max_live_parameters": 0, "max_reuse_distance": 0, "gather_16bit_weights_on_model_save": True}
_COMPILE: Final = {"disable": False, "backend": "inductor"}
_UNTESTED: Final = {"zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
AXOLOTL: Final = Shipped("axolotl 067b021c", "deepspeed_configs", ("deepspeed",), {
    "zero1.json": _of_axolotl(_FIRST),
    "zero1_torch_compile.json": _of_axolotl(_FIRST, compile=_COMPILE),
    "zero2.json": _of_axolotl(_SECOND),
    "zero2_torch_compile.json": _of_axolotl(_SECOND, compile=_COMPILE),
    "zero3.json": _of_axolotl(_THIRD),
    "zero3_bf16.json": _of_axolotl(_THIRD, bf16=True),
    "zero3_bf16_cpuoffload_all.json": _of_axolotl(
        {**_THIRD, "offload_optimizer": _HOST, "offload_param": _HOST}, bf16=True, **_UNTESTED),
    "zero3_bf16_cpuoffload_params.json": _of_axolotl({**_THIRD, "offload_param": _HOST}, bf16=True, **_UNTESTED),
})
_GRADIENTS: Final = {"allgather_partitions": True, "allgather_bucket_size": 5e8, "overlap_comm": False,
                     "reduce_scatter": True, "reduce_bucket_size": 5e8, "contiguous_gradients": True,
                     "round_robin_gradients": True}
_WHOLE: Final = {"stage": 3, "overlap_comm": False, "contiguous_gradients": True, "sub_group_size": 1e9, **_FILLED,
                 "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
                 "stage3_gather_16bit_weights_on_model_save": True}
LLAMA_FACTORY: Final = Shipped("LLaMA-Factory ff6d4d12", "examples/deepspeed", (), {
    "ds_z0_config.json": _of_factory({"stage": 0, **_GRADIENTS}),
    "ds_z2_config.json": _of_factory({"stage": 2, **_GRADIENTS}),
    "ds_z2_autotp_config.json": _of_factory({"stage": 2, **_GRADIENTS}, tensor_parallel={"autotp_size": 2}),
    "ds_z2_offload_config.json": _of_factory({"stage": 2, "offload_optimizer": _HOST, **_GRADIENTS}),
    "ds_z3_config.json": _of_factory(_WHOLE),
    "ds_z3_offload_config.json": _of_factory({**_WHOLE, "offload_optimizer": _HOST, "offload_param": _HOST}),
})


def with_own(beside: Companions, reader: Reader, shipped: Shipped) -> Companions:
    """Files beside a recipe, with the trainer's own configuration that its key `deepspeed` names, if none is given."""
    named = reader.look("deepspeed")
    document = shipped.named(named) if isinstance(named, str) and beside.deepspeed is None else None
    return beside if document is None else replace(beside, deepspeed=Reader(document))


def own_files(draft: Draft, named: Taken[str] | None, file: Reader) -> None:
    """Tells which file is read for the one that a recipe names: one that is given, or the trainer's own."""
    if any(file.document.path.startswith(f"{one.release} ") for one in (AXOLOTL, LLAMA_FACTORY)):
        draft.unmodelled(named, f"read as the trainer's own file of that name ({file.document.path}): name yours by "
                                "--with if it is another")
        return
    draft.use(named, why="names the file that stands beside the recipe")
    check_named(draft, named, file)
