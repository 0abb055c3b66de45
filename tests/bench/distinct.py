"""Processor time of distinct layouts, first met and met again: what a search pays for each.

    PYTHONPATH=$PWD:$PWD/tests python -m bench.distinct dense timed --passes 2

A space is every layout of a model over degrees, recomputation and micro batches that its framework accepts. Each pass
answers all of them, one after the other, in one process that another model has warmed; printed are milliseconds a
layout. `memory` and `timed` are answers as a search has them, of parsed keys; `report` is the whole report.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from simcore.inputs.document import Document
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.search.judge import Candidate, judged, timed
from simcore.simulate import check, simulate

NANO, DENSE, MOE = "nemotron-3-nano-30b-a3b", "llama-3-8b", "mixtral-8x7b"
SPACES: Final[Mapping[str, tuple[str, str, tuple[int, ...]]]] = {
    "dense": (DENSE, "megatron", (8, 16)), "moe": (MOE, "megatron", (8, 16)),
    "nano-fsdp2": (NANO, "fsdp2", (8, 16, 32)), "nano-automodel": (NANO, "automodel", (8, 16, 32)),
    "nano-megatron": (NANO, "megatron", (8, 16))}
"""Model, framework and numbers of GPUs of each space."""
_BATCH: Final = 32


def scenario(model: str, framework: str) -> Scenario:
    """Scenario whose keys a layout sets."""
    return parse_scenario(Document("distinct", {
        "name": "distinct", "model": model, "framework": framework, "topology": "dgx-h100", "mesh": {"dp_shard": 8},
        "training": {"seq_len": 4096, "global_batch_size": _BATCH}}))


def layouts(name: str) -> tuple[Scenario, list[Candidate]]:
    """(scenario, layouts) of a space: those that the framework accepts."""
    model, framework, gpus = SPACES[name]
    base = scenario(model, framework)
    every = [keys for num in gpus for keys in _keys(num, is_moe=model != DENSE, splits=framework == "megatron",
                                                    stages=(1,) if framework == "fsdp2" else (1, 2, 4))]
    return base, [keys for keys in every if check(changed(base, keys)).status == "ok"]


def _keys(num: int, *, is_moe: bool, splits: bool, stages: tuple[int, ...]) -> list[Candidate]:
    found: list[Candidate] = []
    for tp, pp in itertools.product((1, 2, 4, 8) if splits else (1,), stages):
        dp = num // (tp * pp)
        for ep, recompute, micro in itertools.product((2, 4, 8) if is_moe else (1,), ("none", "full"), (1, 2)):
            if dp * tp * pp == num and ep <= max(dp, 1) and _BATCH % (dp * micro) == 0:
                found.append({"mesh.tp": tp, "mesh.pp": pp, "mesh.dp_shard": dp, "mesh.ep": ep,
                              "training.recompute": recompute, "training.micro_batch_size": micro})
    return found


ANSWERS: Final[Mapping[str, Callable[[Scenario, Candidate], Any]]] = {
    "memory": lambda base, keys: judged(base, [keys]),
    "timed": lambda base, keys: (judged(base, [keys]), timed(base, [keys])),
    "report": lambda base, keys: simulate(changed(base, keys)),
    "report-memory": lambda base, keys: simulate(changed(base, keys), timed=False)}


def milliseconds(name: str, answer: str, passes: int) -> tuple[int, list[float]]:
    """(number of layouts, ms of processor time of a layout in each pass), in a fresh process."""
    base, found = layouts(name)
    simulate(scenario("llama-3.2-1b", base.framework))
    one, spent = ANSWERS[answer], []
    for _ in range(passes):
        gc.collect()
        began = time.process_time()
        for keys in found:
            one(base, keys)
        spent.append((time.process_time() - began) / len(found) * 1e3)
    return len(found), spent


def main() -> int:
    """Prints a line: space, answer, number of layouts, ms a layout of each pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("space", choices=SPACES)
    parser.add_argument("answer", choices=ANSWERS)
    parser.add_argument("--passes", type=int, default=2)
    asked = parser.parse_args()
    gc.set_threshold(100_000, 20, 50)  # as the command sets it
    number, spent = milliseconds(asked.space, asked.answer, asked.passes)
    sys.stdout.write(f"{asked.space} {asked.answer} {number} {' '.join(f'{each:.2f}' for each in spent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
