"""Ranks of a job: the data-parallel degree that follows from the number of GPUs and the other degrees."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Taken

__all__ = ["share_out"]


def share_out(draft: Draft, gpus: Answer, degrees: Mapping[str, Taken[int] | None], key: str, rule: str,
              source: str) -> int | None:
    """Writes the degree `key` as GPUs over the product of `degrees`, and returns it.

    `degrees`: by their names in the recipe, 1 where it leaves them out. A number of GPUs that they do not divide is a
    problem of the draft, and None is returned.
    """
    others = {name: one.value if one else 1 for name, one in degrees.items()}
    product = prod(others.values())
    shown = " x ".join(f"{name} {size}" for name, size in others.items())
    if product < 1 or gpus.value % product:
        draft.fail(gpus.where, f"{gpus.value} GPUs are no multiple of {shown} = {product} ({source})")
        return None
    shares = f"{rule}: {gpus.value} / ({shown})" if others else rule
    draft.infer(key, gpus.value // product, shares, *degrees.values(), source=source, where=gpus.where)
    return int(gpus.value // product)
