"""The YAML of `accelerate launch` by itself, or with the DeepSpeed JSON that it names; the script's part is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from simcore.recipes.alone.deepspeed import write_batches, write_kept_optimizer
from simcore.recipes.alone.open_keys import ask_for_format, ask_for_script
from simcore.recipes.alone.written import OF_ACCELERATE
from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.format import Format
from simcore.recipes.huggingface.accelerate import Launch, read_launch, read_processes
from simcore.recipes.huggingface.companions import companions_of, is_of_accelerate, with_options
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.zero import Zero
from simcore.recipes.imported import Imported
from simcore.recipes.machine import read_machine
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.recipe_file import RecipeFile

__all__ = ["FORMAT"]

_UPCAST: Final = "accelerate 1.15.0 utils/fsdp_utils.py fsdp2_prepare_model: trained parameters are upcast"
_POLICY: Final = "accelerate 1.15.0 utils/dataclasses.py set_mixed_precision: parameters and reductions in one format"


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    file = with_options(files[:1], answers.options)[0]
    reader, draft = Reader(file.document), Draft("accelerate", file.path, answers)
    draft.infer("name", Path(file.path).stem, "the file's name")
    beside = companions_of(files[1:], draft, takes=("deepspeed",))
    draft = read_processes(reader, draft)
    read_machine(draft, None)
    launch = read_launch(reader, draft, beside.deepspeed)
    if not launch.is_refused:
        ask_for_script(draft)
        _write_formats(draft, launch)
        zero = launch.zero or Zero(launch.shards, steps=launch.steps)
        write_batches(draft, zero)
        write_kept_optimizer(draft, zero)
        draft.use(*zero.autos.values(), why="the training script's, which is asked for")
        if any(one.value for one in launch.checkpoints):
            draft.infer("training.recompute", "full", "FSDP checkpoints each layer", *launch.checkpoints)
        else:
            draft.idle(launch.checkpoints, "off")
    return draft.imported([reader, *beside.readers()], loose=loose)


def _write_formats(draft: Draft, launch: Launch) -> None:
    """Format of products, and with FSDP 2 of what is stored and reduced; without mixed precision it is asked."""
    mixed: Taken[Any] | None = launch.mixed
    zero = launch.zero
    if zero is not None and zero.compute:
        draft.idle(mixed, "DeepSpeed's configuration decides")
        return
    left = zero.formats if zero is not None else ()
    name = "no" if mixed is None else str(mixed.value).lower()
    if name not in ("bf16", "fp16"):
        draft.use(mixed, *left, why="no mixed precision: the format is the training script's")
        ask_for_format(draft)
        said = draft.answers.settings.get("training.precision.compute")
        if said is not None and launch.shards in (Shards.FLAT, Shards.EACH):
            draft.infer("training.precision.params", said, "nothing is upcast without mixed precision", mixed)
        return
    draft.infer("training.precision.compute", name, "mixed precision", mixed, *left)
    if launch.shards is Shards.EACH:
        draft.infer("training.precision.params", "fp32", "mixed precision", mixed, source=_UPCAST)
        draft.infer("training.precision.grad_reduce", name, "mixed precision", mixed, source=_POLICY)


FORMAT: Final = Format("accelerate", "accelerate YAML", is_of_accelerate, _read, OF_ACCELERATE,
                       takes_launcher=True)
