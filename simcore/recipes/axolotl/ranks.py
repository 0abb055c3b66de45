"""Number of ranks of an axolotl recipe, where the recipe says it: workers of Ray, which have a GPU each."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Says, read_rows

__all__ = ["read_ranks"]

_SOURCE: Final = "axolotl 067b021c cli/train.py do_cli: ray_num_workers, 1 if it is not said"


def read_ranks(reader: Reader, draft: Draft) -> Draft:
    """The draft with the number of Ray's workers, which must be that of `--gpus`."""
    ray, workers = reader.flag("use_ray"), reader.integer("ray_num_workers")
    read_rows(reader, draft, [Says("resources_per_worker.GPU", "", "number", {None: None}, {1: "one GPU a rank"},
                                   "GPUs of a worker:")])
    if ray is None or not ray.value:
        draft.idle([one for one in (ray, workers) if one is not None], "read with use_ray alone")
        return draft
    draft.use(ray, workers, why="Ray starts as many ranks as it has workers")
    said = Answer(workers.value if workers else 1, workers.where if workers else ray.where)
    answer = draft.answers.gpus
    if answer is not None and answer.value != said.value:
        draft.fail(answer.where, f"Ray starts {said.value} ranks: {workers.key if workers else ray.key} ({said.where}; "
                                 f"{_SOURCE})")
    return replace(draft, answers=replace(draft.answers, gpus=answer or said))
