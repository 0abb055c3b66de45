"""DeepSpeed's JSON by itself: model, lengths and what is `auto` are asked, for they are the training script's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simcore.recipes.alone.open_keys import ask_for_batch, ask_for_format, ask_for_script
from simcore.recipes.alone.written import OF_DEEPSPEED
from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.format import Format
from simcore.recipes.huggingface.companions import companions_of, is_of_deepspeed
from simcore.recipes.huggingface.deepspeed import read_deepspeed, shard_over_ranks
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.zero import Zero
from simcore.recipes.imported import Imported
from simcore.recipes.machine import read_machine
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.recipe_file import RecipeFile

__all__ = ["FORMAT", "write_batches", "write_kept_optimizer"]

_STEP: Final = "deepspeed 0.19.6 runtime/config.py: train_batch_size is the product of the others"


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    file = files[0]
    reader, draft = Reader(file.document), Draft("deepspeed", file.path, answers)
    draft.infer("name", Path(file.path).stem, "the file's name")
    read_machine(draft, None)
    ask_for_script(draft)
    zero = read_deepspeed(reader, draft, is_alone=True)
    if zero.shards is Shards.ZERO:
        shard_over_ranks(draft, whole=zero.is_whole)
        if zero.whole is not None and _alike(draft) > 1:
            _ask_for_shared(draft, zero, zero.whole)
        else:
            write_batches(draft, zero)
        write_kept_optimizer(draft, zero)
        draft.use(*zero.formats, *zero.autos.values(), why="the training script's, which is asked for")
        if not zero.compute:
            ask_for_format(draft)
    companions_of(files[1:], draft, takes=())
    return draft.imported([reader], loose=loose)


def write_kept_optimizer(draft: Draft, zero: Zero) -> None:
    """Writes that states on the host have the script's optimizer: torch's fused one, as transformers' Trainer has."""
    if zero.keeps_optimizer:
        draft.default("training.optimizer.implementation", "fused", "transformers 5.23.0",
                      "training_args.py: adamw_torch_fused")


def _ask_for_shared(draft: Draft, zero: Zero, whole: Taken[int]) -> None:
    """Asks for the step's batch where ranks share matrices: all ranks divide it, or those that share them once.

    The latter if the script hands `deepspeed.initialize` an `mpu` (0.19.6 `runtime/config.py`:711).
    """
    gpus, micro, steps, key = draft.answers.gpus, zero.micro, zero.steps, "training.global_batch_size"
    answer, alike = draft.answers.settings.get(key), _alike(draft)
    draft.ask(key, f"--set {key}=N", f"sequences of a step: {whole.key} {whole.value} counts every rank "
              f"({whole.value // alike}), or ranks that share matrices once if the script hands an mpu to "
              f"deepspeed.initialize ({whole.value})", whole)
    if micro is not None:
        draft.put("training.micro_batch_size", micro)
    elif isinstance(answer, int) and gpus is not None:
        ranks = gpus.value // alike
        draft.infer("training.micro_batch_size", answer // ranks // (steps.value if steps else 1),
                    f"{key} over {ranks} ranks and their steps", steps, source=_STEP)
    draft.use(steps, why="of a step whose size is asked for")


def write_batches(draft: Draft, zero: Zero) -> None:
    """Writes the microbatch and the step as the configuration says them; what is `auto` is asked or one microbatch."""
    if zero.whole is not None:
        _write_whole(draft, zero, zero.whole)
        return
    if zero.micro is not None:
        draft.put("training.micro_batch_size", zero.micro)
    else:
        ask_for_batch(draft)
    if zero.steps is None:
        return
    micro = zero.micro.value if zero.micro else draft.answers.settings.get("training.micro_batch_size")
    gpus = draft.answers.gpus
    if isinstance(micro, int) and gpus is not None:
        ranks = gpus.value // _alike(draft)
        draft.infer("training.global_batch_size", micro * zero.steps.value * ranks,
                    f"{micro} x {zero.steps.key} x {ranks} ranks", zero.steps, source=_STEP)
    else:
        draft.use(zero.steps, why="microbatches of a step, whose size and ranks are asked for")


def _alike(draft: Draft) -> int:
    """Ranks that get the same sequences, because they share matrices; DeepSpeed's batch counts each of them."""
    return int(draft.values.get("mesh", {}).get("tp", 1))


def _write_whole(draft: Draft, zero: Zero, whole: Taken[int]) -> None:
    """Writes what follows from the step's batch: the steps of a microbatch that is said, or the microbatch."""
    gpus, micro, steps = draft.answers.gpus, zero.micro, zero.steps
    if _alike(draft) > 1:
        draft.infer("training.global_batch_size", whole.value // _alike(draft), f"{whole.key} counts every rank, of "
                    f"which {_alike(draft)} get the same sequences", whole, source=_STEP)
    else:
        draft.put("training.global_batch_size", whole)
    if gpus is None:
        draft.use(micro, steps, why="of a step that so many ranks share as are asked for")
        return
    if micro is None:
        each = whole.value // gpus.value // (steps.value if steps else 1)
        draft.infer("training.micro_batch_size", each, f"{whole.key} over {gpus.value} ranks and their steps", whole,
                    steps, source=_STEP)
    else:
        each = micro.value
        draft.put("training.micro_batch_size", micro)
    parts = each * (steps.value if steps else 1) * gpus.value
    if each < 1 or whole.value % parts:
        draft.fail(whole.where, f"{whole.key} {whole.value} is no multiple of {gpus.value} ranks x their sequences "
                                "(deepspeed 0.19.6 runtime/config.py _batch_assertion)")


FORMAT: Final = Format("deepspeed", "DeepSpeed JSON", is_of_deepspeed, _read, OF_DEEPSPEED)
