"""The limit of one quantity of a scenario: the fewest GPUs, the largest batch, the longest sequence that fits.

[Note: bisection]
A value is tried by a simulation without time. It is doubled until the verdict changes, then bisected between the last
value on one side and the first on the other, down to values with nothing legal between them: a value that fits next to
one that does not, both simulated. Memory need not be monotone in the value, so that is checked: values beyond the
neighbour are tried, up to four times it, and one that fits moves the limit to it; values within the limit are tried,
and those that do not fit are told (`Limit.exceptions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from simcore.batch.decides import decides, is_likely, is_sure
from simcore.errors import InputError
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.results.limit import Limit, Quantity
from simcore.results.report import Report
from simcore.simulate import simulate

__all__ = ["keys_of", "limit_of"]

_MOST: Final[dict[Quantity, int]] = {"gpus": 4096, "micro_batch": 4096, "global_batch": 2**20, "sequence": 2**22}
_SEQUENCE: Final = 256
"""Tokens between two sequence lengths that are tried, at least."""
_SCANNED: Final = 64
"""Values next to the middle of an interval of which a legal one is looked for."""
_CHECKS: Final = 4
"""Values on each side of a limit that are tried as a check."""
_REACH: Final = 4
"""Times the limit up to which values are tried as a check."""
_IsGood = Callable[[Report], bool]


@dataclass(slots=True)
class _Tried:
    """Reports by value, each simulated once; None for a value that scenario, framework or topology refuses."""

    scenario: Scenario
    quantity: Quantity
    between: tuple[int, int]
    reports: dict[int, Report | None] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    refusal: str = ""

    @property
    def problem(self) -> str:
        """Last refusal, if nothing could be simulated."""
        return "" if any(self.reports.values()) else self.refusal

    def report(self, value: int) -> Report | None:
        if value not in self.reports:
            self.reports[value] = self._simulated(value)
        return self.reports[value]

    def _simulated(self, value: int) -> Report | None:
        try:
            other = changed(self.scenario, keys_of(self.scenario, self.quantity, value))
        except InputError as error:
            self.refusal, self.refused[value] = str(error.problems[0]), error.problems[0].message
            return None
        report = simulate(other, timed=False)
        if report.problems:
            self.refusal = "; ".join(problem.message for problem in report.problems)
            self.refused[value] = report.problems[0].message
        return report if report.verdict else None

    def simulated(self, value: int) -> int | None:
        """The value, if it was tried and has a report."""
        return value if self.reports.get(value) is not None else None

    def holds(self, value: int, is_good: _IsGood) -> bool:
        """True if the value can be simulated and its report is good."""
        report = self.report(value)
        return report is not None and is_good(report)


def limit_of(scenario: Scenario, quantity: Quantity, between: tuple[int, int] | None = None, *,
             checked: bool = True) -> Limit:
    """Limit of `quantity` for the scenario, whose other keys stay as they are (see `keys_of`).

    `between`: smallest and largest value that are tried; None: from the smallest that there is to 4,096 GPUs or
    sequences of a micro batch, 2**20 of a step, or 4 Mi tokens. `checked`: values that bisection leaves out are tried
    too. `quantity`: not "machine" (`simcore.batch.machines`), not "cost".
    """
    tried = _Tried(scenario, quantity, between or (0, _MOST[quantity]))
    search = _smallest if quantity == "gpus" else _largest
    value, beyond = search(tried, is_sure)
    if checked and value is not None:
        value, beyond = _checked(tried, value, beyond)
    likely, _ = search(tried, is_likely)
    possible, _ = search(tried, lambda report: report.job_verdict != "oom")
    beyond, why = (beyond, "") if beyond is not None else _refused_next(tried, value)
    at, after = (None if each is None else tried.report(each) for each in (value, beyond))
    return Limit(
        name=scenario.name, quantity=quantity, value=value, likely=_further(quantity, value, likely),
        possible=_further(quantity, value, likely, possible), beyond=beyond,
        keys={} if value is None else keys_of(scenario, quantity, value), peak_bytes=at.highest_bytes if at else None,
        headroom_bytes=at.headroom_bytes if at else None, beyond_verdict=after.job_verdict if after else None,
        beyond_bytes=after.highest_bytes if after else None, why=decides(after) if after else why,
        exceptions=() if value is None else tuple(_exceptions(tried, value)), problem=tried.problem,
        num_simulated=sum(each is not None for each in tried.reports.values()))


def _further(quantity: Quantity, *values: int | None) -> int | None:
    """The furthest of the values: what surely fits is also likely to, and what is likely is possible."""
    known = [value for value in values if value is not None]
    return (min if quantity == "gpus" else max)(known, default=None)


# ---- checks ---------------------------------------------------------------------------------------------------------
def _checked(tried: _Tried, value: int, beyond: int | None) -> tuple[int, int | None]:
    """(`value`, `beyond`), moved if values beyond surely fit too; values within are tried for `_exceptions`."""
    while (further := next((each for each in _outside(tried, value) if tried.holds(each, is_sure)), None)) is not None:
        value, beyond = _moved(tried, further)
    for each in _inside(tried, value):
        tried.report(each)
    return value, beyond


def _moved(tried: _Tried, value: int) -> tuple[int, int | None]:
    """The limit on the far side of a value that surely fits."""
    unit = _unit(tried)
    if tried.quantity == "gpus":
        good, bad = _bisected(value, max(0, tried.between[0] - unit), unit, tried, is_sure)
        return good, tried.simulated(bad)
    bad = value
    while tried.holds(bad, is_sure):
        value, bad = bad, bad * 2
        if bad > tried.between[1]:
            return value, None
    good, bad = _bisected(value, bad, unit, tried, is_sure)
    return good, tried.simulated(bad)


def _outside(tried: _Tried, value: int) -> Iterator[int]:
    """Values beyond the neighbour of a limit: fewer GPUs, or up to `_REACH` times as large others."""
    if tried.quantity == "gpus":
        yield from _spread(tried, tried.between[0], value)
    else:
        yield from _spread(tried, value + _unit(tried), min(_REACH * value, tried.between[1]))


def _inside(tried: _Tried, value: int) -> Iterator[int]:
    """Values within a limit."""
    if tried.quantity == "gpus":
        yield from _spread(tried, value, min(_REACH * value, tried.between[1]))
    else:
        yield from _spread(tried, tried.between[0], value)


def _spread(tried: _Tried, low: int, high: int) -> Iterator[int]:
    """At most `_CHECKS` multiples of the unit between two values, evenly."""
    unit = _unit(tried)
    places = (low + (high - low) * part // (_CHECKS + 1) // unit * unit for part in range(1, _CHECKS + 1))
    yield from dict.fromkeys(place for place in places if low < place < high)


def _exceptions(tried: _Tried, value: int) -> Iterator[int]:
    """Tried values within the limit that do not surely fit, ascending; refused ones are none."""
    for each, report in sorted(tried.reports.items()):
        is_inside = each > value if tried.quantity == "gpus" else each < value
        if is_inside and each >= tried.between[0] and report is not None and not is_sure(report):
            yield each


def _refused_next(tried: _Tried, value: int | None) -> tuple[int | None, str]:
    """(refused value nearest to the limit on its other side, why), (None, "") if none was tried."""
    if value is None or not tried.refused:
        return None, ""
    sides = [each for each in tried.refused if (0 < each < value if tried.quantity == "gpus" else each > value)]
    nearest = (max if tried.quantity == "gpus" else min)(sides, default=None)
    return (None, "") if nearest is None else (nearest, f"refused: {tried.refused[nearest]}")


# ---- values ---------------------------------------------------------------------------------------------------------
def keys_of(scenario: Scenario, quantity: Quantity, value: int) -> dict[str, Any]:
    """Keys that give the scenario the value, as `--set` takes them.

    GPUs: ranks on the data-parallel axis that shards (`dp_replicate` where nothing is sharded); the global batch is
    kept if it divides by the ranks, else rounded up. A larger micro batch keeps the number of microbatches, a larger
    global batch the micro batch: it has more microbatches.
    """
    mesh, training = scenario.mesh, scenario.training
    if quantity == "sequence":
        return {"training.seq_len": value}
    if quantity == "global_batch":
        return {"training.global_batch_size": value}
    if quantity == "micro_batch":
        batch = value * mesh.dp_replicate * mesh.dp_shard * scenario.num_microbatches
        kept = {} if training.global_batch_size is None else {"training.global_batch_size": batch}
        return {"training.micro_batch_size": value, **kept}
    others = mesh.pp * mesh.cp * mesh.tp
    replicates = mesh.dp_replicate > 1 and mesh.dp_shard == 1
    ranks = value // others if value % others == 0 else 0
    keys: dict[str, Any] = {"mesh.dp_replicate" if replicates else "mesh.dp_shard": ranks}
    if not replicates and mesh.dp_replicate > 1:
        keys["mesh.dp_replicate"] = 1
    if training.global_batch_size is not None and ranks:
        step = training.micro_batch_size * ranks
        keys["training.global_batch_size"] = -(-training.global_batch_size // step) * step
    topology = scenario.topology
    if not isinstance(topology, str) and topology.num_nodes is not None:
        keys["topology.num_nodes"] = max(1, -(-value * topology.num_nodes // scenario.world_size))
    return keys


def _unit(tried: _Tried) -> int:
    """Smallest value, of which all others are multiples."""
    mesh = tried.scenario.mesh
    if tried.quantity == "gpus":
        return mesh.pp * mesh.cp * mesh.tp
    if tried.quantity == "global_batch":
        return tried.scenario.training.micro_batch_size * mesh.dp_replicate * mesh.dp_shard
    return math.lcm(_SEQUENCE, 2 * mesh.cp * mesh.tp) if tried.quantity == "sequence" else 1


# ---- bisection ------------------------------------------------------------------------------------------------------
def _smallest(tried: _Tried, is_good: _IsGood) -> tuple[int | None, int | None]:
    """(smallest good value, the largest tried below it that is not good), None where there is none."""
    unit = _unit(tried)
    good = max(unit, -(-tried.between[0] // unit) * unit)
    bad = good - unit
    while not tried.holds(good, is_good):
        bad = good if tried.report(good) is not None else bad
        good *= 2
        if good > tried.between[1]:
            return None, tried.simulated(bad)
    good, bad = _bisected(good, bad, unit, tried, is_good)
    return good, tried.simulated(bad)


def _largest(tried: _Tried, is_good: _IsGood) -> tuple[int | None, int | None]:
    """(largest good value, the smallest tried above it that is not good), None where there is none."""
    unit = _unit(tried)
    good, bad = 0, _first_legal(tried, unit)
    while tried.holds(bad, is_good):
        good, bad = bad, bad * 2
        if bad > tried.between[1]:
            return good, None
    if not good:
        return None, tried.simulated(bad)
    good, bad = _bisected(good, bad, unit, tried, is_good)
    return good, tried.simulated(bad)


def _first_legal(tried: _Tried, unit: int) -> int:
    """Smallest multiple of `unit` that can be simulated, such as one microbatch a stage; `unit` if none is found."""
    return next((unit * n for n in range(1, _SCANNED + 1) if tried.report(unit * n) is not None), unit)


def _bisected(good: int, bad: int, unit: int, tried: _Tried, is_good: _IsGood) -> tuple[int, int]:
    """(`good`, `bad`) moved towards each other until no legal multiple of `unit` is between them."""
    while (middle := _legal_between(good, bad, unit, tried)) is not None:
        if tried.holds(middle, is_good):
            good = middle
        else:
            bad = middle
    return good, bad


def _legal_between(good: int, bad: int, unit: int, tried: _Tried) -> int | None:
    """The multiple of `unit` nearest to the middle that can be simulated; None if there is none in between.

    Refused numbers of GPUs and global batches are gaps, between which others are legal; a refused length or micro batch
    counts as beyond the limit.
    """
    for value in _from_the_middle(min(good, bad) // unit + 1, -(-max(good, bad) // unit), unit):
        if tried.quantity not in ("gpus", "global_batch") or tried.report(value) is not None:
            return value
    return None


def _from_the_middle(first: int, end: int, unit: int) -> Iterator[int]:
    """Multiples `first` to `end` - 1 of `unit`, the middle one first, at most `_SCANNED` of them."""
    ordered = sorted(range(first, end), key=lambda n: abs(2 * n - first - end + 1)) if end - first <= _SCANNED else [
        (first + end) // 2 + offset // 2 * (-1) ** offset for offset in range(1, _SCANNED + 1)]
    return (n * unit for n in ordered)
