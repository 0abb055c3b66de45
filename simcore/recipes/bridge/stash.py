"""Capacity of an expert rank and the paged stash in Megatron-Bridge's configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.outline import Outline
from simcore.recipes.reader import Reader

__all__ = ["read_stash", "wanted_stash"]

_OPTION: Final = "framework_options."
_CAPACITY: Final = "moe_expert_rank_capacity_factor"
_STASH: Final = "moe_paged_stash"
_PAGE: Final = f"{_STASH}_page_size"
_FACTORS: Final = {f"{_STASH}_buffer_size_factor_cuda": 1.1, f"{_STASH}_buffer_size_factor_cpu": 0.0}
"""Defaults of Megatron-LM main (2026-08-22) transformer/transformer_config.py."""


def read_stash(reader: Reader, draft: Draft, *, experts: bool) -> None:
    """Writes the options; those of a stash that is off, or of a model without `experts`, are idle."""
    capacity, stash, page = (reader.number(f"model.{_CAPACITY}"), reader.flag(f"model.{_STASH}"),
                             reader.integer(f"model.{_PAGE}"))
    factors = {name: reader.number(f"model.{name}") for name in _FACTORS}
    rest = [one for one in (page, *factors.values()) if one is not None]
    if not experts:
        given = [one for one in (capacity, stash) if one is not None]
        draft.idle([*given, *rest], "the model has no experts")
        return
    if capacity is not None:
        draft.put(f"{_OPTION}{_CAPACITY}", capacity, float(capacity.value))
    if stash is None or not stash.value:
        draft.use(stash, why="off, as without it")
        draft.idle(rest, f"it is read with {_STASH}")
        return
    draft.put(f"{_OPTION}{_STASH}", stash)
    if page is not None:
        draft.put(f"{_OPTION}{_PAGE}", page)
    for name, one in factors.items():
        if one is not None:
            draft.put(f"{_OPTION}{name}", one, float(one.value))


def wanted_stash(outline: Outline) -> Iterator[tuple[str, Any, Any]]:
    """Keys for a scenario (`wanted.Wanted`)."""
    yield f"model.{_CAPACITY}", outline.given(f"{_OPTION}{_CAPACITY}"), None
    stash = outline.given(f"{_OPTION}{_STASH}")
    yield f"model.{_STASH}", stash is True, False
    if not stash:
        if stash is False:
            outline.as_without(f"{_OPTION}{_STASH}")
        return
    for name, usual in ((_PAGE, 64), *_FACTORS.items()):
        given = outline.given(f"{_OPTION}{name}")
        yield f"model.{name}", usual if given is None else given, usual
        if given == usual:
            outline.as_without(f"{_OPTION}{name}")
