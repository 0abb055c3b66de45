"""Changes of a job that fits which make its step shorter on as many GPUs; each was simulated, and fits too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final

from simcore.batch.advice import may_be_tried
from simcore.batch.changes import FACTORS, Change, changes
from simcore.batch.solve import keys_of
from simcore.errors import InputError
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.inputs.training import Pipeline
from simcore.placement.job import topology_of
from simcore.results.report import Advice, Report
from simcore.simulate import simulate

__all__ = ["faster", "further", "on_fewer", "on_more", "on_whole_hosts", "plainer", "tried"]

_MOST: Final = 5
_LENGTH: Final = "training.seq_len"
_OF_GPUS: Final = {"mesh.dp_shard", "mesh.dp_replicate", "training.global_batch_size", "topology.num_nodes"}
"""Keys that change the number of GPUs alone."""
_LEAST: Final = 1.01
"""Gain in tokens per second below which a change is not worth a click."""


def faster(scenario: Scenario, base: Report) -> tuple[Advice, ...]:
    """At most 5 changes of keys that surely fit and are faster than `base`, the fastest first, one of each kind.

    `base`: the scenario's own report. Numerics and the batch of a step stay. Empty for a job that does not fit, has no
    step time, or is too large to be simulated dozens of times.
    """
    if base.verdict != "fits" or base.time is None or scenario.workload != "train" or not may_be_tried(scenario):
        return ()
    found: dict[str, tuple[float, Advice]] = {}
    for change in _changes(scenario):
        answer = tried(scenario, change)
        least = max(_LEAST * base.time.tokens_per_s_per_gpu, found.get(change.kind, (0.0,))[0])
        if answer and answer[0] > least:
            found[change.kind] = answer
    return tuple(advice for _, advice in sorted(found.values(), key=lambda one: -one[0])[:_MOST])


def plainer(scenario: Scenario) -> tuple[Advice, ...]:
    """At most 3 layouts with one degree lowered, or all of them 1, that surely fit on as many GPUs, the fastest first.

    The batch of a step stays. Of large jobs too: it takes at most seven simulations.
    """
    if scenario.workload != "train":
        return ()
    found = filter(None, (tried(scenario, Change("layout", 1, keys)) for keys in _plainer(scenario)))
    return tuple(advice for _, advice in sorted(found, key=lambda one: -one[0])[:3])


def further(scenario: Scenario, known: Sequence[Advice]) -> tuple[Advice, ...]:
    """Changes of the job that surely fit where those `known` do not: base weights in 4 bits, then shorter sequences.

    Each alone, then with what else comes closest.
    """
    training = scenario.training
    if scenario.workload != "train" or not may_be_tried(scenario):
        return ()
    nearest = dict(known[0].changes) if known and known[0].verdict != "fits" else {}
    rest = {key: value for key, value in nearest.items() if key != _LENGTH}
    lengths = [factor for factor in FACTORS if training.seq_len % factor == 0]
    if any(one.verdict == "fits" and _LENGTH in one.changes for one in known):
        lengths = []
    tries: list[Change] = []
    for beside in ({}, rest, nearest):
        if training.method == "lora":
            shorter = f", {known[0].warning}" if _LENGTH in beside else ""
            tries.append(Change("method", 1, {"training.method": "qlora", **beside},
                                warning=f"base weights in 4 bits: other numerics{shorter}"))
        tries += [Change("length", 1, {**beside, _LENGTH: training.seq_len // factor},
                         warning=_shorter(scenario, factor)) for factor in lengths]
    found: dict[str, Advice] = {}
    for change in tries:
        if change.kind not in found and (one := tried(scenario, change)):
            found[change.kind] = one[1]
    return tuple(found.values())


def _shorter(scenario: Scenario, factor: int) -> str:
    """Words for a sequence of a fraction of its length, also of a job that packs samples into a row."""
    length, one = scenario.training.seq_len // factor, scenario.training.packed_length
    if one and length % one == 0:
        return f"{length // one} packed into a row, of {length * factor // one}: whole samples stay"
    return f"sequences of 1/{factor} of their length"


def on_whole_hosts(scenario: Scenario, advice: Advice) -> Advice:
    """Advice for more GPUs on whole hosts with the same batch, where there is some; else as it is."""
    host, num_gpus = topology_of(scenario).node, advice.num_gpus
    unit = int(host.gpus_per_host or host.gpus)
    if num_gpus is None or num_gpus <= scenario.world_size or not _OF_GPUS.issuperset(advice.changes):
        return advice
    for number in range(-(-num_gpus // unit) * unit, 2 * num_gpus + unit, unit):
        answer = tried(scenario, Change("GPUs", 1, keys_of(scenario, "gpus", number)))
        if answer:
            return answer[1]
    return advice


def on_more(scenario: Scenario, known: Sequence[Advice]) -> tuple[Advice, ...]:
    """The same job on twice or four times the GPUs, the first number that surely fits, where nothing `known` does."""
    if scenario.workload != "train" or any(one.verdict == "fits" for one in known):
        return ()
    changes = (Change("GPUs", 1, keys_of(scenario, "gpus", factor * scenario.world_size)) for factor in (2, 4))
    answer = next(filter(None, (tried(scenario, change) for change in changes)), None)
    return (answer[1],) if answer else ()


def on_fewer(scenario: Scenario, known: Sequence[Advice]) -> tuple[Advice, ...]:
    """The job on fewer GPUs than what is `known` to fit on more takes: the fewest, and the fewest with its batch."""
    world, batch = scenario.world_size, scenario.training.global_batch_size
    numbers = [one.num_gpus for one in known if one.verdict == "fits" and _OF_GPUS.issuperset(one.changes)
               and one.num_gpus is not None and one.num_gpus > world]
    if scenario.workload != "train" or batch is None or not numbers:
        return ()
    unit, found = topology_of(scenario).gpus_per_host, list[Advice]()
    for number in [n for n in range(world + 1, min(numbers)) if n <= unit or n % unit == 0][:_MOST]:
        keys = keys_of(scenario, "gpus", number)
        larger = keys.get("training.global_batch_size", batch)
        if larger != batch and found:
            continue
        warning = "" if larger == batch else f"a global batch of {larger:,}, not {batch:,}: {number} GPUs share it"
        answer = tried(scenario, Change("GPUs", 1, keys, warning=warning), same_batch=False)
        found += [] if answer is None else [answer[1]]
        if found and larger == batch:
            break
    return tuple(found)


def _plainer(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Keys of layouts of as many GPUs, with data parallelism in place of what another degree gives up."""
    mesh, training = scenario.mesh, scenario.training
    kept: dict[str, Any] = {} if training.global_batch_size else {"training.global_batch_size": _batch(scenario)}
    lower = [{axis: low} for axis in ("pp", "tp", "cp") for low in (getattr(mesh, axis) // 2, 1)
             if 1 <= low < getattr(mesh, axis) and getattr(mesh, axis) % low == 0]
    all_ones = {axis: 1 for axis in ("pp", "tp", "cp") if getattr(mesh, axis) > 1}
    for degrees in [*lower, all_ones] if len(all_ones) > 1 else lower:
        spare = prod(getattr(mesh, axis) // low for axis, low in degrees.items())
        keys: dict[str, Any] = {f"mesh.{axis}": low for axis, low in degrees.items()}
        keys["mesh.dp_shard"] = spare * mesh.dp_shard
        if degrees.get("pp") == 1 and training.pipeline != Pipeline():
            keys["training.pipeline"] = {}
        yield {**keys, **kept}


def tried(scenario: Scenario, change: Change, *, same_batch: bool = True) -> tuple[float, Advice] | None:
    """(tokens per second and GPU, the change with its effect); None if it is refused, unsure or rests on a guess.

    `same_batch`: it counts only with the batch of a step that the job has.
    """
    try:
        other = changed(scenario, change.keys)
    except InputError:
        return None
    if other == scenario or (same_batch and _batch(other) != _batch(scenario)):
        return None
    report = simulate(other)
    if any(one.what in change.keys and one.kind == "assumed" for one in report.assumptions):
        return None
    peak, left = report.highest_bytes, report.headroom_bytes
    if report.job_verdict != "fits" or report.time is None or peak is None or left is None:
        return None
    return report.time.tokens_per_s_per_gpu, Advice(
        changes=dict(change.keys), verdict="fits", peak_bytes=peak, headroom_bytes=left, step_s=report.time.step_s,
        num_gpus=other.world_size, warning=change.warning)


def _batch(scenario: Scenario) -> int:
    """Sequences of one step."""
    mesh = scenario.mesh
    return scenario.training.micro_batch_size * mesh.dp_shard * mesh.dp_replicate * scenario.num_microbatches


def _changes(scenario: Scenario) -> Iterator[Change]:
    """Single changes to try: those that may lower memory at no cost of numerics, and those that take more of it."""
    yield from (change for change in changes(scenario) if change.loss == "time" and change.kind != "offload")
    training, mesh = scenario.training, scenario.mesh
    if training.recompute != "none":
        yield Change("recompute", 1, {"training.recompute": "none"})
    kept: dict[str, Any] = {} if training.global_batch_size else {"training.global_batch_size": _batch(scenario)}
    for factor in (2, 4):
        yield Change("micro batch", 1, {"training.micro_batch_size": training.micro_batch_size * factor, **kept})
    for axis in ("tp", "pp", "cp"):
        degree = getattr(mesh, axis)
        if degree % 2 == 0:
            yield Change(axis, 1, {f"mesh.{axis}": degree // 2, "mesh.dp_shard": 2 * mesh.dp_shard, **kept})
    if mesh.ep % 2 == 0:
        yield Change("ep", 1, {"mesh.ep": mesh.ep // 2})
    if mesh.dp_shard % 2 == 0:
        yield Change("shard", 1, {"mesh.dp_replicate": 2 * mesh.dp_replicate, "mesh.dp_shard": mesh.dp_shard // 2})
    yield from (Change("offload", 1, {f"training.offload.{part}": "none"})
                for part in ("params", "gradients", "optimizer", "activations"))
