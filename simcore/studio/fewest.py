"""Fewest GPUs of each framework, that of the job first; a row as soon as a number is known, and each better one.

Beyond one host only whole hosts are tried, unless numbers are given. A number of GPUs is told once some layout surely
fits on it, the fewest once every layout on fewer was tried. Where the fewest need states on the host, the fewest
without come next, and the fastest layouts last, when all frameworks have their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from simcore.errors import RankscopeError
from simcore.frameworks.registry import known_frameworks
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.placement.job import topology_of
from simcore.results.found import FreeLimit
from simcore.results.limit import Value
from simcore.search.condition import condition
from simcore.search.judge import Candidate, Sized, timed
from simcore.search.leaner import together, unmodelled
from simcore.search.limits import free_limit
from simcore.search.missed import Missed
from simcore.search.objective import OBJECTIVES
from simcore.search.search import Search, layout_of, search
from simcore.search.space import other_framework
from simcore.search.watch import LimitWatch
from simcore.simulate import check
from simcore.studio.others import AXES, axes_of
from simcore.studio.question import Question, names_of, space_of_question

__all__ = ["fewest"]

_OTHERS: Final = 3
"""Numbers of GPUs that are tried at most with another batch, the largest first."""
_PAUSE_S: Final = 0.2
"""Seconds between two lines about progress."""
_FAR: Final = 2
"""Times the usable memory above which no options make a layout fit."""
_OFFLOAD: Final = "training.offload."
Say = Callable[[Mapping[str, Any]], None]


def fewest(question: Question, say: Say) -> None:
    """Says what is tried (`trying`, `done`, `all_of`, `gpus`, `layouts`), rows (`fewest`), at last `over`.

    A row replaces the one before of its framework: `framework`; `value`: GPUs that some layout surely fits on, None if
    none is known; `is_fewest`: every layout on fewer was tried; `is_best`: `layout` is the fastest there; `beyond`:
    largest number below it, `why`, `nearest_bytes`: what decides in the layout there that needs least, and what it
    needs; `nearest`: the layout nearest to fitting on any fewer, or at all where none fits, at last with several
    options at once; `together`: fewer GPUs (`gpus`) that surely fit where several options at once are added to the
    layout nearest to fitting there, that `layout`, and `skipped`, `other` and `failed` of that number; `untried`:
    numbers left out; `unserved`: numbers of layouts there that are not simulated yet, by what they have; `unmodelled`:
    options that are not simulated yet with the layout nearest to fitting; `is_refused`: every layout is; `skipped`:
    numbers below `value` that the batch of a step is no multiple of, so that few layouts have it or none; `other`: the
    least of the largest that surely fits with a larger batch (`gpus`, `batch`, `layout`); `failed`: the batch with
    which the largest of them does not; `on_device`: where `layout` has states on the host, the same of layouts that
    have none there (`value`, which may be the same, `is_fewest`, `layout`, `beyond`, `why`, `nearest_bytes`, `skipped`,
    `together`), else None.
    """
    base = question.scenario()
    own = base.framework
    names = names_of(question.rest, "frameworks", (own, *known_frameworks()))
    axes = {name: axes_of(base, name, base.implementation if name == own else "auto") for name in names}
    found: list[_Fewest] = []
    for done, name in enumerate(sorted(axes, key=lambda name: (name != own, *_order(axes[name])))):
        one = _Fewest(_narrowed(question, name, axes[name]), name, say, {"done": done, "all_of": len(axes)})
        one.find()
        found.append(one)
    for one in found:
        if one.row["value"] and one.is_on_host():
            one.find_on_device()
    for one in found:
        if not one.row["is_refused"]:
            one.combine()
    for one in sorted(found, key=lambda one: one.row["value"] or 0):
        if one.row["value"]:
            one.rank()
    say({"over": True})


def _order(axes: tuple[str, ...]) -> tuple[bool, int]:
    """Order of frameworks: those that cut something over few axes first, those that only copy last."""
    return axes == ("dp_replicate",), len(axes)


def _narrowed(question: Question, name: str, axes: tuple[str, ...]) -> Question:
    """The question about one framework; free degrees are those that it may have, memory options all there are."""
    asked, free = {**question.rest, "frameworks": [name]}, question.rest.get("free") or {}
    if "mesh" in free:
        degrees = {f"mesh.{axis}": [] if axis in axes else [1] for axis in AXES}
        leaner: dict[str, list[Any]] = {"leaner": []} if "options" in free else {}
        kept = {key: values for key, values in free.items() if key != "mesh"}
        asked["free"] = {**kept, "mesh.etp": [], **degrees, **leaner}
    return replace(question, rest=asked)


def _skipped(asked: Search, found: FreeLimit, unit: int) -> list[int]:
    """Numbers below the fewest GPUs that do not divide the batch of a step: from half of them on, and all untried."""
    batch = asked.space.base.training.global_batch_size
    if len(asked.space.gpus) > 1 or not batch or not isinstance(found.value, int) or not isinstance(found.beyond, int):
        return []
    return _uneven(batch, range(min(found.beyond, found.value // 2) + 1, found.value), unit)


def _uneven(batch: int, numbers: Iterable[int], unit: int) -> list[int]:
    """Numbers of GPUs, of several hosts whole ones, that a batch of a step cannot be dealt to evenly."""
    return [n for n in numbers if batch % n and (n <= unit or n % unit == 0)]


def _note(at: dict[int, Missed], value: Value, candidate: Candidate, sized: Sized) -> None:
    """Adds a layout that does not fit to those of its number of GPUs."""
    if isinstance(value, int):
        at.setdefault(value, Missed()).add(candidate, sized)


@dataclass(slots=True)
class _Fewest:
    """The fewest GPUs of one framework. `say`: takes lines; `place`: how many frameworks are done; `row`: as known."""

    question: Question
    name: str
    say: Say
    place: Mapping[str, int]
    row: dict[str, Any]
    said_at: float
    missed: Missed
    at: dict[int, Missed]

    def __init__(self, question: Question, name: str, say: Say, place: Mapping[str, int]) -> None:
        self.question, self.name, self.say, self.place, self.said_at = question, name, say, place, 0.0
        self.missed, self.at = Missed(), {}
        self.row = {"framework": name, "value": None, "is_fewest": False, "is_best": False, "layout": None,
                    "beyond": None, "why": "", "nearest_bytes": None, "nearest": None, "together": None,
                    "untried": 0, "unserved": {}, "unmodelled": (), "is_refused": False, "skipped": [], "other": None,
                    "failed": None, "on_device": None}

    def find(self) -> None:
        """Says a row for each smaller number that is found, at last the fewest."""
        self._trying()
        try:
            asked = self._search()
            unit = topology_of(asked.space.base).gpus_per_host
            watch = LimitWatch(self._tried, self._holds, self._misses)
            found = free_limit(asked, "gpus", watch, ranks=False, unit=unit)
            self._found(value=found.value, is_fewest=True, beyond=found.beyond, why=found.why,
                        nearest_bytes=found.nearest_bytes, untried=found.untried, unserved=found.unserved,
                        nearest=self._nearest(found.value),
                        skipped=_skipped(asked, found, unit))
        except RankscopeError as error:
            self._found(why=self._with_keys(error.problems[0].message), is_refused=True)

    def _with_keys(self, message: str) -> str:
        """A refusal of every layout with the job's keys that it is about, and what else one rank is refused for."""
        base = self.question.scenario()
        try:
            report = check(changed(base, {**other_framework(base, self.name), "mesh": {}, "training.pipeline": {}}))
        except RankscopeError:
            return message
        told = {row.message: f"{row.where}: {row.message}" for row in report.problems if "." in row.where}
        named = next((one for one in told if message.endswith(one)), None)
        if named is None:
            return message
        others = (words for one, words in told.items() if one != named)
        return "; ".join((message.removesuffix(named) + told[named], *others))

    def is_on_host(self) -> bool:
        """True if the layout on the fewest GPUs has states on the host that the job has not there."""
        return any(key.startswith(_OFFLOAD) for key in (self.row["layout"] or {"keys": {}})["keys"])

    def find_on_device(self) -> None:
        """Says the row with the fewest GPUs of layouts without further states on the host."""
        self._trying(on_device=True)
        asked, at = self._search(on_device=True), dict[int, Missed]()
        unit = topology_of(asked.space.base).gpus_per_host
        try:
            found = free_limit(asked, "gpus", LimitWatch(missed=partial(_note, at)), ranks=False, unit=unit)
        except RankscopeError as error:
            self._found(on_device={**dict.fromkeys(("value", "layout", "beyond", "nearest_bytes", "together")),
                                   "is_fewest": True, "skipped": [], "why": f"refused: {error.problems[0].message}"})
            return
        best = self._fastest(found.value, on_device=True) if isinstance(found.value, int) else None
        self._found(on_device={"value": found.value, "is_fewest": not found.untried, "layout": best,
                               "beyond": found.beyond, "why": found.why, "nearest_bytes": found.nearest_bytes,
                               "skipped": _skipped(asked, found, unit),
                               "together": self._together(at, found.value, hosted=False)})

    def combine(self) -> None:
        """Says the row with fewer GPUs that fit with several options at once, where those are free."""
        found, nearest = self._together(self.at, self.row["value"]), self._nearest(self.row["value"])
        base, is_open = self.question.scenario(), "options" in (self.question.rest.get("free") or {})
        lacks = unmodelled(base, nearest["keys"]) if nearest and is_open else ()
        if found or lacks or nearest != self.row["nearest"]:
            self._found(together=found, nearest=nearest, unmodelled=lacks)

    def _has_free_mesh(self) -> bool:
        return any(key.startswith("mesh") for key in self.question.rest.get("free") or {})

    def _together(self, at: Mapping[int, Missed], value: Value | None, *, hosted: bool = True) -> dict[str, Any] | None:
        """Fewest GPUs of which the layout nearest to fitting fits with several options, and that layout; else None.

        `at`: layouts that do not fit by number of GPUs, of which those below `value` count; those with several options
        that do not surely fit join them; `hosted`: states may lie on the host.
        """
        if "options" not in (self.question.rest.get("free") or {}):
            return None
        for number in sorted(each for each in at if not isinstance(value, int) or each < value):
            nearest = at[number].said()["nearest"]
            if nearest is None or nearest["peak_bytes"] > _FAR * nearest["usable_bytes"]:
                continue
            self._trying(together=number)
            found = together(self.question.scenario(), nearest["keys"], hosted=hosted)
            if found and found[1].verdict != "fits":
                at[number].add(*found)
            elif found and (layout := self._timed(*found)):
                fewer = self._shared_by_fewer(number, found[0], hosted=hosted)
                return {"gpus": number, "layout": dict(layout), **fewer}
        return None

    def _shared_by_fewer(self, gpus: int, keys: Candidate, *, hosted: bool) -> dict[str, Any]:
        """`skipped`, `other` and `failed` of a number of GPUs on which a layout fits with several options at once.

        On the numbers skipped the same layout is tried over fewer data-parallel ranks, with a larger batch.
        """
        base = self.question.scenario()
        batch, unit = base.training.global_batch_size, topology_of(base).gpus_per_host
        axis = next((one for one in ("mesh.dp_shard", "mesh.dp_replicate") if keys.get(one) == gpus), None)
        none: dict[str, Any] = {"skipped": [], "other": None, "failed": None}
        if not batch or axis is None or not self._has_free_mesh():
            return none
        skipped, other = _uneven(batch, range(gpus // 2 + 1, gpus), unit), None
        for number in skipped[:-_OTHERS - 1:-1]:
            step = number * int(keys.get("training.micro_batch_size", base.training.micro_batch_size))
            larger = -(-batch // step) * step
            self._trying(together=number)
            shared = changed(base, {"mesh": {}, "training.global_batch_size": larger})
            found = together(shared, {**keys, axis: number}, hosted=hosted)
            layout = self._timed(*found, base=shared) if found and found[1].verdict == "fits" else None
            if layout is None:
                return {"skipped": skipped, "other": other, "failed": None if other else larger}
            other = {"gpus": number, "batch": larger, "layout": dict(layout)}
        return {**none, "skipped": skipped, "other": other}

    def rank(self) -> None:
        """Says the row with fewer GPUs that fit with another batch, then with the fastest layout on the fewest."""
        self.say({"trying": self.name, "ranks": True, **self.place})
        if self.row["skipped"] and self._has_free_mesh():
            self._try_other_batches(self.row["skipped"][:-_OTHERS - 1:-1])
        best = self._fastest(self.row["value"])
        self.row |= {"is_best": True, **({"layout": best} if best else {})}
        beside = self.row["on_device"]
        if not self.is_on_host():
            beside = None
        elif beside is None:
            beside = {"value": self.row["value"], "is_fewest": self.row["is_fewest"], "beyond": None, "why": "",
                      "nearest_bytes": None, "skipped": [], "together": None,
                      "layout": self._fastest(self.row["value"], on_device=True)}
        self._found(on_device=beside)

    def _fastest(self, number: int, *, on_device: bool = False) -> dict[str, Any] | None:
        """The fastest layout on a number of GPUs; None if none fits."""
        asked = self._search(on_device=on_device)
        best = search(replace(asked, space=replace(asked.space, gpus=(number,)))).ranked
        return best[0].model_dump() if best else None

    def _try_other_batches(self, numbers: Sequence[int]) -> None:
        """Says the row with each number, descending, on which some layout surely fits with a larger batch."""
        training = self.question.scenario().training
        for number in numbers:
            step = number * training.micro_batch_size
            batch = -(-(training.global_batch_size or 1) // step) * step
            best = self._with_batch(number, batch)
            if best is None:
                self._found(failed=None if self.row["other"] else batch)
                return
            self._found(other={"gpus": number, "batch": batch, "layout": best})

    def _with_batch(self, number: int, batch: int) -> dict[str, Any] | None:
        """The fastest layout on a number of GPUs with another batch of a step; None if none surely fits."""
        values = self.question.values
        training = {**values["training"], "global_batch_size": batch}
        question = replace(self.question, values={**values, "mesh": {}, "training": training})
        space = replace(space_of_question(question), gpus=(number,))
        best = search(Search(space, (OBJECTIVES["tokens"], OBJECTIVES["peak"]), top=1)).ranked
        return best[0].model_dump() if best else None

    def _search(self, *, on_device: bool = False) -> Search:
        """The search over the question's space; `on_device`: without states on the host that the job has not there."""
        space = space_of_question(self.question)
        if on_device:
            training = self.question.scenario().training.model_dump(mode="json")
            stay = (condition(f"{_OFFLOAD}{part} == {place!r}") for part, place in training["offload"].items()
                    if place == "none")
            space = replace(space, conditions=(*space.conditions, *stay))
        return Search(space, (OBJECTIVES["tokens"], OBJECTIVES["peak"]), top=1)

    def _trying(self, **more: object) -> None:
        nearest = self.missed.said()["nearest"] if self.row["value"] is None else None
        self.say({"trying": self.name, **self.place, **more, **({"nearest": nearest} if nearest else {})})

    def _tried(self, value: Value, count: int) -> None:
        if time.monotonic() - self.said_at > _PAUSE_S:
            self.said_at = time.monotonic()
            self._trying(gpus=value, layouts=count)

    def _holds(self, value: Value, candidate: Candidate, sized: Sized) -> None:
        if self.row["value"] is None or value < self.row["value"]:
            self._found(value=value, layout=self._timed(candidate, sized))

    def _misses(self, value: Value, candidate: Candidate, sized: Sized) -> None:
        self.missed.add(candidate, sized)
        _note(self.at, value, candidate, sized)

    def _nearest(self, value: Value | None) -> dict[str, Any] | None:
        """The layout nearest to fitting of those on fewer GPUs than the fewest, or of all; None without any."""
        found = [one.said()["nearest"] for number, one in self.at.items()
                 if not isinstance(value, int) or number < value]
        return max(filter(None, found), key=lambda one: one["usable_bytes"] - one["peak_bytes"], default=None)

    def _timed(self, candidate: Candidate, sized: Sized, *, base: Scenario | None = None) -> Mapping[str, Any] | None:
        base = base or self.question.scenario()
        (time_of,) = timed(base, [candidate])
        return layout_of(base, candidate, sized, time_of).model_dump() if time_of else None

    def _found(self, **known: object) -> None:
        self.row |= known
        self.say({"fewest": dict(self.row)})
