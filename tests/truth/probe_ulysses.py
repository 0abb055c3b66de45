"""What verl's exchanges around attention send and hold: its own functions over a fake process group, on one CPU.

    python tests/truth/probe_ulysses.py VERL > tests/truth/verl/ulysses-torch-2.13.0.json

`VERL`: git directory of volcengine/verl with b178a3cd, of which `verl/utils/ulysses.py` runs. Each row: a tensor [1,
tokens of a rank, heads, 64] in bf16 and the ranks; for the exchange in front of attention (`before`: all tokens of a
part of the heads come) and for that `behind` it, forward and backward each: `sent` bytes, and the most bytes that are
held beside the input, the result among them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from probe_verl import traced

COMMIT = "b178a3cd"
CASES = ((2, 64, 8), (4, 64, 8), (4, 32, 4))
DIM = 64
SEED, COUNT = 20261129, 40


def drawn() -> list[tuple[int, int, int]]:
    """Ranks, tokens of a rank and heads, drawn by a seed; none is drawn again because of what came out."""
    rng, found = random.Random(SEED), []
    for _ in range(COUNT):
        ranks = rng.choice((2, 2, 3, 4, 4, 5, 6, 8))
        found.append((ranks, rng.choice((8, 24, 64, 100, 128, 250)), ranks * rng.choice((1, 2, 3, 4))))
    return found


def module(verl: str) -> dict[str, Any]:
    text = subprocess.run(["git", "-C", verl, "show", f"{COMMIT}:verl/utils/ulysses.py"],  # noqa: S607 - git
                          capture_output=True, text=True, check=True)
    space: dict[str, Any] = {"__name__": "ulysses"}
    lines = [line for line in text.stdout.splitlines() if not line.startswith("from verl")]
    exec("\n".join(lines), space)  # noqa: S102 - verl's own functions are what is asked
    return space


def measure(verl: str, ranks: int, tokens: int, heads: int) -> dict[str, Any]:
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    space, sent = module(verl), []
    space["set_ulysses_sequence_parallel_group"](dist.group.WORLD)
    call = dist.all_to_all

    def noting(out: Any, given: Any, **named: Any) -> Any:
        sent.append(sum(x.numel() * x.element_size() for x in given))
        return call(out, given, **named)

    dist.all_to_all = noting
    rows = {}
    for name, function, shape, dims in (
            ("before", space["gather_seq_scatter_heads"], (1, tokens, heads, DIM), {"seq_dim": 1, "head_dim": 2}),
            ("behind", space["gather_heads_scatter_seq"], (1, tokens * ranks, heads // ranks, DIM),
             {"seq_dim": 1, "head_dim": 2})):
        for _ in range(2):
            x = torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True)
            sent.clear()
            out, made = traced(partial(function, x, **dims))
            grad = torch.ones_like(out)
            _, undone = traced(partial(out.backward, grad))
        rows[name] = {"sent": list(sent), "forward": _most(made), "backward": _most(undone)}
    dist.all_to_all = call
    dist.destroy_process_group()
    return {"ranks": ranks, "tokens": tokens, "heads": heads, **rows}


def _most(sizes: list[int]) -> int:
    now = highest = 0
    for size in sizes:
        now += size
        highest = max(highest, now)
    return highest


def main() -> None:
    rows = [json.dumps(measure(sys.argv[1], *case)) for case in (*CASES, *drawn())]
    print("[\n" + ",\n".join(rows) + "\n]")


if __name__ == "__main__":
    main()
