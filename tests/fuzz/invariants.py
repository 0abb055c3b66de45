"""Invariants of one answer to any input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fuzz.case import Findings
from simcore.models.graph import model_config
from simcore.results.report import Peak, RankReport, Report

__all__ = ["hold", "numbers_of"]

_SIGNED: Final = frozenset({"headroom_bytes"})
"""Fields that may be less than nothing."""
_NS: Final = 1e-9
_PRINTED: Final = 0.2
"""Least share of printed FLOPs that is executed."""


def hold(report: Report, found: Findings, *, whole: bool = True) -> None:
    """Every invariant, of one answer; it is `whole` where all ranks were asked for."""
    for invariant in _OF_ALL if report.status == "ok" else _OF_REFUSALS:
        if whole or invariant is not every_rank_is_told_once:
            invariant(report, found)


# ---- of refusals ----------------------------------------------------------------------------------------------------
def refusals_are_told_in_one_line(report: Report, found: Findings) -> None:
    """A person reads them beside `file:line`."""
    found.expect("a refusal says why", report.problems, report.status)
    for row in report.problems:
        found.expect("a refusal is one line", row.message and "\n" not in row.message + row.where, repr(row.message))
        found.expect("a refusal has a place", row.where, row.message)
        found.expect("a refusal is of finite numbers", _is_plain(row.message), row.message)
    found.expect("a refusal has no result", not report.ranks and report.verdict is None, report.name)


def _is_plain(text: str) -> bool:
    words = {word.strip("(),.:;'\"=") for word in text.split()}
    return not words & {"nan", "inf", "-inf", "None", "NaN"}


# ---- of all answers -------------------------------------------------------------------------------------------------
def json_reads_back(report: Report, found: Findings) -> None:
    """`--json` is what `report`, `compare` and `--baseline` read."""
    again = Report.model_validate_json(report.model_dump_json())
    found.expect("JSON reads back equal", again == report, report.name)


def numbers_are_finite_and_not_negative(report: Report, found: Findings) -> None:
    """Sums of 64 bits wrap to negative numbers; a division by nothing makes inf or nan."""
    for key, value in numbers_of(report.model_dump(exclude={"scenario"}), ""):
        finite = math.isfinite(value)
        found.expect("no number is infinite or none", finite, f"{key} = {value}")
        found.expect("no number is negative", value >= 0 or key.rpartition(".")[2] in _SIGNED, f"{key} = {value}")


def numbers_of(value: Any, key: str) -> Iterator[tuple[str, float]]:
    """(dotted key, number) of all numbers in what JSON holds; places in lists are left out of keys."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers_of(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from numbers_of(inner, key)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield key, value


def verdict_agrees_with_capacity(report: Report, found: Findings) -> None:
    """The whole band of measured errors fits, is beyond the limit, or contains it; the likely value is in the band."""
    if report.verdict is None or report.headroom_bytes is None or report.serving is not None:
        return
    found.expect("what fits leaves room", {"fits": report.headroom_bytes >= 0, "oom": report.headroom_bytes < 0}.get(
        report.verdict, True), f"{report.verdict}, {report.headroom_bytes} B left")
    if report.band_bytes and report.highest_bytes is not None:
        (low, high), limit = report.band_bytes, report.highest_bytes + report.headroom_bytes
        found.expect("the band decides", report.verdict == ("fits" if high <= limit else "unsure" if low <= limit else
                                                           "oom"), f"{report.verdict}, {low} to {high} of {limit} B")
        found.expect("the likely peak is in its band", low <= report.highest_bytes <= high,
                     f"{report.highest_bytes} of {low} to {high} B")
    capacity = report.capacity_bytes or 0
    found.expect("headroom is within the capacity", report.headroom_bytes <= capacity,
                 f"{report.headroom_bytes} of {capacity}")


def every_rank_is_told_once(report: Report, found: Findings) -> None:
    """Classes of ranks are a partition of the world, and of the engines' GPUs where they are others."""
    if not report.ranks or "mesh" not in report.scenario:
        return
    mesh = report.scenario["mesh"]
    world = mesh["pp"] * mesh["dp_replicate"] * mesh["dp_shard"] * mesh["cp"] * mesh["tp"]
    engine = report.scenario["generation"] if report.scenario["workload"] == "grpo" else None
    if engine and not engine["colocated"] and any(rank.peak for rank in report.ranks):  # `place` is of the policy
        world += engine["tp"] * engine["engines"]
    told = sum(rank.num_ranks for rank in report.ranks)
    found.expect("classes add up to the world", told == world, f"{told} of {world} ranks")
    for rank in report.ranks:
        listed = sum(len(numbers(text)) for text in rank.ranks)
        found.expect("a class lists its ranks", listed == rank.num_ranks, f"{listed}, {rank.num_ranks}")


def numbers(text: str) -> range:
    """Ranks of "7", "0-62" or "0-128:64"."""
    ends, _, stride = text.partition(":")
    first, _, last = ends.partition("-")
    return range(int(first), int(last or first) + 1, int(stride or 1))


def parts_add_up_to_the_peak(report: Report, found: Findings) -> None:
    """Sums of every class, by category and by phase."""
    for rank, peak in _peaks(report):
        of = rank.ranks[0]
        total = sum(peak.by_category.values())
        found.expect("categories add up to the peak", total == peak.allocated_bytes,
                     f"rank {of}: {total} of {peak.allocated_bytes}")
        highest = max(peak.by_phase.values(), default=peak.allocated_bytes)
        alone = report.scenario["workload"] == "train"  # of several phases the peak is that of the fullest device
        found.expect("the highest phase is the peak", highest == peak.allocated_bytes or (
                     not alone and highest > peak.allocated_bytes),
                     f"rank {of}: {highest} of {peak.allocated_bytes}")
        found.expect("the peak's phase has it", peak.by_phase.get(peak.phase, highest) == peak.allocated_bytes
                     or not alone,
                     f"rank {of}: {peak.phase}, {peak.by_phase}")
        for category in {owner.category for owner in peak.top}:
            held = sum(owner.bytes for owner in peak.top if owner.category == category)
            there = peak.by_category.get(category, 0)
            found.expect("owners are within their category", held <= there, f"rank {of}: {category} {held} of {there}")


def bands_hold_their_middle(report: Report, found: Findings) -> None:
    """Allocated, reserved and device memory lie as they must."""
    for rank, peak in _peaks(report):
        low, high = peak.reserved_band_bytes
        found.expect("reserved lies in its band", low <= peak.reserved_bytes <= high,
                     f"rank {rank.ranks[0]}: {peak.reserved_bytes} in {low}, {high}")
        beside = sum(peak.outside.values())
        found.expect("a device holds what is allocated and what is outside",
                     peak.device_bytes >= peak.allocated_bytes + beside,
                     f"rank {rank.ranks[0]}: {peak.device_bytes}, {peak.allocated_bytes} + {beside}")
        found.expect("a band is ordered", peak.band_bytes[0] <= peak.band_bytes[1], str(peak.band_bytes))


def what_rests_is_within_the_peak(report: Report, found: Findings) -> None:
    """Parameters, reduced gradients and states live just before the step, on the device or outside it.

    What is apportioned is the mean of ranks that need not hold equally much (layer-wise optimizers deal whole
    parameters out), so it is compared with the mean of their peaks.
    """
    sums: dict[int, list[int]] = {}
    for rank, peak in _peaks(report):
        there = peak.allocated_bytes + peak.host_bytes + sum(peak.outside.values())
        rests = rank.at_rest_bytes()
        if rank.apportioned:
            slack = len(rank.at_rest) * 16  # a class's mean is rounded by component
            held = sums.setdefault(rank.stage, [0, 0])
            held[0] += rests * rank.num_ranks
            held[1] += (there + slack) * rank.num_ranks
        else:
            found.expect("what rests is within the peak", rests <= there,
                         f"rank {rank.ranks[0]}: {rests} B at rest, peak {there}")
        for name, part in rank.at_rest.items():
            found.expect("what is trained is a part of what is there", part.num_trainable_params <= part.num_params,
                         f"{name}: {part.num_trainable_params} of {part.num_params}")
    for stage, (rests, there) in sums.items():
        found.expect("what rests is within the peak", rests <= there,
                     f"stage {stage}: {rests} B at rest, peaks {there}")


def sent_bytes_have_a_link(report: Report, found: Findings) -> None:
    """Bytes that leave a rank cross NVLink or the network; n - 1 of n parts come from other ranks."""
    for rank in report.ranks:
        for row in rank.traffic:
            told = f"{row.collective} over {row.axis}: {row.payload_bytes} B, {row.wire_bytes} on the wire"
            if row.collective != "copy":
                found.expect("links carry what leaves a rank", row.nvlink_bytes + row.network_bytes == row.wire_bytes,
                             f"{told}, {row.nvlink_bytes} + {row.network_bytes}")
            if row.collective in ("all_gather", "reduce_scatter", "all_to_all") and row.algorithm == "ring":
                off = abs(row.wire_bytes * row.group_size - row.payload_bytes * (row.group_size - 1))
                found.expect("n - 1 of n parts are sent", off <= row.calls * row.group_size, told)
            found.expect("traffic has calls and partners", row.calls > 0 and (
                row.group_size > 1 or row.collective == "copy"), told)


def parts_add_up_to_the_step(report: Report, found: Findings) -> None:
    """Parts, and the roofline's, are the step once more; what is hidden is no more than all."""
    time = report.time
    if time is None:
        return
    slack = _NS * (2 + len(time.parts)) + 1e-12 * time.step_s
    parts = math.fsum(time.parts.values())
    found.expect("parts add up to the step", abs(parts - time.step_s) <= slack, f"{parts!r} of {time.step_s!r} s")
    for row in time.communication:
        told = f"{row.collective} over {row.axis}: {row.alone_s} alone, {row.hidden_s} hidden"
        found.expect("no more is hidden than there is", row.hidden_s <= row.alone_s + slack, told)
    for name in ("forward_s", "backward_s", "optimizer_s"):
        found.expect("a pass is within the step", getattr(time, name) <= time.step_s + slack, name)
    if time.roofline is not None:
        total = math.fsum(time.roofline.seconds.values())
        found.expect("a roofline adds up to the step", abs(total - time.step_s) <= slack,
                     f"{total!r} of {time.step_s!r} s")
        bound, limit = time.roofline.bound, time.roofline.limit
        found.expect("a bound is the largest", time.roofline.seconds[bound] == max(time.roofline.seconds.values()),
                     bound)
        found.expect("a limit is the longest", time.roofline.limits[limit] == max(time.roofline.limits.values()), limit)


def no_kernel_is_faster_than_the_device(report: Report, found: Findings) -> None:
    """The datasheet's peak bounds what is executed, and the step is at least its longest limit."""
    time = report.time
    if time is None:
        return
    found.expect("a step is positive", time.step_s > 0, str(time.step_s))
    if time.executed_tflops_per_gpu is not None and time.peak_tflops:
        kernels = max((k.flops for k in time.kernels), default=0)
        found.expect("executed FLOPs are within the peak", time.executed_tflops_per_gpu <= time.peak_tflops * 1.01
                     or report.scenario["training"]["precision"]["compute"] in ("fp32", "auto"),
                     f"{time.executed_tflops_per_gpu} of {time.peak_tflops}, {kernels}")
    if time.roofline is not None:
        found.expect("a step takes at least its limit", time.roofline.limit_s <= time.step_s * 1.000001,
                     f"{time.roofline.limit} {time.roofline.limit_s}, step {time.step_s}")


def executed_flops_are_those_of_the_model_or_more(report: Report, found: Findings) -> None:
    """Three products a parameter, two where the base is frozen: what recomputation adds comes on top.

    Frameworks that print FLOPs by conventions of their own count attention twice, or frozen weights as trained: such
    are no more than some times what is executed, unless a sum has wrapped.
    """
    time, scenario = report.time, report.scenario
    if time is None or time.executed_tflops_per_gpu is None or max(scenario["mesh"][axis] for axis in ("pp", "ep")) > 1:
        return
    executed, printed = time.executed_tflops_per_gpu, time.model_tflops_per_gpu
    told = f"{executed} executed, {printed} of the model as {time.convention} counts it"
    if time.convention == "rankscope" and scenario["training"]["method"] == "full":
        found.expect("executed FLOPs are the model's or more", executed >= printed * 0.99, told)
    if scenario["training"]["lengths"] == "packed":
        return  # Megatron prints attention over whole rows, kernels stay inside sequences
    if time.convention.startswith("megatron") and any("mamba" in rank.at_rest for rank in report.ranks):
        return  # its formula takes each mixer as twice as wide as the model, whatever it is
    if time.convention == "megatron-bridge up to 0.4" and _has_windows(scenario["model"]):
        return  # its formula lets windows of attention see the whole sequence (simcore/models/flops.py)
    found.expect("executed FLOPs are of the size of the printed ones", executed >= printed * _PRINTED, told)


def _has_windows(model: str | Mapping[str, Any]) -> bool:
    name, overrides = (model, {}) if isinstance(model, str) else (model["config"], model["overrides"])
    return bool(model_config(name, overrides, "").get("sliding_window"))


def _peaks(report: Report) -> Iterator[tuple[RankReport, Peak]]:
    return ((rank, rank.peak) for rank in report.ranks if rank.peak is not None)


_Invariant = Callable[[Report, Findings], None]
_OF_REFUSALS: Final[tuple[_Invariant, ...]] = (refusals_are_told_in_one_line, json_reads_back)
_OF_ALL: Final[tuple[_Invariant, ...]] = (
    json_reads_back, numbers_are_finite_and_not_negative, verdict_agrees_with_capacity, every_rank_is_told_once,
    parts_add_up_to_the_peak, bands_hold_their_middle, what_rests_is_within_the_peak, sent_bytes_have_a_link,
    parts_add_up_to_the_step, no_kernel_is_faster_than_the_device, executed_flops_are_those_of_the_model_or_more)
