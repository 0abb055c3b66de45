"""Lengths of answers: how many sequences an engine decodes together, from the first token to the longest answer's last.

[Note: lengths]
Of answers only the mean length and the longest allowed are told, so their lengths are drawn from the distribution that
says nothing more (of largest entropy): a density that falls or rises exponentially between none and the longest. The
longest answer of a step is taken to be as long as allowed, since some answer of thousands never ends: in NeMo RL's runs
of Llama 3 70B answers have 398 and 749 tokens in the mean, and generation takes 84 and 287 s where sequences may have
4,096 and 16,384 tokens (its article on v0.3, 2025-07-21); the longest answers that verl's logs print are as long as
allowed (verl issues 1208 and 7412).

[Note: preemption]
vLLM 0.25.1 `v1/core/sched/scheduler.py` schedule: sequences that wait are begun in order while the cache has blocks for
their prompts; where a running one needs a block and none is free, the one that began last is preempted: it gives all
its blocks back, goes to the front of those that wait, and what it had is computed anew when there is room. Here in
steps of a part of the longest answer, and for many sequences by fewer that stand for them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Round", "Stage", "alike", "still_decoding", "steady", "varied"]

_SEGMENTS: Final = 128
"""Steps into which the longest answer is divided."""
_SIMULATED: Final = 256
"""Most sequences that are followed one by one; of more, each stands for several."""
_STEEPEST: Final = 500.0
"""Largest exponent of the density, below which the mean is a five-hundredth of the longest."""
_SPREADING: Final = (math.sqrt(5) - 1) / 2
"""Step between quantiles of lengths in order of their start: neighbours are unlike, and all are evenly spread."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Passes over `sequences` sequences together: `passes` of them, while contexts go from `first` to `last` tokens.

    `first` and `last` are alike where contexts stay as long as they are in the mean.
    """

    sequences: int
    passes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Round:
    """Sequences whose prompts are read at first, and the stages in which they are decoded.

    `again`: tokens that are computed once more, since their sequences were preempted.
    """

    prompts: int
    stages: tuple[Stage, ...]
    again: int = 0


def alike(rounds: Sequence[int], prompt: int, longest: int) -> list[Round]:
    """Rounds of so many sequences each, all from `prompt` to `longest` tokens."""
    return [Round(together, (Stage(together, longest - prompt, prompt, longest),)) for together in rounds]


def steady(sequences: int, together: int, prompt: int, mean: int, longest: int) -> list[Round]:
    """One round of `sequences` where others follow them: `together` at any time, at contexts of the mean.

    `mean`: tokens of a sequence in the mean, of which the longest has `longest`, with a prompt of `prompt`.
    """
    slope = _slope((mean - prompt) / (longest - prompt))
    parts = [(part + 0.5) / _SEGMENTS for part in range(_SEGMENTS)]
    left = [still_decoding(slope, part) for part in parts]
    reached = sum(share * part for share, part in zip(left, parts, strict=True)) / sum(left)
    context = prompt + round(reached * (longest - prompt))
    return [Round(sequences, (Stage(together, math.ceil(sequences * (mean - prompt) / together), context, context),))]


def varied(sequences: int, most: int, room: int, prompt: int, mean: int, longest: int) -> list[Round]:
    """One round of `sequences`, at most `most` at a time, whose tokens are at most `room` together.

    Lengths are `mean` in the mean and up to `longest`, prompts of `prompt` tokens with them. See [Note: lengths] and
    [Note: preemption].
    """
    number = min(sequences, _SIMULATED)
    each = sequences / number  # sequences that one of them stands for
    step = -(-(longest - prompt) // _SEGMENTS)
    others = max(0.0, (number * mean - longest) / max(1, number - 1) - prompt)  # one is the longest
    slope = _slope(others / (longest - prompt))
    ends = [prompt + step * max(1, round((longest - prompt) / step * _quantile(slope, (index + 0.5) * _SPREADING % 1)))
            for index in range(number)]
    ends[0] = longest
    queue = _Queue(ends, prompt, max(1, int(most / each)), max(longest, room / each))
    stages, again = [], 0
    while contexts := queue.begin():
        again += queue.again
        middle = round(sum(contexts) / len(contexts))
        stages.append(Stage(max(1, round(each * len(contexts))), step, middle, middle + step))
        queue.decode(step)
    return [Round(sequences, tuple(stages), round(each * again))]


class _Queue:
    """Sequences that run and that wait, by the tokens at which each ends; `most` run, with `room` tokens together."""

    def __init__(self, ends: Sequence[int], prompt: int, most: int, room: float) -> None:
        self._waiting = deque((prompt, end) for end in ends)
        self._prompt, self._most, self._room = prompt, most, room
        self._running: list[tuple[int, int]] = []
        self.again = 0

    def begin(self) -> list[int]:
        """Contexts of what runs, after preemption and the start of what waits; [] when all have ended."""
        self.again, held = 0, sum(context for context, _ in self._running)
        while held > self._room and len(self._running) > 1:
            last = self._running.pop()
            self._waiting.appendleft(last)
            held -= last[0]
        while self._waiting and len(self._running) < self._most:
            context, end = self._waiting[0]
            if self._running and held + context > self._room:
                break
            self._waiting.popleft()
            self._running.append((context, end))
            self.again += context - self._prompt
            held += context
        return [context for context, _ in self._running]

    def decode(self, step: int) -> None:
        """Adds `step` tokens to each sequence that runs, and drops those that end."""
        self._running = [(context + step, end) for context, end in self._running if context + step < end]


def still_decoding(slope: float, part: float) -> float:
    """Share of answers longer than `part` (0 to 1) of the longest, where the density falls as exp(-slope part)."""
    if abs(slope) < 1e-9:
        return 1 - part
    if slope < 0:
        return math.expm1(slope * (1 - part)) / math.expm1(slope)
    return (math.exp(-slope * part) - math.exp(-slope)) / -math.expm1(-slope)


def _quantile(slope: float, share: float) -> float:
    """Length, as a share of the longest, that `share` of all answers exceed."""
    if abs(slope) < 1e-9:
        return 1 - share
    if slope < 0:
        return 1 - math.log1p(share * math.expm1(slope)) / slope
    return -math.log(share * -math.expm1(-slope) + math.exp(-slope)) / slope


def _mean(slope: float) -> float:
    """Mean length as a share of the longest."""
    if abs(slope) < 1e-6:
        return 0.5 - slope / 12
    return 1 / slope - 1 / math.expm1(slope)


def _slope(share: float) -> float:
    """Slope of the density whose mean is `share` of the longest; the steepest for shares that no slope has."""
    low, high = -_STEEPEST, _STEEPEST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean(middle) > share else (low, middle)
    return (low + high) / 2
