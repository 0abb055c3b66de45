"""Advice for a scenario that does not surely fit: changes that would make it fit, each of them simulated.

Changes are keys, as `--set` takes them (`simcore.batch.changes`), tried alone and in pairs under every framework with
its own options; what the framework refuses is skipped. They are ordered by what a user loses:

    time      other layouts, recomputation, smaller micro batches, offload: the shortest step first
    gpus      the fewest GPUs on which the scenario fits as it is
    numerics  formats of gradients, states and parameters: numbers come out differently, with a warning
    job       half the sequence, with a warning
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_args

from simcore.batch.changes import FACTORS, Change, Loss, changes
from simcore.batch.solve import keys_of, limit_of
from simcore.errors import InputError
from simcore.frameworks.setup import prepare
from simcore.inputs.bounds import ADVISED_LOADS, ADVISED_RANKS, ADVISED_ROWS
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.inputs.training import Draws
from simcore.models.blocks import Moe
from simcore.placement.job import topology_of
from simcore.results.detail import MAX_DETAILED
from simcore.results.report import Advice, Report
from simcore.results.verdict import Verdict
from simcore.simulate import rows_of, simulate

__all__ = ["advise", "may_be_tried", "work"]

_FEW: Final = 8
"""Largest run whose scenarios get advice by default: advice takes dozens of simulations for each."""

_MOST: Final = 5
_NEAREST: Final = 3
"""Number of changes that are shown if none fits: those with the lowest peak."""
_PAIRS: Final = 40
"""Pairs of changes that are tried, those of least effort."""
_PAIR_ROWS: Final = 4_000_000
"""Rows of all pairs that are tried: a step with many rows gets fewer pairs."""
_MOST_GPUS: Final = 16
"""Times the GPUs of the scenario that are tried at most."""
_HOSTS: Final = 4
"""Numbers of whole hosts that are tried from the fewest GPUs on."""
_LOSSES: Final[tuple[Loss, ...]] = get_args(Loss)
_BATCH: Final = "training.global_batch_size"

_ENGINES: Final[tuple[Mapping[str, Any], ...]] = (
    {"generation.max_num_seqs": 256},
    {"generation.gpu_memory_utilization": 0.95},
    {"generation.kv_dtype": "fp8"},
)


@dataclass(frozen=True, slots=True)
class _Tried:
    """A simulated change: its verdict, device bytes on the fullest rank, and headroom in bytes.

    `starts`: False if an engine that generates does not start.
    """

    change: Change
    verdict: Verdict
    peak: int
    headroom: int
    starts: bool = True

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"


def work(num_scenarios: int, *, asked: bool | None, drawn: bool = False, shown: bool = False) -> Callable[..., Report]:
    """Function that simulates one `Scenario` and returns its report, with advice unless it fits.

    With its keyword `rank` (one rank alone) there is no advice. `asked`: True: with advice; False: without; None: with
    advice in a run of at most 8 scenarios. `drawn`: reports go into an HTML page, so those of a run of at most
    `MAX_DETAILED` scenarios carry the details for its figures. `shown`: reports go to a terminal, so that of a single
    scenario carries its memory over the step.
    """
    chosen = _advised if asked or (asked is None and num_scenarios <= _FEW) else simulate
    detail, series = drawn and num_scenarios <= MAX_DETAILED, shown and num_scenarios == 1
    return partial(chosen, detail=detail, series=series) if detail or series else chosen


def _advised(scenario: Scenario, *, detail: bool = False, series: bool = False, rank: int | None = None) -> Report:
    """Result of `simulate`, with advice unless it fits. With `rank` there is no advice: others may be fuller."""
    report = simulate(scenario, detail=detail, series=series, rank=rank)
    if report.verdict in ("fits", None) or rank is not None:
        return report
    return report.model_copy(update={"advice": advise(scenario)})


def advise(scenario: Scenario) -> tuple[Advice, ...]:
    """At most 5 changes of keys with which `scenario` surely fits, each simulated; only the best of each kind.

    They are ordered by what a user loses (`Loss`), and within that by step time; more GPUs are always among them where
    they help. If nothing surely fits: the 3 with the lowest peak, with verdict "unsure" or "oom". Empty if the scenario
    has no peak, or is too large to be simulated dozens of times. For workload "serve": of each kind the smallest change
    with which the inference engine starts, in a fixed order of kinds; empty if none helps.
    """
    if scenario.workload == "serve":
        return tuple(_of_engine(scenario))[:_MOST]
    if not may_be_tried(scenario):
        return ()
    found = simulate(scenario, timed=False)
    base = _peak(found)
    if base is None:
        return ()
    alone = list(_all_tried(scenario, changes(scenario)))
    singles = [tried for tried in alone if tried.peak < base[0] or tried.starts > _starts(found)]
    num_pairs = min(_PAIRS, _PAIR_ROWS // rows_of(scenario))
    pairs = list(_all_tried(scenario, itertools.islice(sorted(_pairs(singles), key=_effort), num_pairs)))
    pairs += _all_tried(scenario, itertools.islice(_second_round(alone, base[0]), num_pairs))
    fitting = [*_best(tried for tried in (*singles, *pairs) if tried.fits), *_more_gpus(scenario)]
    if fitting:
        advice = [(_LOSSES.index(tried.change.loss), _told(scenario, tried)) for tried in fitting]
        advice.sort(key=lambda told: (told[0], told[1].step_s or math.inf))
        return tuple(_first(advice))
    nearest = sorted((*singles, *pairs), key=lambda tried: (not tried.starts, tried.peak))
    return tuple(_told(scenario, tried) for tried in nearest[:_NEAREST])


def may_be_tried(scenario: Scenario) -> bool:
    """True for a scenario that is small enough to be simulated dozens of times."""
    return (scenario.world_size <= ADVISED_RANKS and rows_of(scenario) <= ADVISED_ROWS
            and _num_loads(scenario) <= ADVISED_LOADS)


def _first(advice: Sequence[tuple[int, Advice]]) -> Iterator[Advice]:
    """First pieces of advice, given with the index of their loss; more GPUs stay among them, as the last if need be."""
    gpus = _LOSSES.index("gpus")
    last = next((told for told in advice[_MOST - 1:] if told[0] == gpus), None)
    for _, told in [*advice[:_MOST - 1], last] if last else advice[:_MOST]:
        yield told


def _num_loads(scenario: Scenario) -> int:
    """Loads that random routing draws in a simulation: of each rank, microbatch and layer with experts."""
    routing = scenario.training.routing
    if not isinstance(routing, Draws):
        return 0
    graph = prepare(scenario)[0].graph
    layers = sum(any(isinstance(branch.block, Moe) for branch in graph.kinds[layer.kind].branches)
                 for layer in graph.layers)
    return routing.draws * scenario.world_size * scenario.num_microbatches * layers


def _told(scenario: Scenario, tried: _Tried) -> Advice:
    other = changed(scenario, tried.change.keys)
    time = simulate(other).time
    return Advice(changes=dict(tried.change.keys), verdict=tried.verdict, peak_bytes=tried.peak,
                  headroom_bytes=tried.headroom, step_s=time.step_s if time else None, num_gpus=other.world_size,
                  warning=tried.change.warning)


def _of_engine(scenario: Scenario) -> Iterator[Advice]:
    """Smallest change of each kind with which an engine starts that does not."""
    tp, length = scenario.mesh.tp, scenario.training.seq_len
    more = [{"generation.tp": tp * factor, "mesh.tp": tp * factor} for factor in FACTORS]
    shorter = [{"generation.max_model_len": length // factor} for factor in FACTORS if length >= factor]
    ways: list[Sequence[Mapping[str, Any]]] = [*([keys] for keys in _ENGINES), shorter, more]
    for way in ways:
        tried = ((keys, simulate(changed(scenario, keys))) for keys in way)
        starts = next(((keys, report) for keys, report in tried if report.job_verdict == "fits"), None)
        if starts is not None and (peak := _peak(starts[1])):
            yield Advice(changes=dict(starts[0]), verdict="fits", peak_bytes=peak[0], headroom_bytes=peak[1])


def _more_gpus(scenario: Scenario) -> Iterator[_Tried]:
    """The fewest GPUs on which the scenario surely fits, if they are more than it has; beyond one host, whole hosts."""
    world, host = scenario.world_size, topology_of(scenario).gpus_per_host
    limit = limit_of(scenario, "gpus", between=(world, min(world * _MOST_GPUS, ADVISED_RANKS)), checked=False)
    if limit.peak_bytes is None or limit.headroom_bytes is None or not isinstance(limit.value, int):
        return
    least = -(-limit.value // host) * host
    if limit.value in (least, *range(host)):
        yield _Tried(Change("GPUs", 7, limit.keys, loss="gpus"), "fits", limit.peak_bytes, limit.headroom_bytes)
        return
    batch = scenario.training.global_batch_size
    whole = [keys_of(scenario, "gpus", number) for number in range(least, 2 * least + host, host)]
    whole.sort(key=lambda keys: keys.get(_BATCH) != batch)
    rounded = (_tried(scenario, Change("GPUs", 7, keys, loss="gpus")) for keys in whole[:_HOSTS])
    yield from itertools.islice((one for one in rounded if one is not None and one.fits), 1)


def _effort(change: Change) -> tuple[int, int, int]:
    return (change.size, change.factor, len(change.keys))


def _best(tried: Iterable[_Tried]) -> list[_Tried]:
    """First change of each kind: the smallest, then the one with most headroom."""
    first: dict[str, _Tried] = {}
    for change in sorted(tried, key=lambda tried: (*_effort(tried.change), -tried.headroom)):
        first.setdefault(change.change.kind, change)
    return list(first.values())


def _pairs(singles: Sequence[_Tried]) -> Iterator[Change]:
    """Pairs of the best changes of each kind and factor that do not fit alone; and pairs of recomputed modules."""
    most: dict[tuple[str, int], Change] = {}
    alone = [single for single in singles if not single.fits]
    for tried_change in sorted(alone, key=lambda tried: tried.peak):
        most.setdefault((tried_change.change.kind, tried_change.change.factor), tried_change.change)
    for a, b in itertools.combinations(sorted(most.values(), key=_effort), 2):
        if all(key == _BATCH and a.keys[key] == b.keys[key] for key in set(a.keys) & set(b.keys)):
            yield _together(a, b)
    modules = [single.change for single in alone
               if isinstance(single.change.keys.get("training.recompute"), list)]
    for a, b in itertools.combinations(modules, 2):
        together = dict.fromkeys((*a.keys["training.recompute"], *b.keys["training.recompute"]))
        yield replace(a, size=a.size + b.size, keys={"training.recompute": list(together)})


def _second_round(alone: Sequence[_Tried], base: int) -> Iterator[Change]:
    """Pairs of a change that costs time only and lowers the peak, and of one that lowers nothing alone.

    The first moves the peak to another moment of the step, which the second lowers: an optimizer's temporaries count
    only where recomputation has taken the backward's peak below them. Firsts are the best of each kind, those with the
    lowest peak before others. `base`: bytes of the peak without a change.
    """
    firsts: dict[str, Change] = {}
    for tried in sorted(alone, key=lambda tried: tried.peak):
        if tried.peak < base and not tried.fits and tried.change.loss == "time":
            firsts.setdefault(tried.change.kind, tried.change)
    idle = [tried.change for tried in alone if tried.peak >= base and not tried.fits]
    for first, second in itertools.product(firsts.values(), sorted(idle, key=_effort)):
        if first.kind != second.kind and not set(first.keys) & set(second.keys):
            yield _together(first, second)


def _together(a: Change, b: Change) -> Change:
    """Both changes; it costs what the more expensive of them costs."""
    loss = max(a.loss, b.loss, key=_LOSSES.index)
    warning = ", ".join(change.warning for change in (a, b) if change.warning)
    return Change(f"{a.kind}, {b.kind}", a.size + b.size, {**a.keys, **b.keys}, a.factor * b.factor, loss, warning)


# ---- simulated ------------------------------------------------------------------------------------------------------
def _all_tried(scenario: Scenario, changes: Iterable[Change]) -> Iterator[_Tried]:
    for change in changes:
        tried = _tried(scenario, change)
        if tried is not None:
            yield tried


def _tried(scenario: Scenario, change: Change) -> _Tried | None:
    """Simulated change; None if it is refused (by scenario, framework or topology) or rests on an assumption."""
    try:
        other = changed(scenario, change.keys)
    except InputError:
        return None
    if other == scenario:
        return None
    report = simulate(other, timed=False)
    if any(a.what in change.keys and a.kind == "assumed" for a in report.assumptions):
        return None
    peak = _peak(report)
    return peak and report.job_verdict and _Tried(change, report.job_verdict, *peak, _starts(report))


def _starts(report: Report) -> bool:
    """False if the report has an engine that generates and does not start."""
    return not (report.serving and report.serving.refusal)


def _peak(report: Report) -> tuple[int, int] | None:
    """(device bytes, headroom) on the fullest rank; None without a result."""
    highest, headroom = report.highest_bytes, report.headroom_bytes
    return None if highest is None or headroom is None else (highest, headroom)
