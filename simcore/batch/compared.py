"""Scenarios and results that are compared: read, chosen by name, given the defaults of one of them.

A file with several scenarios or results gives all of them. A single scenario file with settings (`--set`) gives its
scenarios without them and with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from simcore.batch.like import made_like
from simcore.batch.stored import read_results
from simcore.batch.unfinished import results_file
from simcore.errors import InputError, Problem
from simcore.inputs.loading import Entry, changed, read
from simcore.results.compare import Kept
from simcore.results.report import Report
from simcore.simulate import check

__all__ = ["Compared", "compared", "made_alike"]

_LONGEST: Final = 200
"""Characters of a scenario's name, as those of a sweep."""
_MOST: Final = 8
"""Names in a message at most."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A scenario that is to be simulated (`entry`), or a `result`; `base`: its name in the file that it is from."""

    base: str
    entry: Entry | None = None
    result: Report | None = None

    @property
    def name(self) -> str:
        """Name of the scenario or the result; not `base` if `--set` changed a scenario that is there unchanged too."""
        return self.entry.name if self.entry else self.base

    @property
    def workload(self) -> str:
        """Workload of the scenario, such as `train`."""
        if self.result is not None:
            return str(self.result.scenario.get("workload", "train"))
        return self.entry.scenario.workload if self.entry and self.entry.scenario else ""


def compared(paths: Sequence[str], overrides: Sequence[str] = (), names: Sequence[str] = ()) -> list[Compared]:
    """Scenarios and results of all `paths` in order, or those named `names`, in the order of the names.

    `overrides`: texts `key=value` for every scenario; of a single path the scenarios without them come first.
    InputError for wrong scenarios and overrides, unknown names, overrides of results alone, less than
    two, and different workloads.
    """
    found = _chosen(_read(paths, overrides), names, paths)
    if len(found) < 2:
        message = (f"compare takes two or more scenarios or results, this has {len(found)}: name another, or give "
                   "--set KEY=VALUE to compare one without and with it")
        raise InputError(Problem(", ".join(paths), message))
    names_by_workload = {one.workload: one.name for one in reversed(found)}
    if len(names_by_workload) > 1:
        told = ", ".join(f"{workload} ({name})" for workload, name in reversed(names_by_workload.items()))
        message = (f"expected scenarios of one workload, got {told}: a step of one is none of the other; train is "
                   "compared with train, serve with serve (`rankscope run` shows the memory of both)")
        raise InputError(Problem(", ".join(paths), message))
    return found


def _read(paths: Sequence[str], overrides: Sequence[str]) -> list[Compared]:
    """Scenarios and results of all paths in order; of one scenario file with `overrides` those without them first."""
    found, has_scenario = list[Compared](), False
    for path in paths:
        if file := results_file(Path(path)):
            found += [Compared(result.name, result=result) for result in read_results(file)]
            continue
        has_scenario = True
        if len(paths) == 1 and overrides:
            found += _entries(path, ())
        found += _changed(_entries(path, overrides), overrides, found)
    if overrides and not has_scenario:
        raise InputError(Problem("--set", "expected a scenario whose keys to override, got results"))
    return found


def _entries(path: str, overrides: Sequence[str]) -> list[Compared]:
    entries = read([path], overrides)
    problems = [problem for entry in entries for problem in entry.problems]
    if problems:
        raise InputError(problems)
    return [Compared(entry.name, entry) for entry in entries]


def _changed(found: Sequence[Compared], overrides: Sequence[str], others: Sequence[Compared]) -> Iterator[Compared]:
    """`found`; a name that is also among `others` gets the overrides, as a sweep would write them."""
    known = {one.name for one in others}
    for one in found:
        if overrides and one.entry and one.name in known:
            yield replace(one, entry=_named(one.entry, f"{one.name}[{','.join(overrides)}]"[:_LONGEST]))
        else:
            yield one


def _named(entry: Entry, name: str) -> Entry:
    return replace(entry, name=name, scenario=changed(entry.scenario, {"name": name}) if entry.scenario else None)


def _chosen(found: Sequence[Compared], names: Sequence[str], paths: Sequence[str]) -> list[Compared]:
    """Columns that `names` choose, in their order; all without names. InputError for a name that no one has."""
    known = dict.fromkeys(one.base for one in found)
    for name in names:
        if name not in known:
            raise InputError(Problem("--name", f"{name!r} is not in {', '.join(paths)}: {_listed(list(known))}"))
    return [one for name in names for one in found if one.base == name] if names else list(found)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return f"expected one of {', '.join(names[:_MOST])}{more}"


def made_alike(found: Sequence[Compared], like: str) -> tuple[list[Compared], list[Kept]]:
    """All with the defaults of the one named `like`, where their frameworks take them, and each setting that is kept.

    InputError if `like` is not the name of exactly one, or if another one is a result.
    """
    named = [one for one in found if one.name == like]
    if len(named) != 1:
        told = f"{len(named)} of them have this name" if named else _listed([one.name for one in found])
        raise InputError(Problem("--like", f"{like!r}: {told}"))
    if fixed := [one.name for one in found if one.result and one.name != like]:
        message = f"{fixed[0]!r} is a result, whose keys cannot be set: name its scenario file"
        raise InputError(Problem("--like", message))
    reference = _reference(named[0])
    made, kept = list[Compared](), list[Kept]()
    for place, one in enumerate(found):
        if one.name == like or one.entry is None or one.entry.scenario is None:
            made.append(one)
            continue
        liked = made_like(reference, one.entry.scenario)
        kept += [Kept(place=place, **refused._asdict()) for refused in liked.kept]
        made.append(replace(one, entry=replace(one.entry, scenario=liked.scenario)))
    return made, kept


def _reference(one: Compared) -> Report:
    """Report of the one whose defaults others get; InputError if its layout is refused."""
    if one.result is not None:
        return one.result
    assert one.entry is not None
    assert one.entry.scenario is not None
    report = check(one.entry.scenario)
    if report.status != "ok":
        raise InputError([Problem(row.where, row.message, row.rule) for row in report.problems])
    return report
