"""Keys in which scenarios differ: the filters of a batch, and the table of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from simcore.results.report import Report

__all__ = ["differing_keys", "flat_keys", "value_text"]

_FIRST: Final = ("mesh.", "framework", "topology", "model", "training.method", "training.")
_SKIPPED: Final = ("name",)


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
    scenarios = [flat_keys(report.scenario) for report in reports]
    keys = dict.fromkeys(key for scenario in scenarios for key in scenario)
    values_by_key = {key: [scenario.get(key, "\u2013") for scenario in scenarios] for key in keys}
    kept = {key: values for key, values in values_by_key.items()
            if len(set(values)) > 1 and (most is None or len(set(values)) <= most)}
    return dict(sorted(kept.items(), key=lambda item: (_place(item[0]), item[0])))


def _place(key: str) -> int:
    return next((n for n, start in enumerate(_FIRST) if key.startswith(start)), len(_FIRST))
