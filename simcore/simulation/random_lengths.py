"""Sequences of unequal length in padded batches: which lengths decide, and what they do to memory.

[Note: padded batches]
A microbatch is padded to its longest sequence, and all ranks of a job need memory for the longest microbatch of any of
them: that is the longest of a whole global batch. Lengths are drawn independently of each other, so the longest of n is
found from one uniform number: it is the quantile u ** (1/n) of a single length. What is longer than `seq_len` is cut.
A drawn step is simulated with all its microbatches as long as its longest, which pads too much where a pipeline holds
several at once. Peaks need not be affine in the length (attention, recompute), so each is a separate simulation, at
the lengths that the result names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Final

import numpy as np

from simcore.inputs.scenario import Scenario
from simcore.inputs.training import Lengths, Observed
from simcore.placement.framework import Padding
from simcore.placement.mesh import IntArray
from simcore.results.quantiles import DrawnLengths, DrawnPeak, Quantiles, quantiles
from simcore.results.report import Assumption, Report
from simcore.simulation.expert_loads import Floats

__all__ = ["at_length", "drawn_lengths", "is_drawn", "longest", "with_lengths"]

_BATCH, _STEP = 0, 1
"""Streams of the two draws."""
_BEFORE_ONE: Final = 1 - 2**-53


def is_drawn(scenario: Scenario) -> bool:
    """True if the scenario's sequence lengths are drawn from a distribution or from observed ones."""
    return isinstance(scenario.training.lengths, Lengths | Observed)


def longest(asked: Lengths | Observed, num: int, stream: int) -> IntArray:
    """Length in tokens of the longest of `num` drawn sequences, for each of `asked.draws` draws: an array [draw].

    It is neither padded nor cut at `seq_len`. `stream`: number that makes the draws of several calls independent.
    """
    drawn = np.random.default_rng([asked.seed, stream]).random(asked.draws) ** (1 / num)
    shares = np.clip(drawn, 2**-53, _BEFORE_ONE)
    return _observed(asked, shares) if isinstance(asked, Observed) else _of_distribution(asked, shares)


def _observed(asked: Observed, shares: Floats) -> IntArray:
    ordered = np.sort(np.array(asked.observed, dtype=np.int64))
    found: IntArray = ordered[np.floor(shares * len(ordered)).astype(np.int64)]
    return found


def _of_distribution(asked: Lengths, shares: Floats) -> IntArray:
    """Whole tokens, from 1 to `max`. A lognormal variable's mean is exp(mu + sigma^2 / 2)."""
    if asked.distribution == "uniform":
        low = 2 * asked.mean - asked.max
        drawn = np.floor(low + shares * (asked.max - low + 1))
    else:
        normal = NormalDist(math.log(asked.mean) - asked.sigma**2 / 2, asked.sigma)
        drawn = np.round(np.exp(np.minimum([normal.inv_cdf(share) for share in shares.tolist()], 43)))
    whole: IntArray = np.clip(drawn, 1, asked.max).astype(np.int64)
    return whole


def drawn_lengths(scenario: Scenario, padding: Padding) -> tuple[Quantiles, Quantiles]:
    """(quantiles of a microbatch's padded length, quantiles of the longest one in a step), in tokens.

    The longest is taken over all microbatches and data-parallel ranks of a step. Both are whole multiples of what
    `padding` (the framework's) and the mesh need, at most `seq_len`. AssertionError if no lengths are drawn.
    """
    asked, training, mesh = scenario.training.lengths, scenario.training, scenario.mesh
    assert isinstance(asked, Lengths | Observed)
    in_step = scenario.num_microbatches * training.micro_batch_size * mesh.dp_shard * mesh.dp_replicate
    multiple = math.lcm(padding.multiple, mesh.tp * mesh.cp, 2 * mesh.cp if mesh.cp > 1 else 1)
    batch, step = (quantiles(np.minimum(-(-longest(asked, num, stream) // multiple) * multiple, training.seq_len))
                   for stream, num in ((_BATCH, training.micro_batch_size), (_STEP, in_step)))
    return batch, step


def at_length(scenario: Scenario, seq_len: int) -> Scenario:
    """Copy of the scenario in which all sequences have `seq_len` tokens."""
    training = scenario.training.model_copy(update={"seq_len": seq_len, "lengths": "fixed"})
    return scenario.model_copy(update={"training": training})


def with_lengths(scenario: Scenario, padding: Padding, simulated: Callable[[Scenario], Report],
                 timed: Callable[[Scenario], Report]) -> Report:
    """Report at the longest drawn length, with peaks at the other quantiles of the length in `lengths`.

    `simulated`: report of a scenario without time, `timed`: with time. Equal lengths are simulated once. A report
    without a peak (refused) comes back as it is.
    """
    batch, step = drawn_lengths(scenario, padding)
    top = timed(at_length(scenario, step.max))
    if top.highest_bytes is None:
        return top
    shorter = {size for size in step.model_dump().values() if size != step.max}
    reports = {size: simulated(at_length(scenario, size)) for size in sorted(shorter)} | {step.max: top}
    asked = scenario.training.lengths
    assert isinstance(asked, Lengths | Observed)
    found = DrawnLengths(seed=asked.seed, draws=asked.draws, batch=batch, step=step, peak=_peaks(step, reports),
                         fits=tuple(size for size, one in sorted(reports.items()) if one.verdict == "fits"))
    return top.model_copy(update={
        "scenario": scenario.normalised(), "lengths": found,
        "assumptions": (*top.assumptions, *_assumptions(asked, step, padding))})


def _peaks(step: Quantiles, reports: dict[int, Report]) -> DrawnPeak:
    """Peaks of the fullest rank, in bytes, at each of the step's lengths."""
    ranks = {size: one.peak_rank for size, one in reports.items()}
    peaks = {size: rank.peak for size, rank in ranks.items() if rank is not None and rank.peak is not None}
    at = step.model_dump()
    return DrawnPeak(
        allocated_bytes=Quantiles(**{name: peaks[size].allocated_bytes for name, size in at.items()}),
        device_bytes=Quantiles(**{name: reports[size].highest_bytes or 0 for name, size in at.items()}))


def _assumptions(asked: Lengths | Observed, step: Quantiles, padding: Padding) -> tuple[Assumption, ...]:
    drawn = (f"{len(asked.observed):,} observed lengths" if isinstance(asked, Observed) else
             f"{asked.distribution}, mean {asked.mean}, at most {asked.max}"
             + (f", sigma {asked.sigma:g}" if asked.distribution == "lognormal" else ""))
    return (
        Assumption(what="training.lengths", value=f"{drawn}, seed {asked.seed}, {asked.draws:,} steps", kind="assumed",
                   source="lengths drawn independently; peaks, traffic and time of `ranks` are those of "
                   f"{step.max} tokens, all microbatches alike"),
        Assumption(what="padding", value=f"to the longest, in multiples of {padding.multiple}", kind="default",
                   source=padding.source))
