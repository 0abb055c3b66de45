"""Rows of a format's tables: keys of a recipe whose meaning does not depend on other keys.

Reading and writing recipes share them: `Says` names both keys, and the words that both sides use for a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from simcore.recipes.draft import Draft
from simcore.recipes.outline import Outline
from simcore.recipes.reader import Reader, Taken

__all__ = ["Idle", "Limit", "Off", "On", "Row", "Says", "Unmodelled", "key_of", "leave_out", "read_rows", "write_rows"]

Kind = Literal["integer", "number", "flag", "text", "words", "list"]
_READS: Final[Mapping[str, Callable[[Reader, str], Taken[Any] | None]]] = {
    "integer": Reader.integer, "number": Reader.number, "flag": Reader.flag, "text": Reader.text,
    "words": Reader.words, "list": Reader.take}

_SIMULATED: Final = "as it is simulated"


@dataclass(frozen=True, slots=True)
class Says:
    """A key that says what one key of the scenario says.

    `words`: value of the scenario by the recipe's word; without any, the value is taken as it is. `idle`: words that
    say what is simulated in any case, each with the reason. Another word than these is refused, as `what` and it.
    """

    key: str
    scenario: str
    kind: Kind = "integer"
    words: Mapping[Any, Any] = field(default_factory=dict)
    idle: Mapping[Any, str] = field(default_factory=dict)
    what: str = "a value"


@dataclass(frozen=True, slots=True)
class Off:
    """A switch that is served only when it is off; `what`: what is refused when it is on."""

    key: str
    what: str
    why: str = "the default"


@dataclass(frozen=True, slots=True)
class On:
    """A switch that is served only when it is on; `what`: what is refused when it is off."""

    key: str
    what: str
    why: str = "the default"


@dataclass(frozen=True, slots=True)
class Idle:
    """Patterns of dotted keys on which nothing depends that is simulated, and why."""

    keys: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Unmodelled:
    """Patterns of dotted keys that change what upstream does by little, and how they are counted instead.

    `off`: values beside false with which they change nothing.
    """

    keys: tuple[str, ...]
    why: str
    off: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """A number that limits something, where 0 and less switch the limit off.

    `on`: why its value has no effect; `off`: how the missing limit is counted instead. `null`: what upstream does with
    null, which is an error then; "": null says nothing.
    """

    key: str
    on: str
    off: str
    null: str = ""


Row = Says | Off | On | Idle | Unmodelled | Limit


def key_of(row: Row) -> str:
    """Dotted key of a row; "" for a row of patterns."""
    return "" if isinstance(row, Idle | Unmodelled) else row.key


def read_rows(reader: Reader, draft: Draft, rows: Iterable[Row]) -> None:
    """Reads the keys of a table, as far as the recipe has them and nothing has read them yet."""
    for row in rows:
        if isinstance(row, Says):
            _read_said(reader, draft, row)
        elif isinstance(row, Off | On):
            switch = reader.flag(row.key)
            if switch is not None and switch.value is isinstance(row, Off):
                draft.refuse(switch, row.what)
            else:
                draft.idle(switch, row.why)
        elif isinstance(row, Idle):
            draft.idle(reader.matching(*row.keys), row.why)
        elif isinstance(row, Limit):
            _read_limit(reader, draft, row)
        else:
            leave_out(draft, row, reader.matching(*row.keys))


def _read_said(reader: Reader, draft: Draft, row: Says) -> None:
    said = _READS[row.kind](reader, row.key)
    if said is None:
        return
    if row.kind not in ("words", "list") and said.value in row.idle:
        draft.idle(said, row.idle[said.value])
    elif row.words and said.value not in row.words:
        draft.refuse(said, f"{row.what} {said.value}")
    else:
        draft.put(row.scenario, said, row.words[said.value] if row.words else None)


def leave_out(draft: Draft, row: Idle | Unmodelled, found: Iterable[Taken[Any]]) -> None:
    """Lists keys of a row that the scenario does not have; one that is off has no effect."""
    for one in found:
        if isinstance(row, Unmodelled) and one.value is not False and one.value not in row.off:
            draft.unmodelled(one, row.why)
        else:
            draft.idle(one, row.why if isinstance(row, Idle) else "off" if one.value is False else _SIMULATED)


def _read_limit(reader: Reader, draft: Draft, row: Limit) -> None:
    if row.null and reader.look(row.key) is None:
        for one in reader.matching(row.key):
            draft.use(one)
            draft.fail(one.where, f"{row.key} null: {row.null}")
    limit = reader.number(row.key)
    if limit is None:
        return
    if limit.value > 0:
        draft.idle(limit, row.on)
    else:
        draft.unmodelled(limit, row.off)


def write_rows(outline: Outline, rows: Iterable[Row]) -> None:
    """Writes the keys of a table that the scenario gives, in the first of the recipe's words for each value."""
    for row in rows:
        if not isinstance(row, Says) or not row.scenario or outline.given(row.scenario) is None:
            continue
        value = outline.given(row.scenario)
        word = next((word for word, meaning in row.words.items() if meaning == value), None) if row.words else value
        if word is None and row.kind != "words" and value in row.idle:
            word = value
            outline.as_without(row.scenario)
        if word is None:
            outline.refuse(row.scenario, f"{row.what} {value}: {outline.format} has no word for it that is read")
        else:
            outline.put(row.key, word, row.scenario)
