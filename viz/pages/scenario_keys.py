"""Keys in which scenarios differ: the filters of a batch, and the table of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from simcore.results.report import Report

__all__ = ["differing_keys", "flat_keys", "value_text"]

_FIRST: Final = ("mesh.", "framework", "topology", "model", "training.method", "training.")
_SKIPPED: Final = ("name",)
_ABSENT: Final = object()
"""Value of a key that a scenario lacks."""


def flat_keys(scenario: Mapping[str, Any]) -> dict[str, str]:
    """Returns the values of a scenario, but its name, by dotted key: `{"mesh": {"tp": 2}}` is `{"mesh.tp": "2"}`."""
    return dict(_flat(scenario, ""))


def _flat(value: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        name = f"{before}{key}"
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, f"{name}.")
        elif name not in _SKIPPED:
            yield name, value_text(inner)


def value_text(value: object) -> str:
    """Returns a scenario's value as text: a dash for None, an empty list or block; lists separated by commas."""
    if value is None or (isinstance(value, dict | list) and not value):
        return "\u2013"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(value_text, value)) if isinstance(value, list | tuple) else str(value)


def differing_keys(reports: Sequence[Report], most: int | None = None) -> dict[str, list[str]]:
    """Returns the dotted keys that differ between the reports' scenarios, each with its values by report.

    Values are text, in the order of the reports, a dash where a scenario lacks the key. `most`: keys with more
    different values are left out; None: none is. Keys of the mesh come first; the name is not among them.
    """
    values_by_key = {key: values for key, values in _columns([report.scenario for report in reports], "")
                     if key not in _SKIPPED}
    kept = {key: values for key, values in values_by_key.items()
            if len(set(values)) > 1 and (most is None or len(set(values)) <= most)}
    return dict(sorted(kept.items(), key=lambda item: (_place(item[0]), item[0])))


def _columns(blocks: Sequence[Mapping[str, Any]], before: str) -> Iterator[tuple[str, list[str]]]:
    """Yields dotted keys with the text of each block's value; of parts that are the same in all blocks, none."""
    for key in dict.fromkeys(key for block in blocks for key in block):
        values = [block.get(key, _ABSENT) for block in blocks]
        if _are_alike(values):
            continue
        inner = [value if isinstance(value, Mapping) else {} for value in values]
        yield from _columns(inner, f"{before}{key}.")
        if any(not value or not isinstance(value, Mapping) for value in values):
            yield f"{before}{key}", ["\u2013" if value is _ABSENT or (value and isinstance(value, Mapping)) else
                                     value_text(value) for value in values]


def _are_alike(values: Sequence[object]) -> bool:
    """True if all values are the first, or are written as it is."""
    first, text = values[0], ""
    for value in values:
        if value is not first:
            text = text or repr(first)
            if repr(value) != text:
                return False
    return True


def _place(key: str) -> int:
    return next((n for n, start in enumerate(_FIRST) if key.startswith(start)), len(_FIRST))
