"""The second step of a sharded model: peaks and collectives, without its update."""

from __future__ import annotations

import gc
from itertools import accumulate
from typing import Any

from oracle.steps.tracker import Tracker

__all__ = ["second_step"]


def second_step(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """`peaks`: bytes above what is there before; `forward`, `backward`: collectives with their bytes.

    `given`: inputs of the model by name, of which `input_ids` are the labels too.
    """
    labels = given["input_ids"].clone()
    tracker = Tracker()
    with tracker:
        for known in (*model.parameters(), *model.buffers(), *given.values(), labels):
            tracker.number_of(known)
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            gc.collect()
            start, first = len(tracker.events), len(tracker.comms)
            loss = model(**given, labels=labels, use_cache=False).loss
            middle, second = len(tracker.events), len(tracker.comms)
            loss.backward()
            del loss
            gc.collect()
    changes = [change for _, change in tracker.events]
    before = sum(changes[start:middle])
    comms = [[one["kind"], one["bytes"]] for one in tracker.comms]
    return {"peaks": {"forward": max(accumulate(changes[start:middle], initial=0)),
                      "backward": before + max(accumulate(changes[middle:], initial=0))},
            "forward": comms[first:second], "backward": comms[second:], "sections": []}
