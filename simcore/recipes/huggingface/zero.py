"""DeepSpeed's configuration as its readers go on with it: a record; batches, which must agree with the trainer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.reader import Reader, Taken

__all__ = ["AUTO", "Zero", "check_numbers", "number_or_auto", "read_whole"]

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Zero:
    """Values of a configuration that its caller goes on with.

    `shards`: ZERO, or NONE if the stage was refused. `compute`: format of products that it fixes, "" if the trainer's
    decides; `formats`: the keys that leave it to the trainer. `micro`, `steps`, `whole`: batch keys that are no `auto`,
    the last where it is not the product of the others. `has_optimizer`: it names its own. `is_whole`: of stage 0.
    `keeps_optimizer`: states are on the host, and the trainer's optimizer is not changed for DeepSpeed's.
    """

    shards: Shards
    compute: str = ""
    formats: tuple[Taken[Any], ...] = ()
    micro: Taken[int] | None = None
    steps: Taken[int] | None = None
    whole: Taken[int] | None = None
    has_optimizer: bool = False
    is_whole: bool = False
    keeps_optimizer: bool = False
    autos: Mapping[str, Taken[Any]] = field(default_factory=dict)


def number_or_auto(reader: Reader, key: str, autos: dict[str, Taken[Any]]) -> Taken[int] | None:
    """A whole number; None for `auto`, which is put into `autos`, and for a key that is missing."""
    if reader.look(key) == AUTO:
        if (found := reader.take(key)) is not None:
            autos[key] = found
        return None
    return reader.integer(key)


def read_whole(reader: Reader, draft: Draft, at: str, micro: Taken[int] | None, steps: Taken[int] | None, *,
               by_mpu: bool = False) -> Taken[int] | None:
    """The step's batch where another number follows from it; else it is compared with them (`runtime/config.py`).

    `by_mpu`: a script's own `mpu` may count ranks that share matrices once.
    """
    key, ranks = f"{at}train_batch_size", draft.answers.gpus
    alike = int(draft.values.get("mesh", {}).get("tp", 1)) if by_mpu else 1
    if reader.look(key) == AUTO:
        draft.idle(reader.take(key), "microbatch x steps x ranks")
        return None
    whole = reader.integer(key)
    if whole is None or micro is None or steps is None:
        return whole
    if ranks is not None and whole.value not in {
            micro.value * steps.value * count for count in (ranks.value, ranks.value // alike)}:
        draft.fail(whole.where, f"{key} {whole.value} is not {micro.value} x {steps.value} x {ranks.value} ranks")
    draft.idle(whole, "microbatch x steps x ranks")
    return None


def check_numbers(draft: Draft, zero: Zero | None, micro: Taken[int] | None, steps: Taken[int] | None, *,
                  micro_default: int = 1) -> None:
    """Compares DeepSpeed's microbatch and steps with the trainer's: they must be equal, or `auto`.

    Rule: transformers 5.23.0 `integrations/deepspeed.py` fill_match. `micro`, `steps`: the trainer's keys, None where
    it takes `micro_default` and one step.
    """
    if zero is None:
        return
    draft.idle(list(zero.autos.values()), "the trainer's")
    _check_whole(draft, zero.whole, (micro.value if micro else micro_default) * (steps.value if steps else 1))
    for other, said, default in ((zero.micro, micro, micro_default), (zero.steps, steps, 1)):
        trainers = said.value if said else default
        if other is not None and other.value != trainers:
            draft.use(other)
            draft.fail(other.where, f"{other.key} is {other.value}, and the trainer's {trainers} (transformers 5.23.0 "
                                    "integrations/deepspeed.py: they must be equal, or auto)")
        else:
            draft.idle(other, "the trainer's")


def _check_whole(draft: Draft, whole: Taken[int] | None, of_rank: int) -> None:
    """Compares a step's batch with the trainer's, of which each rank has `of_rank` sequences."""
    ranks = draft.answers.gpus
    draft.use(whole, why="must be the trainer's microbatch x steps x ranks")
    if whole is not None and ranks is not None and whole.value != of_rank * ranks.value:
        draft.fail(whole.where, f"{whole.key} is {whole.value}, and the trainer's {of_rank} x {ranks.value} ranks "
                                "(transformers 5.23.0 integrations/deepspeed.py: they must be equal, or auto)")
