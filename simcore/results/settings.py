"""Values with which several results were simulated: those that a scenario sets, and those that a framework chose.

A framework chooses where a scenario leaves a key out (assumptions of kind `default`). Two results may therefore differ
in more than their scenarios say: `differing` lists it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from simcore.frameworks.registry import dispatchers_of
from simcore.inputs.optimizers import AS_STORED
from simcore.results.frame import flat
from simcore.results.report import Report

__all__ = ["DISPATCHER", "Setting", "Value", "asked_differently", "chosen_dispatcher", "differing_defaults",
           "engine_gpus", "settings_of"]

DISPATCHER: Final = "dispatcher"
"""Name of the way in which tokens go to experts; frameworks choose it by options of different names."""
_ETP: Final = "mesh.etp"
_MOMENTS, _STORED = "training.optimizer.moments", "training.precision.params"
_OPTION: Final = "framework_options."


class Value(NamedTuple):
    """One value as text; `by_default` is True if the framework chose it."""

    text: str
    by_default: bool


class Setting(BaseModel):
    """One key in which several results differ, with the value of each in their order.

    `key`: dotted, as `--set` takes it, or `dispatcher`. `values`: text, "" where a result has no such value.
    `by_default`: True where the framework chose the value because the scenario leaves it out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    values: tuple[str, ...]
    by_default: tuple[bool, ...]

    def __str__(self) -> str:
        """Text such as `loss megatron | hf`, with the key's last part; a dash stands for a missing value."""
        short = self.key.removeprefix("training.").removeprefix(_OPTION)
        return f"{short} {' | '.join(value or '-' for value in self.values)}"


def engine_gpus(report: Report) -> int:
    """Number of GPUs that only generate, as the scenario asks for them; 0 where engines share those that train."""
    given = report.scenario.get("generation")
    if not isinstance(given, dict) or given.get("colocated", True):
        return 0
    sizes = [given.get(key, 1) for key in ("engines", "tp")]
    return math.prod(size if isinstance(size, int) else 1 for size in sizes)


def settings_of(report: Report) -> dict[str, Value]:
    """Values by dotted key: all that the scenario sets, all defaults that the report lists, `mesh.etp`, `dispatcher`.

    A key that is null or "auto" in the scenario has the framework's value, or is missing if the report lists none.
    Moments that are "as each parameter is stored" have the format of parameters. `dispatcher` is missing without expert
    parallelism.
    """
    chosen = {row.what: Value(row.value, by_default=True) for row in report.assumptions if row.kind == "default"}
    asked = {key: Value(_text(value), by_default=False) for key, value in flat(report.scenario)
             if value is not None and value != "auto"}
    found = {_ETP: Value("1", by_default=True)} | chosen | asked
    moments, stored = found.get(_MOMENTS), found.get(_STORED)
    if moments is not None and stored is not None and moments.text == AS_STORED:
        found[_MOMENTS] = Value(stored.text, moments.by_default)
    return found | _dispatcher(report, found)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _dispatcher(report: Report, found: Mapping[str, Value]) -> dict[str, Value]:
    """The dispatcher whose options are all in `found`; {} without expert parallelism, or if none is."""
    if found.get("mesh.ep", Value("1", by_default=True)).text == "1":
        return {}
    for name, options in dispatchers_of(_framework(report)).items():
        values = [found.get(f"{_OPTION}{key}") for key in options]
        if [value.text for value in values if value] == list(options.values()):
            return {DISPATCHER: Value(name, by_default=all(value.by_default for value in values if value))}
    return {}


def chosen_dispatcher(report: Report) -> str | None:
    """Dispatcher that the framework chose among several; None if the scenario did, or nothing was to choose."""
    found = settings_of(report).get(DISPATCHER)
    if found is None or not found.by_default or len(dispatchers_of(_framework(report))) < 2:
        return None
    return found.text


def _framework(report: Report) -> str:
    named = report.scenario.get("framework")
    return named if isinstance(named, str) else ""


def differing_defaults(reports: Sequence[Report]) -> tuple[Setting, ...]:
    """Settings in which results differ, where the framework chose the value of at least one of them.

    Only those that at least two results have. The dispatcher comes first, files of checkpoints last.
    """
    found = (row for row in _rows(reports) if any(row.by_default) and len(set(filter(None, row.values))) > 1)
    return tuple(sorted(found, key=lambda row: row.key.startswith("checkpoint.")))


def asked_differently(reports: Sequence[Report]) -> tuple[Setting, ...]:
    """Settings in which scenarios differ, where at least one sets the value, but those of `differing_defaults`.

    The name of a scenario is not among them.
    """
    defaults = {row.key for row in differing_defaults(reports)}
    return tuple(row for row in _rows(reports) if row.key not in defaults and len(set(row.values)) > 1
                 and any(value and not chosen for value, chosen in zip(row.values, row.by_default, strict=True)))


def _rows(reports: Sequence[Report]) -> list[Setting]:
    """Every setting that any result has; options that choose a dispatcher are not listed by themselves."""
    settings = [settings_of(report) for report in reports]
    left_out = {"name", *(f"{_OPTION}{key}" for report in reports
                          for options in dispatchers_of(_framework(report)).values() for key in options)}
    keys = dict.fromkeys((DISPATCHER, _ETP, *(key for found in settings for key in found)))
    return [_setting(key, settings) for key in keys if key not in left_out]


def _setting(key: str, settings: Sequence[Mapping[str, Value]]) -> Setting:
    values = [found.get(key, Value("", by_default=False)) for found in settings]
    return Setting(key=key, values=tuple(value.text for value in values),
                   by_default=tuple(value.by_default for value in values))
