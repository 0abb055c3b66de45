"""All candidates of a space: memory of each first, then times in the order of proven bounds, until the answer is sure.

[Note: order of a search]
Memory needs no time, so it is simulated first, and only candidates that fit go on. They are sorted by the lower bound
of the objective (`simulation/bounds.py`), and timed in rounds of a fixed number. A candidate whose bound is worse than
the last place of the ranking, and which a timed layout dominates in the Pareto set even if its step were as short as
the bound, is never timed: its own value can only be worse. Rounds do not depend on the number of processes, so neither
does the answer, nor any count in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.executors.driver import Died, Unanswered, answers, opened
from simcore.executors.executor import Executor, Open
from simcore.executors.interrupts import Interrupts, interrupts
from simcore.executors.shard import Shard
from simcore.inputs.scenario import Mesh, Scenario
from simcore.inputs.sweep import split_key
from simcore.results.found import FoundLayout, RefusedBy, SearchCounts, SearchResult
from simcore.search.condition import Condition
from simcore.search.journal import ANSWER, JOURNAL, Answered, Memory, journal
from simcore.search.judge import Candidate, Judged, Refused, Sized, Status, Timed, judged, timed
from simcore.search.objective import Objective, Value
from simcore.search.rows import CandidateRows, Fates, write_rows
from simcore.search.space import Space, candidates, place_of_space
from simcore.search.watch import UNWATCHED, Watch

__all__ = ["Search", "holds", "layout_of", "search"]

_DIED: Final = "a process that simulated layouts died three times (out of memory?); try fewer with -j"
_ROUND: Final = 32
"""Candidates that are timed between two looks at what the bounds still allow."""
_Task = tuple[str, Candidate]
"""Stage of a search, "memory" or "time", and a candidate."""
Progress = Callable[[str, int, int, int], None]


@dataclass(frozen=True, slots=True)
class Search:
    """Question of a search.

    `objectives`: the first ranks, all make the Pareto set; `top`: places of the ranking; `unsure`: layouts whose
    verdict is "unsure" count as fitting; `place`: opens the executor, None: this process; `prunes` False times every
    layout that fits.
    """

    space: Space
    objectives: tuple[Objective, ...]
    top: int = 10
    unsure: bool = False
    place: Open[Any] | None = None
    prunes: bool = True


@dataclass(slots=True)
class _Found:
    """A layout that fits: its candidate, memory and, once simulated, time."""

    index: int
    candidate: Candidate
    sized: Sized
    time: Timed | None = None
    is_out: bool = False

    def value(self, objective: Objective, *, bound: bool = False) -> Value:
        seconds = self.sized.least_s if bound or self.time is None else self.time.step_s
        return objective.value(self.sized, seconds)


@dataclass(slots=True)
class _Counts:
    """Counts of a running search, see `SearchCounts`.

    `fates`: what became of each candidate, None where no rows are written. `first`: the first candidate of each
    refusal, and its message.
    """

    fates: Fates | None = None
    refused: Counter[tuple[Status, str]] = field(default_factory=Counter)
    first: dict[tuple[Status, str], tuple[int, str]] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)

    def miss(self, index: int, answer: Judged) -> None:
        """Counts a candidate that is refused or does not surely fit."""
        if not isinstance(answer, Refused):
            self.others["at_rest" if answer is None else answer.verdict] += 1
            return
        key = (answer.status, answer.rule)
        self.refused[key] += 1
        self.first[key] = min(self.first.get(key, (index, answer.message)), (index, answer.message))

    def rows(self) -> tuple[RefusedBy, ...]:
        """Refusals by their number, then by their place in the space; the same in whatever order they came."""
        keys = sorted(self.refused, key=lambda key: (-self.refused[key], self.first[key]))
        return tuple(RefusedBy(status=status, rule=rule, message=self.first[status, rule][1],
                               count=self.refused[status, rule]) for status, rule in keys)


def search(question: Search, told: Progress = lambda stage, done, all_of, found: None, kept: Path | None = None, *,
           shard: Shard | None = None, parts: Sequence[Path] = (),
           noted: Callable[[Problem], None] = lambda note: None,
           taken: Callable[[CandidateRows], None] | None = None,
           watch: Watch = UNWATCHED) -> SearchResult:
    """Searches all candidates of the question's space.

    `told(stage, done, all_of, found)` is called as work goes on; stages are "memory" and "time", `found` counts those
    that surely fit. `kept`: folder of a journal, from which a search that was stopped goes on, and of the answer with
    its rows; None: nothing is written. `shard`: only that part of the candidates. `parts`: folders of the journals of
    all shards, from which answers are taken. `noted` is called with the reason where no rows can be written, `taken`
    with the rows; `watch` is told what is found. SystemExit after a signal, with the exit code of the signal.
    InputError for an empty space, conditions that cannot be decided, and folders that cannot be used.
    """
    num = sum(1 for _ in candidates(question.space))
    if not num:
        raise InputError(Problem(place_of_space(question.space.base), _empty(question.space)))
    counts = _Counts(None if kept is None and taken is None else Fates(num))
    with journal(kept, question.space, shard, parts) as known, interrupts() as asked:
        if parts:
            _expect_finished(num, known, len(parts))
        mine = num if shard is None else len(shard.part(range(num)))
        every = _Candidates(question.space, shard)
        one = partial(_one, question.space.base)
        with opened(question.place, one, asked) as executor:
            work = _Work(one, executor, asked, known)
            answered = work.answers("memory", every, mine, partial(told, "memory"))
            fitting = sorted(_fitting(answered, question, counts, watch), key=lambda found: found.index)
            _rank(fitting, question, counts, partial(work.answers, "time"),
                  partial(_after_round, question, fitting, partial(told, "time"), watch))
        result = _result(question, mine, fitting, counts)
        if shard is None:
            known.end(result)
        if counts.fates is not None:
            rows = CandidateRows(question.space.base, every, counts.fates, partial(_last, fitting))
            if kept is not None:
                _write_rows(kept, kept / (ANSWER if shard is None else JOURNAL), rows, noted)
            if taken is not None:
                taken(rows)
    return result


def _last(fitting: Sequence[_Found], index: int) -> tuple[str, Timed | None]:
    """Outcome and time of a candidate with memory that fits or may; `fitting`: in the order of the space."""
    at = bisect_left(fitting, index, key=lambda found: found.index)
    if at == len(fitting) or fitting[at].index != index:
        return "unsure", None
    found = fitting[at]
    return "excluded" if found.is_out else "slower" if found.time is None else "ranked", found.time


def _write_rows(kept: Path, journal: Path, made: CandidateRows, noted: Callable[[Problem], None]) -> None:
    """Writes a row for each candidate beside the answer, of a shard beside its journal."""
    rows = write_rows(kept, journal, made)
    if rows is not None and rows.problems:
        raise InputError(rows.problems)
    if rows is not None and rows.note is not None:
        noted(rows.note)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Candidates of a space, or of a shard of it, with their indices; made again by each iteration, never held."""

    space: Space
    shard: Shard | None

    def __iter__(self) -> Iterator[tuple[int, Candidate]]:
        every = enumerate(candidates(self.space))
        return every if self.shard is None else (pair for pair in every if self.shard.has(pair[0]))


def _expect_finished(num: int, known: Memory, num_shards: int) -> None:
    """Raises InputError unless the journals of shards have the memory of all candidates."""
    missing = [index for index in range(num) if index not in known.known("memory")]
    if missing:
        message = f"shard {missing[0] % num_shards + 1}/{num_shards} is not finished: run it again, and it goes on"
        raise InputError(Problem("--from", message))


@dataclass(frozen=True)
class _Work:
    """Simulation of candidates by an executor or this process, with a journal of the answers."""

    one: Callable[[_Task], Answered]
    executor: Executor[_Task, Answered] | None
    asked: Interrupts
    known: Memory

    def answers(self, stage: str, every: Iterable[tuple[int, Candidate]], num: int,
                told: Callable[[int, int, int], None]) -> Iterator[tuple[int, Candidate, Any]]:
        """(index, candidate, answer of a stage) of `num` candidates, those in the journal first, then as they come.

        Candidates are taken when there is room for them, so only those in flight are held.
        """
        known = self.known.known(stage)
        done = found = 0
        for index, candidate in every if known else ():
            if index in known:
                done += 1
                found += _surely_fits(known[index])
                yield index, candidate, known[index]
        flying: dict[int, Candidate] = {}
        tasks = ((index, (stage, flying.setdefault(index, one))) for index, one in every if index not in known)
        told(done, num, found)
        for index, answer in answers(tasks, num - done, self.one, self.executor, self.asked):
            if isinstance(answer, Died | Unanswered):
                raise InputError(Problem("rankscope search", _DIED))
            self.known.add(stage, [index], [answer])
            done += 1
            found += _surely_fits(answer)
            yield index, flying.pop(index), answer
            told(done, num, found)
        if self.asked.number:
            raise SystemExit(self.asked.code)


def _surely_fits(answer: Answered) -> bool:
    return isinstance(answer, Sized) and answer.verdict == "fits"


def _one(base: Scenario, task: _Task) -> Answered:
    """Answer to one candidate in one stage."""
    stage, candidate = task
    (answer,) = (judged if stage == "memory" else timed)(base, [candidate])
    return answer


def _empty(space: Space) -> str:
    gpus = ", ".join(map(str, space.gpus))
    return f"no layout: no mesh of {gpus} GPUs has the degrees that are not free, or satisfies every condition on keys"


# ---- memory ----------------------------------------------------------------------------------------------------------
def _fitting(answered: Iterable[tuple[int, Candidate, Judged]], question: Search, counts: _Counts, watch: Watch
             ) -> Iterator[_Found]:
    """Candidates that fit and satisfy the conditions on memory; all others are counted."""
    conditions = [one for one in question.space.conditions if one.needs_memory and not one.needs_time]
    for index, candidate, answer in answered:
        if counts.fates is not None:
            counts.fates.note(index, answer)
        if not isinstance(answer, Sized) or answer.verdict == "oom" or (
                answer.verdict == "unsure" and not question.unsure):
            counts.miss(index, answer)
            watch.missed(candidate, answer)
        else:
            found = _Found(index, candidate, answer)
            if all(holds(one, question.space.base, candidate, answer) for one in conditions):
                watch.sized(candidate, answer)
                yield found
            else:
                counts.others["excluded"] += 1
                if counts.fates is not None:
                    counts.fates.note(index, answer, "excluded")


def holds(one: Condition, base: Scenario, candidate: Candidate, sized: Sized, time: Timed | None = None) -> bool:
    """True if a condition holds of a candidate with these results. InputError if it cannot be decided."""
    results: dict[str, Any] = {
        "peak_gib": sized.peak_bytes / 2**30, "headroom_gib": sized.headroom_bytes / 2**30, "verdict": sized.verdict,
        "num_gpus": sized.num_gpus}
    if time:
        results |= {"step_s": time.step_s, "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu,
                    "mfu": time.mfu, "usd_per_million_tokens": time.usd_per_million_tokens}
    return one.holds({name: results[name] if name in results else key_value(base, candidate, name)
                      for name in one.names})


def key_value(base: Scenario, candidate: Candidate, name: str) -> Any:
    """Value of a dotted key in the scenario that a candidate makes."""
    if name in candidate:
        return candidate[name]
    value: Any = base.normalised()
    for part in split_key(name):
        value = value[part]
    return value


# ---- time ------------------------------------------------------------------------------------------------------------
def _rank(fitting: list[_Found], question: Search, counts: _Counts,
          simulated: Callable[..., Iterable[tuple[int, Candidate, Timed | None]]],
          told: Callable[[int, int, int], None]) -> None:
    """Times layouts until no other can be in the ranking or the Pareto set; `told` is called after each round."""
    conditions = [one for one in question.space.conditions if one.needs_time]
    first = question.objectives[0]
    waiting = sorted(fitting, key=lambda found: (found.value(first, bound=True), found.index))
    done = 0
    while waiting := list(_possible(waiting, fitting, question) if question.prunes else waiting):
        now, waiting = waiting[:_ROUND], waiting[_ROUND:]
        pairs = [(each.index, each.candidate) for each in now]
        times = {index: time for index, _, time in simulated(pairs, len(now), lambda done, all_of, found: None)}
        for found in now:
            time = found.time = times[found.index]
            found.is_out = time is None or not all(
                holds(one, question.space.base, found.candidate, found.sized, time) for one in conditions)
            counts.others["excluded"] += found.is_out
        done += len(now)
        told(done, done + len(waiting), 0)


def _after_round(question: Search, fitting: Sequence[_Found], told: Callable[[int, int, int], None], watch: Watch,
                 done: int, all_of: int, found: int) -> None:
    told(done, all_of, found)
    if watch.ranked is not None:
        watch.ranked(_layouts(question, fitting))


def _possible(waiting: Sequence[_Found], fitting: Sequence[_Found], question: Search) -> Iterator[_Found]:
    """Layouts of `waiting` that the bounds allow in the answer."""
    ranked = _ranking(fitting, question.objectives[0])
    last = ranked[question.top - 1].value(question.objectives[0]) if len(ranked) >= question.top else None
    front = _front([_scalars(found, question.objectives) for found in ranked])
    for found in waiting:
        bound = found.value(question.objectives[0], bound=True)
        if last is None or bound <= last or not _is_dominated(_scalars(found, question.objectives, bound=True), front):
            yield found


def _ranking(fitting: Iterable[_Found], objective: Objective) -> list[_Found]:
    """Timed layouts from good to bad; of several that differ in keys without effect there, the first candidate."""
    timed_ones = (found for found in fitting if found.time and not found.is_out)
    first: dict[object, _Found] = {}
    for found in sorted(timed_ones, key=lambda found: (found.value(objective), found.index)):
        first.setdefault((found.sized, found.time, *_degrees(found.candidate)), found)
    return list(first.values())


def _degrees(candidate: Candidate) -> Iterator[object]:
    """Framework, topology and degrees of a candidate: layouts that differ in these are different answers."""
    return (value for key, value in candidate.items() if key in ("framework", "topology") or key.startswith("mesh."))


def _scalars(found: _Found, objectives: Sequence[Objective], *, bound: bool = False) -> Value:
    return tuple(found.value(one, bound=bound)[0] for one in objectives)


def _front(values: Iterable[Value]) -> list[Value]:
    """Values that no other dominates."""
    kept: list[Value] = []
    for value in sorted(set(values)):
        if not _is_dominated(value, kept):
            kept.append(value)
    return kept


def _is_dominated(value: Value, front: Iterable[Value]) -> bool:
    """True if another value is nowhere larger and somewhere smaller."""
    return any(other != value and all(a <= b for a, b in zip(other, value, strict=True)) for other in front)


# ---- answer ----------------------------------------------------------------------------------------------------------
def _result(question: Search, num: int, fitting: Sequence[_Found], counts: _Counts) -> SearchResult:
    layouts = _layouts(question, fitting)
    num_timed, others = sum(found.time is not None for found in fitting), counts.others
    num_kept = sum(found.time is not None and not found.is_out for found in fitting)
    refused = sum(counts.refused.values())
    base = question.space.base
    return SearchResult(
        name=base.name, path=base.document.path if base.document.lines else "",
        settings={**({"sweep": None} if base.swept else {}), **base.document.settings()},
        objectives=tuple(one.name for one in question.objectives), ranked=tuple(layouts),
        best=tuple(layouts[:question.top]), pareto=tuple(one for one in layouts if one.is_pareto),
        refused=counts.rows(),
        counts=SearchCounts(
            candidates=num, refused=refused, at_rest=others["at_rest"], oom=others["oom"], unsure=others["unsure"],
            excluded=others["excluded"], slower=sum(found.time is None and not found.is_out for found in fitting),
            ranked=len(layouts), alike=num_kept - len(layouts),
            simulated=num - refused - others["at_rest"], timed=num_timed))


def _layouts(question: Search, fitting: Sequence[_Found]) -> list[FoundLayout]:
    """Timed layouts from good to bad, those of the Pareto set marked."""
    ranked = _ranking(fitting, question.objectives[0])
    front = set(_front([_scalars(found, question.objectives) for found in ranked]))
    return [layout_of(question.space.base, found.candidate, found.sized, found.time,
                      is_pareto=_scalars(found, question.objectives) in front)
            for found in ranked if found.time is not None]


def layout_of(base: Scenario, candidate: Candidate, sized: Sized, time: Timed, *, is_pareto: bool = False
              ) -> FoundLayout:
    """A candidate with its memory and time as a layout of the answer."""
    topology = key_value(base, candidate, "topology")
    degrees = {axis: key_value(base, candidate, f"mesh.{axis}") for axis in Mesh.model_fields}
    return FoundLayout(
        keys=dict(candidate), framework=key_value(base, candidate, "framework"),
        topology=topology if isinstance(topology, str) else topology["file"],
        layout=" ".join(f"{axis} {degree}" for axis, degree in degrees.items()
                        if degree is not None and (degree > 1 or axis == "etp")) or "1 rank",
        num_gpus=sized.num_gpus, engine_gpus=sized.engine_gpus, verdict=sized.verdict, peak_bytes=sized.peak_bytes,
        headroom_bytes=sized.headroom_bytes, step_s=time.step_s, tokens_per_s_per_gpu=time.tokens_per_s_per_gpu,
        mfu=time.mfu, usd_per_million_tokens=time.usd_per_million_tokens, evidence=time.evidence, is_pareto=is_pareto)
