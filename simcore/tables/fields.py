"""Columns of the tables of results: of scenarios and of classes of ranks, and how each is read from a report."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final, NamedTuple, TypeVar

from simcore.results.compare import worst_rank
from simcore.results.engine import Serving
from simcore.results.frame import Column, Dtype, Field, Value, unit_of
from simcore.results.phases import PHASE_PARTS
from simcore.results.report import Peak, RankReport, Report, StepTime
from simcore.results.settings import engine_gpus
from simcore.results.time import Cost
from simcore.timing.breakdown import PARTS

__all__ = ["PLACES", "RANK_FIELDS", "SCENARIO_FIELDS", "OneClass"]

T = TypeVar("T")
AXES: Final = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
_LIMITS: Final = {
    "compute": "all FLOPs of matrix units", "memory": "all bytes of device memory",
    "nvlink": "what the rank sends inside its node", "network": "what it sends over the network",
    "host_link": "copies from or to the host"}
PLACES: Final = (*AXES, "expert_dp")


class OneClass(NamedTuple):
    """One row of the table of ranks: one class of ranks (equal memory and work), `rank` = `report.ranks[number]`."""

    report: Report
    number: int
    rank: RankReport


def _field(name: str, dtype: Dtype, words: str, value: Callable[[T], Value]) -> Field[T]:
    return Field(Column(name, dtype, unit_of(name), words), value)


# ---- of a scenario --------------------------------------------------------------------------------------------------
def _asked(*path: str) -> Callable[[Report], Value]:
    """Function that reads the scenario's words at a path.

    Of a block its first value: a model's file, a machine's name.
    """

    def value(report: Report) -> Value:
        words = _value_at(report, *path)
        if isinstance(words, dict):
            words = next(iter(words.values()), None)
        return None if words is None else str(words)

    return value


def _size(axis: str) -> Callable[[Report], Value]:
    def value(report: Report) -> Value:
        size = _value_at(report, "mesh", axis)
        return size if isinstance(size, int) and not isinstance(size, bool) else None

    return value


def _value_at(report: Report, *path: str) -> Any:
    """Value at a path of the scenario; a foreign result may have any value in the place of a block."""
    inner: Any = report.scenario
    for key in path:
        inner = inner.get(key) if isinstance(inner, dict) else None
    return inner


def _num_gpus(report: Report) -> Value:
    if report.ranks or not isinstance(report.scenario.get("mesh"), dict):
        return sum(rank.num_ranks for rank in report.ranks) or None
    sizes = (_size(axis)(report) for axis in AXES[:5])
    return prod(size if isinstance(size, int) else 1 for size in sizes) + engine_gpus(report)


def _worst(read: Callable[[RankReport], Value]) -> Callable[[Report], Value]:
    def value(report: Report) -> Value:
        rank = worst_rank(report)
        return None if rank is None else read(rank)

    return value


def _peak(read: Callable[[Peak], Value]) -> Callable[[RankReport], Value]:
    return lambda rank: None if rank.peak is None else read(rank.peak)


def _time(read: Callable[[StepTime], Value]) -> Callable[[Report], Value]:
    return lambda report: None if report.time is None else read(report.time)


def _cost(read: Callable[[Cost], Value]) -> Callable[[Report], Value]:
    return _time(lambda time: None if time.cost is None else read(time.cost))


def _part(name: str) -> Callable[[StepTime], Value]:
    return lambda time: time.parts.get(name)


def _limit(name: str) -> Callable[[StepTime], Value]:
    return lambda time: time.roofline.limits.get(name) if time.roofline else None


def _serving(read: Callable[[Serving], Value]) -> Callable[[Report], Value]:
    return lambda report: None if report.serving is None else read(report.serving)


def _at_rest(rank: RankReport) -> int:
    return rank.at_rest_bytes() + rank.padding_bytes


def _problems(report: Report) -> Value:
    lines = (f"{p.where}: {p.message}" + (f" [{p.rule}]" if p.rule else "") for p in report.problems)
    return "; ".join(lines) or None


_PEAK: Final[tuple[Field[RankReport], ...]] = (
    _field("device_bytes", "int64", "needed on the device at the highest moment, what lies beside the allocator too",
           _peak(lambda p: p.device_bytes)),
    _field("allocated_bytes", "int64", "handed out by torch's allocator at that moment", _peak(
        lambda p: p.allocated_bytes)),
    _field("reserved_bytes", "int64", "held by torch's allocator, most likely", _peak(lambda p: p.reserved_bytes)),
    _field("host_bytes", "int64", "what the job moved to the host's memory, for this rank", _peak(
        lambda p: p.host_bytes)),
    _field("device_low_bytes", "int64", "lower end of where measured runs put the device", _peak(
        lambda p: p.band_bytes[0])),
    _field("device_high_bytes", "int64", "upper end of that", _peak(lambda p: p.band_bytes[1])),
    _field("at_rest_bytes", "int64", "parameters, gradients and optimizer states, padding too", _at_rest),
    _field("peak_phase", "string", "phase of the highest moment", _peak(lambda p: p.phase)),
    _field("peak_event", "string", "last hook passed before it", _peak(lambda p: p.event)),
    _field("peak_layer", "string", "layer at work", _peak(lambda p: p.layer)),
    _field("peak_microbatch", "int64", "microbatch at work", _peak(lambda p: p.microbatch)),
    _field("peak_step", "string", "first or steady", _peak(lambda p: p.step)),
    _field("sent_bytes", "int64", "what leaves the rank in one step",
           lambda rank: sum(row.wire_bytes for row in rank.traffic) if rank.peak else None),
    _field("sent_nvlink_bytes", "int64", "of it over NVLink",
           lambda rank: sum(row.nvlink_bytes for row in rank.traffic) if rank.peak else None),
    _field("sent_network_bytes", "int64", "of it over the network",
           lambda rank: sum(row.network_bytes for row in rank.traffic) if rank.peak else None),
)
"""Columns of a class of ranks; the table of scenarios has them for the worst class."""

_TIME: Final[tuple[Field[Report], ...]] = (
    _field("step_s", "float64", "one steady step", _time(lambda t: t.step_s)),
    _field("forward_s", "float64", "from the first of a pass to its end, waiting included", _time(
        lambda t: t.forward_s)),
    _field("backward_s", "float64", "as forward_s", _time(lambda t: t.backward_s)),
    _field("optimizer_s", "float64", "as forward_s", _time(lambda t: t.optimizer_s)),
    _field("exposed_communication_s", "float64", "kernels waited for communication", _time(
        lambda t: t.exposed_communication_s)),
    *(_field(f"part_{name.replace(' ', '_')}_s", "float64", words, _time(_part(name)))
      for name, words in (PARTS | PHASE_PARTS).items()),
    _field("bubble_share", "float64", "share of the step, 0 to 1", _time(lambda t: t.bubble_share)),
    _field("bound", "string", "what bounds the step", _time(lambda t: t.roofline.bound if t.roofline else None)),
    _field("limit_s", "float64", "the step takes at least that by the datasheets", _time(
        lambda t: t.roofline.limit_s if t.roofline else None)),
    _field("limit", "string", "the resource of limit_s", _time(lambda t: t.roofline.limit if t.roofline else None)),
    *(_field(f"limit_{name}_s", "float64", f"by the datasheets, {words}", _time(_limit(name)))
      for name, words in _LIMITS.items()),
    _field("tokens_per_s_per_gpu", "float64", "tokens of the batch", _time(lambda t: t.tokens_per_s_per_gpu)),
    _field("model_tflops_per_gpu", "float64", "FLOPs as flops_convention counts them", _time(
        lambda t: t.model_tflops_per_gpu)),
    _field("flops_convention", "string", "whose way of counting; rankscope counts products of adapters too, and "
           "experts as loaded alike", _time(lambda t: t.convention)),
    _field("mfu", "float64", "model_tflops_per_gpu as a share of the dense peak, 0 to 1", _time(lambda t: t.mfu)),
    _field("price_per_gpu_hour_usd", "float64", "of the topology", _cost(lambda c: c.price_per_gpu_hour)),
    _field("price_date", "string", "when it was asked", _cost(lambda c: c.price_date or None)),
    _field("cost_per_step_usd", "float64", "on all GPUs", _cost(lambda c: c.per_step)),
    _field("cost_per_million_tokens_usd", "float64", "on all GPUs", _cost(lambda c: c.per_million_tokens)),
    _field("run_s", "float64", "the whole run, where its length is given", _cost(lambda c: c.run_s)),
    _field("cost_per_run_usd", "float64", "of that run", _cost(lambda c: c.per_run)),
    _field("cache_tokens", "int64", "of an engine that generates: tokens that its KV cache holds", _serving(
        lambda s: s.cache_tokens)),
    _field("cache_bytes", "int64", "bytes of those blocks", _serving(lambda s: s.cache_bytes)),
    _field("concurrency", "float64", "sequences of max_model_len at once", _serving(lambda s: s.concurrency)),
)

SCENARIO_FIELDS: Final[tuple[Field[Report], ...]] = (
    _field("name", "string", "of the scenario", lambda r: r.name),
    _field("status", "string", "ok, illegal or error", lambda r: r.status),
    _field("verdict", "string", "fits, oom, or unsure: measured errors of such layouts reach across the limit",
           lambda r: r.verdict),
    _field("evidence", "string", "measured (a run of this layout), recipe (shipped, no measured run published), "
           "class (runs of its class alone), none", lambda r: r.evidence.kind if r.evidence else None),
    _field("workload", "string", "train, dpo, grpo, distillation or serve", _asked("workload")),
    _field("model", "string", "preset, or path of a configuration", _asked("model")),
    _field("framework", "string", "its name", _asked("framework")),
    _field("topology", "string", "the machine", _asked("topology")),
    _field("method", "string", "full, lora or qlora", _asked("training", "method")),
    *(_field(axis, "int64", f"ranks on the axis {axis}, as asked" + (
        "; empty: the framework's default" if axis == "etp" else ""), _size(axis)) for axis in AXES),
    _field("num_gpus", "int64", "ranks in all", _num_gpus),
    _field("capacity_bytes", "int64", "of one device", lambda r: r.capacity_bytes),
    _field("headroom_bytes", "int64", "what the limit leaves; negative where it does not fit", lambda r:
           r.headroom_bytes),
    _field("peak_bytes", "int64", "device memory that the verdict rests on, of the fullest rank", lambda r:
           r.highest_bytes),
    _field("highest_bytes", "int64", "the same as peak_bytes; over all draws, where routing is drawn", lambda r:
           r.highest_bytes),
    _field("worst_ranks", "string", "the class of ranks that the next columns are of", _worst(
        lambda rank: ", ".join(rank.ranks))),
    *(Field(field.column, _worst(field.value)) for field in _PEAK),
    *_TIME,
    _field("problems", "string", "why there is no answer", _problems),
)


# ---- of a class of ranks --------------------------------------------------------------------------------------------
def _rank(read: Callable[[RankReport], Value]) -> Callable[[OneClass], Value]:
    return lambda row: read(row.rank)


def _place(axis: str) -> Callable[[OneClass], Value]:
    def value(row: OneClass) -> Value:
        place = row.rank.coordinates.get(axis)
        return None if place is None else str(place)

    return value


def _total(attribute: str) -> Callable[[OneClass], Value]:
    return lambda row: sum(getattr(at, attribute) for at in row.rank.at_rest.values())


RANK_FIELDS: Final[tuple[Field[OneClass], ...]] = (
    _field("name", "string", "of the scenario", lambda one: one.report.name),
    _field("rank_class", "int64", "its number in the result, from 0", lambda one: one.number),
    _field("ranks", "string", "which, such as 0-62 or 0-128:64", _rank(lambda rank: ", ".join(rank.ranks))),
    _field("num_ranks", "int64", "how many are alike", _rank(lambda rank: rank.num_ranks)),
    _field("stage", "int64", "pipeline stage", _rank(lambda rank: rank.stage)),
    *(_field(axis, "string", f"place on the axis {axis}, or a range of them", _place(axis)) for axis in PLACES),
    _field("is_worst", "bool", "whether the verdict rests on it", lambda one: one.rank is worst_rank(one.report)),
    *(Field(field.column, _rank(field.value)) for field in _PEAK),
    *(_field(name, "int64", words, _total(name)) for name, words in (
        ("params_bytes", "parameters at rest"), ("grads_bytes", "complete gradients at rest"),
        ("optimizer_bytes", "optimizer states at rest"), ("num_params", "parameters that the rank owns"),
        ("num_trainable_params", "of them trained"))),
    _field("padding_bytes", "int64", "what storage adds", _rank(lambda rank: rank.padding_bytes)),
    _field("grads_persist", "bool", "whether gradients survive into the next forward", _rank(
        lambda rank: rank.grads_persist)),
)
