"""Which keys of scenarios differ in a batch: what people filter by, and what two of them differ in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from simcore.results.report import Report

__all__ = ["differing", "flat", "told"]

_FIRST: Final = ("mesh.", "framework", "topology", "model", "training.method", "training.")
_SKIPPED: Final = ("name",)


def flat(scenario: Mapping[str, Any]) -> dict[str, str]:
    """`{"mesh": {"tp": 2}}` -> `{"mesh.tp": "2"}`; what holds lists is told as text."""
    return dict(_flat(scenario, ""))


def _flat(value: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        name = f"{before}{key}"
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, f"{name}.")
        elif name not in _SKIPPED:
            yield name, told(inner)


def told(value: object) -> str:
    """A value as a person would write it."""
    if value is None or (isinstance(value, dict | list) and not value):
        return "\u2013"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(told, value)) if isinstance(value, list | tuple) else str(value)


def differing(reports: Sequence[Report], most: int | None = None) -> dict[str, list[str]]:
    """Keys that have more than one value (and at most `most`), each with its value in every report; axes first."""
    every = [flat(report.scenario) for report in reports]
    keys = dict.fromkeys(key for one in every for key in one)
    found = {key: [one.get(key, "\u2013") for one in every] for key in keys}
    kept = {key: values for key, values in found.items()
            if len(set(values)) > 1 and (most is None or len(set(values)) <= most)}
    return dict(sorted(kept.items(), key=lambda item: (_place(item[0]), item[0])))


def _place(key: str) -> int:
    return next((n for n, start in enumerate(_FIRST) if key.startswith(start)), len(_FIRST))
