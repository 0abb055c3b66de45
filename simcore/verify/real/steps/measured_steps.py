"""Two steps of a model on one process under a `Tracker`, and what the second one takes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import torch

from .tracker import Tracker

__all__ = ["Measured", "two_measured_steps"]

_Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class _Steps(Protocol):
    def step(self) -> object: ...

    def zero_grad(self, set_to_none: bool) -> None: ...


@dataclass
class Measured:
    """Numbers of the events with which each step begins, and its forward pass ends."""

    tracker: Tracker
    starts: list[int] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)

    def found(self) -> dict[str, int]:
        """Bytes: the most in the second forward pass and in the whole second step, and those left after it."""
        running = [0, *accumulate(change for _, change in self.tracker.events)]
        return {"forward": max(running[self.starts[1]:self.forwards[1]]), "peak": max(running[self.starts[1]:]),
                "end": running[-1]}


def two_measured_steps(tracker: Tracker, optimizer: _Steps, loss_of: _Loss, vocab: int, tokens: int = 64) -> Measured:
    """Runs forward, backward and the optimizer twice over one sequence of random tokens; the tracker is active.

    `loss_of`: from tokens and labels [1, tokens] to the loss.
    """
    steps = Measured(tracker)
    for _ in range(2):
        steps.starts.append(len(tracker.events))
        ids, labels = (torch.randint(0, vocab, (1, tokens)) for _ in range(2))
        loss = loss_of(ids, labels)
        steps.forwards.append(len(tracker.events))
        loss.backward()
        del loss, ids, labels
        gc.collect()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        gc.collect()
    return steps
