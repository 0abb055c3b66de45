"""Invariants of two answers: to one question asked in two ways, or to two questions of which one is larger.

[Note: what more ranks may change]
More ranks hold no more of what is split over them, and more copies change nothing on a rank. Left aside is what a
framework does on purpose:
- padding: `padding_bytes` is not at rest, but gathers and buffers of the peak have it, so of more ranks it is what
  rests that is compared, element by element;
- experts that are split over copies too (FSDP2 and Automodel, where ep > 1: over dp_shard x dp_replicate / ep);
- what is dealt out whole: a bucket, or a matrix of Muon, goes to one rank or another.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel

from fuzz.case import Findings, Tree
from fuzz.drawing import changed, parsed, per_microbatch
from fuzz.invariants import numbers
from simcore.errors import RankscopeError
from simcore.results.report import RankReport, Report
from simcore.simulate import check, place, simulate

__all__ = ["PAIRS", "Pair"]

Pair = Callable[[Tree, Report, Findings], None]
_FEW: Final = 24
"""Ranks that are simulated one by one."""
_MOST_WRITTEN: Final = 40
"""Microbatches that are written out."""
_NS: Final = 1e-9
_ROUNDED: Final = 1024
"""Bytes by which a buffer of a share of what is free (refitting) may shrink by more than what grew: two blocks."""
_TOO_LONG: Final = "expected a step of at most"
"""Beginnings of refusals of unfolded ranks that make too many operations."""
_PADDED: Final = 1e-5
"""Share of a peak that padding of flat buffers may come to."""


def _answer(tree: Tree, found: Findings, **how: Any) -> Report | None:
    """None where the other question is refused, which says nothing."""
    try:
        report = simulate(parsed(tree), **how)
    except RankscopeError:
        return None
    found.count(f"pair {report.status}")
    return report if report.status == "ok" else None


# ---- one question, asked in two ways --------------------------------------------------------------------------------
def again(tree: Tree, report: Report, found: Findings) -> None:
    """The same question has the same answer, byte for byte."""
    other = _answer(tree, found)
    found.expect("the same question again has the same answer",
                 other is not None and other.model_dump_json() == report.model_dump_json(), "another answer")


def reordered(tree: Tree, report: Report, found: Findings) -> None:
    """The order of keys says nothing."""
    other = _answer(_reversed(tree), found)
    found.expect("the order of keys changes nothing", other is not None and _bare(other) == _bare(report),
                 lambda: _difference(report, other))


def omitted(tree: Tree, report: Report, found: Findings) -> None:
    """An option that is null, or auto, is left out."""
    options = {key: value for key, value in tree.get("framework_options", {}).items() if value is not None}
    if len(options) == len(tree.get("framework_options", {})):
        return
    other = _answer({**tree, "framework_options": options}, found)
    same = other is not None and other.model_copy(update={"assumptions": ()}) == report.model_copy(
        update={"assumptions": (), "scenario": other.scenario})
    found.expect("null is left out", same, lambda: _difference(report, other))


def folded(tree: Tree, report: Report, found: Findings) -> None:
    """A class of ranks is what each of its ranks is when all are simulated."""
    if report.scenario.get("workload") != "train" or sum(rank.num_ranks for rank in report.ranks) > _FEW:
        return
    other = _answer(tree, found, fold=False)
    if other is None:
        refused = simulate(parsed(tree), fold=False).problems
        found.expect("unfolded ranks are answered too", any(_TOO_LONG in one.message for one in refused), f"{refused}")
        return
    classes, ranks = _per_rank(report), _per_rank(other)
    for number, rank in ranks.items():
        mine = classes[number]
        for name in ("padding_bytes",) if _is_dealt(report) else ("padding_bytes", "peak", "traffic", "at_rest"):
            if name == "at_rest" and mine.apportioned:
                continue
            folded, alone = ((_payloads(one) if name == "traffic" else getattr(one, name)) for one in (mine, rank))
            found.expect(f"folded {name} is that of every rank", folded == alone,
                         f"rank {number} alone: {_differences(folded, alone)}")
    for way in ("nvlink_bytes", "network_bytes"):  # which neighbours are on a node differs inside a class: its mean
        sent = [sum(rank.num_ranks * getattr(row, way) for rank in one.ranks for row in rank.traffic)
                for one in (report, other)]
        calls = sum(row.calls for rank in other.ranks for row in rank.traffic)
        found.expect(f"{way} of all ranks are the same unfolded", abs(sent[0] - sent[1]) <= calls, str(sent))
    if report.time and other.time and not _is_assumed(report) and not _is_assumed(other):
        found.expect("folded steps take as long", round(report.time.step_s * 1e9) == round(other.time.step_s * 1e9),
                     f"{report.time.step_s} s, unfolded {other.time.step_s} s")
    _conserved(tree, other, found)


def _payloads(rank: RankReport) -> tuple[Any, ...]:
    """Traffic without the links that it takes."""
    return tuple(row.model_copy(update={"nvlink_bytes": 0, "network_bytes": 0}) for row in rank.traffic)


def _is_assumed(report: Report) -> bool:
    """True if the report says that its microbatches differ in time, because the step is too long to simulate all."""
    return any(one.what == "step_s" for one in report.assumptions)


def written_out(tree: Tree, report: Report, found: Findings) -> None:
    """A few microbatches stand for all: nothing is left behind by one of them, and each takes as long."""
    if report.scenario.get("workload") != "train" or (per_microbatch(tree) or 1) > _MOST_WRITTEN:
        return
    other = _answer(tree, found, whole=True)
    if other is None:
        return
    for mine, rank in zip(report.ranks, other.ranks, strict=True):
        same = (mine.peak, mine.traffic, mine.end_bytes) == (rank.peak, rank.traffic, rank.end_bytes)
        told = "" if same else _differences(mine, rank)
        found.expect("few microbatches stand for all", same, f"rank {mine.ranks[0]}, written out: {told}")
    if report.time and other.time and not _is_assumed(report):
        found.expect("a step takes as long when it is written out",
                     abs(report.time.step_s - other.time.step_s) <= _NS + 1e-9 * other.time.step_s,
                     f"{report.time.step_s} s, written out {other.time.step_s} s")


def placed(tree: Tree, report: Report, found: Findings) -> None:
    """`run`, `place` and `run --rank` say the same of what rests on a rank."""
    if report.scenario.get("workload") != "train":
        return
    there = _total(report)
    whole = place(parsed(tree))
    found.expect("place answers what run answers", whole.status == "ok", str(whole.problems))
    number = int(report.ranks[-1].ranks[-1].partition("-")[0].partition(":")[0])
    alone = _answer(tree, found, rank=number)
    found.expect("run --rank answers what run answers", alone is not None, "refused")
    if whole.status != "ok" or alone is None:
        return
    mine, placed_there, single = _per_class(report, number), _per_class(whole, number), alone.ranks[0]
    if not mine.apportioned:
        found.expect("run and place agree on what rests", mine.at_rest == placed_there.at_rest,
                     f"rank {number}, place: {_differences(mine.at_rest, placed_there.at_rest)}")
    if not placed_there.apportioned:
        found.expect("place and run --rank agree on what rests", placed_there.at_rest == single.at_rest,
                     f"rank {number}, --rank: {_differences(placed_there.at_rest, single.at_rest)}")
    found.expect("run and run --rank agree on the peak", mine.peak == single.peak,
                 f"rank {number} alone: {_differences(mine.peak, single.peak)}")
    if not mine.apportioned or placed_there.apportioned:  # else a class's mean beside what one rank has
        found.expect("run and place agree on padding", mine.padding_bytes == placed_there.padding_bytes,
                     f"rank {number}: {mine.padding_bytes}, place {placed_there.padding_bytes}")
    for name, total in _total(whole).items():
        if mine.apportioned and (report.scenario["training"]["optimizer"]["paged"] or (
                name == "optimizer_bytes" and _has_small_states(report))):
            continue  # what of a parameter a rank has decides whether it is paged, and in how many bits its states are
        off = abs(total - there[name])
        found.expect(f"{name} of all ranks are the same in run and place", off <= _rounding(report) + total * 1e-6,
                     f"run {there[name]}, place {total}")


def _has_small_states(report: Report) -> bool:
    """States of 8 bits are of 32 in pieces under 4,096 elements: a class's mean piece is not what each rank has."""
    return str(report.scenario["training"]["optimizer"]["moments"]) == "int8" or any(
        one.what == "training.optimizer.moments" and "int8" in one.value for one in report.assumptions)


def checked(tree: Tree, report: Report, found: Findings) -> None:
    """`check` accepts what `run` answers."""
    found.expect("check accepts what run answers", check(parsed(tree)).status == "ok", "refused")


# ---- a larger question ----------------------------------------------------------------------------------------------
def longer(tree: Tree, report: Report, found: Findings) -> None:
    """Twice the tokens need no less memory."""
    training = tree.get("training", {})
    if "seq_len" in training and training.get("lengths", "fixed") == "fixed":
        _peak_grows("a longer sequence", tree, {"training.seq_len": 2 * training["seq_len"]}, report, found)


def wider(tree: Tree, report: Report, found: Findings) -> None:
    """Twice the sequences of a microbatch need no less memory."""
    training = tree.get("training", {})
    if "seq_len" in training and training.get("lengths", "fixed") == "fixed":
        size = 2 * training.get("micro_batch_size", 1)
        _peak_grows("a larger microbatch", tree, {"training.micro_batch_size": size}, report, found)


def _peak_grows(what: str, tree: Tree, changes: dict[str, Any], report: Report, found: Findings) -> None:
    other = _answer(changed(tree, changes), found)
    if other is None or _fetches_ahead(report):
        return
    if report.phases:
        _phases_grow(what, report, other, found)
        return
    before, after = _peak(report), _peak(other)
    found.expect(f"{what} needs no less", after >= before, f"{before} B, then {after} B")


def _phases_grow(what: str, report: Report, other: Report, found: Findings) -> None:
    """Each phase of DPO and GRPO, for the highest one may become another.

    Buffers of a refit are a share of what is free.
    """
    for mine, theirs in zip(report.ranks, other.ranks, strict=False):
        before, after = _phases_of(mine, report), _phases_of(theirs, other)
        for phase in before.keys() & after.keys() - {"refit"}:
            found.expect(f"{what} needs no less in any phase", after[phase] >= before[phase] - _ROUNDED,
                         f"{phase}: {before[phase]} B, then {after[phase]} B")


def _phases_of(rank: RankReport, report: Report) -> dict[str, int]:
    """Allocated bytes of each phase, without the cache of an engine that stays awake, as one with GPUs of its own does.

    Longer profile runs of the engine leave less for that cache, and all other phases have it beside them.
    """
    if rank.peak is None:
        return {}
    generation = report.scenario["generation"] or {}
    is_awake = not (generation.get("colocated") and generation.get("sleep_level"))
    cache = rank.peak.by_category.get("kv_cache", 0) if is_awake else 0
    return {phase: size - cache for phase, size in rank.peak.by_phase.items()}


def sharded(tree: Tree, report: Report, found: Findings) -> None:
    """Twice the ranks to split over hold no more each."""
    mesh = tree.get("mesh", {})
    if "dp_shard" not in mesh or tree.get("workload", "train") != "train":
        return
    other = _answer(changed(tree, {"mesh.dp_shard": 2 * mesh["dp_shard"]}), found, timed=False)
    if other is None or _is_dealt(report) or _is_dealt(other):
        return
    optimizer = report.scenario["training"]["optimizer"]
    if optimizer["paged"] or optimizer["moments"] == "int8":  # states of small parts are not paged, nor in 8 bits
        return
    for before, after in zip(_rests(report), _rests(other), strict=True):
        found.expect("more ranks hold no more each", after <= before + 4096 * report.ranks[0].apportioned,
                     f"{before} B at rest on the fullest, then {after} B")


def copied(tree: Tree, report: Report, found: Findings) -> None:
    """Twice the copies, with as many microbatches each, change nothing of what lies on a rank."""
    mesh = tree.get("mesh", {})
    if tree.get("workload", "train") != "train" or _splits_over_copies(report):
        return
    degree = 2 * mesh.get("dp_replicate", 1)
    batch = tree.get("training", {}).get("global_batch_size")
    keys = {"mesh.dp_replicate": degree} | ({"training.global_batch_size": 2 * batch} if batch else {})
    other = _answer(changed(tree, keys), found)  # timed like the first: that may write out more microbatches
    if other is None or degree == 2 or _is_dealt(report) or _defaults(report) != _defaults(other):
        return  # a first copy brings a reduction and its buffers; buckets of Megatron grow with the ranks
    found.expect("copies change nothing at rest", _rests(report) == _rests(other), f"{_rests(report)}, {_rests(other)}")
    off = abs(_peak(report) - _peak(other))  # flat buffers are padded to whole numbers of all ranks
    padded = _PADDED * _peak(report) if any(rank.apportioned for rank in report.ranks) else 0
    found.expect("copies change no peak", off <= padded, f"{_peak(report)} B, then {_peak(other)} B")


def _splits_over_copies(report: Report) -> bool:
    """Experts of FSDP2 and Automodel are; so are states where an option asks for it."""
    scenario = report.scenario
    options = scenario["framework_options"]
    return (scenario["mesh"]["ep"] > 1 and scenario["framework"] in ("fsdp2", "automodel")) or any(
        name in options for name in ("outer_dp_sharding_strategy", "zero_hpz_partition_size", "mics_shard_size"))


def _defaults(report: Report) -> dict[str, str]:
    """Values that the framework chose for `auto`, by key."""
    return {one.what: one.value for one in report.assumptions if one.kind == "default"}


def _is_dealt(report: Report) -> bool:
    return str(report.scenario["training"]["optimizer"]["name"]).endswith("muon")


def _fetches_ahead(report: Report) -> bool:
    """ZeRO-3 fetches by bytes: what of a trace fits beside what is held changes with the trace."""
    return report.scenario.get("framework") == "zero3"


# ---- ranks of one answer --------------------------------------------------------------------------------------------
def _conserved(tree: Tree, report: Report, found: Findings) -> None:
    """Members of a group tell the same calls and bytes: what one of them sends the others receive."""
    from simcore.frameworks.setup import prepare

    job, _ = prepare(parsed(tree))
    told: dict[object, set[object]] = {}
    for rank in report.ranks:
        number = int(rank.ranks[0])
        for row in rank.traffic:
            if row.collective not in ("send_recv", "copy"):  # of a line of stages those at the ends send half
                group = tuple(job.mesh.group(number, row.axis))
                made = (row.axis, group, row.collective, row.phase, row.dtype)
                told.setdefault(made, set()).add((row.calls, row.payload_bytes))
    for call, rows in told.items():
        found.expect("members of a group tell the same", len(rows) == 1, f"{call}: {rows}")


def _per_rank(report: Report) -> dict[int, RankReport]:
    return {number: rank for rank in report.ranks for text in rank.ranks for number in numbers(text)}


def _per_class(report: Report, number: int) -> RankReport:
    return next(rank for rank in report.ranks if rank.has_rank(number))


def _peak(report: Report) -> int:
    return max((rank.peak.allocated_bytes for rank in report.ranks if rank.peak), default=0)


def _rests(report: Report) -> tuple[int, int, int]:
    """Parameters, gradients and states on the fullest rank of each."""
    ranks = [list(rank.at_rest.values()) for rank in report.ranks]
    return (max(sum(part.params_bytes for part in parts) for parts in ranks),
            max(sum(part.grads_bytes for part in parts) for parts in ranks),
            max(sum(part.optimizer_bytes for part in parts) for parts in ranks))


def _total(report: Report) -> dict[str, int]:
    """Parameters, gradients and states of all ranks."""
    made = {"params_bytes": 0, "grads_bytes": 0, "optimizer_bytes": 0}
    for rank in report.ranks:
        for part in rank.at_rest.values():
            for name in made:
                made[name] += rank.num_ranks * getattr(part, name)
    return made


def _rounding(report: Report) -> int:
    """A class's mean is rounded down, by tensor: some bytes of each on each rank."""
    return 4096 * sum(rank.num_ranks for rank in report.ranks if rank.apportioned)


def _bare(report: Report) -> dict[str, Any]:
    return report.model_dump(exclude={"scenario"})


def _difference(report: Report, other: Report | None) -> str:
    return "refused" if other is None else _differences(_bare(report), _bare(other))


def _differences(one: Any, other: Any, key: str = "") -> str:
    """The values that differ, by key; the first few."""
    one, other = (value.model_dump() if isinstance(value, BaseModel) else value for value in (one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        told = (_differences(one.get(name), other.get(name), f"{key}.{name}".lstrip("."))
                for name in dict.fromkeys((*one, *other)))
        return ", ".join(islice(filter(None, told), 5))
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return ", ".join(islice(filter(None, (_differences(a, b, key) for a, b in zip(one, other, strict=True))), 3))
    return "" if one == other else f"{key} {one!s:.80} -> {other!s:.80}"


def _reversed(value: Any) -> Any:
    """The same with keys in the opposite order; a sweep's and an override's too."""
    if isinstance(value, dict):
        return {key: _reversed(inner) for key, inner in reversed(value.items())}
    return deepcopy(value)


PAIRS: Final[dict[str, Pair]] = {pair.__name__: pair for pair in (
    again, reordered, omitted, folded, written_out, placed, checked, longer, wider, sharded, copied)}
