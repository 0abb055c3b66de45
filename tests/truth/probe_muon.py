"""Measures torch's Muon over ordinary tensors, as each rank of DDP has them, on one CPU.

    python tests/truth/probe_muon.py > tests/truth/optimizers/muon-torch-2.13.0.json

torch 2.13.0 `torch.optim.Muon`, two steps over drawn matrices: `states`: bytes of each state, `peaks`: the most that a
step holds beyond what is there after it (`simcore/verify/real/steps/tracker.py`). `refused`: its words about a
parameter of one dimension, as FSDP 1 has them.
"""

from __future__ import annotations

import random
from itertools import accumulate

import torch
from json_lines import with_cases
from oracle.steps.tracker import Tracker

SEED, COUNT = 20271201, 44


def drawn():
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        found[f"d{number}"] = {
            "dtype": rng.choice(("float32", "bfloat16")),
            "shapes": [[rng.randrange(16, 400), rng.randrange(16, 400)] for _ in range(rng.choice((1, 2, 4)))]}
    return found


def run(row):
    dtype = getattr(torch, row["dtype"])
    parameters = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in row["shapes"]]
    optimizer, peaks = torch.optim.Muon(parameters, lr=0.01), []
    for _ in range(2):
        for one in parameters:
            one.grad = torch.randn(one.shape, dtype=dtype)
        tracker = Tracker()
        with tracker:
            for one in parameters:
                for tensor in (one, one.grad, *optimizer.state[one].values()):
                    tracker.number_of(tensor)
            begin = len(tracker.events)
            optimizer.step()
        running = list(accumulate(change for _, change in tracker.events))
        peaks.append(max(running[begin:]) - running[-1])
    return {"peaks": peaks, "states": [{name: state.untyped_storage().nbytes() for name, state in
                                        optimizer.state[one].items()} for one in parameters]}


def refused():
    try:
        torch.optim.Muon([torch.nn.Parameter(torch.zeros(8))])
    except ValueError as error:
        return str(error)
    return ""


def main():
    print(with_cases({"torch": torch.__version__.partition("+")[0], "refused": refused()},
                     {name: row | {"found": run(row)} for name, row in drawn().items()}, indent=" "))


if __name__ == "__main__":
    main()
