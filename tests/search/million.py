"""A search of very many candidates through the whole path of its driver: how fast, and in how much memory?

    PYTHONPATH=$PWD:$PWD/tests python -m search.million --candidates 1000000 --fits 10 DIR

Answers are made up in this process (one in `--fits` fits), so that the driver alone is measured: making candidates, the
journal, the answer, a row for each. Prints candidates a second, and resident memory at the beginning, at a tenth of the
way, and at the end. `--real` simulates instead, by `-j` workers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from simcore.executors.processes import processes
from simcore.inputs.scenario import Scenario
from simcore.search import search as searching
from simcore.search.journal import JOURNAL
from simcore.search.judge import Candidate, Judged, Refused, Sized, Timed
from simcore.search.objective import OBJECTIVES
from simcore.search.search import Search, search
from simcore.search.space import Space, candidates, space_of

__all__ = ["run"]

BASE = Scenario.model_validate({
    "name": "million", "model": "llama-tiny", "topology": "dgx-h100", "framework": "fsdp2",
    "training": {"seq_len": 2048, "global_batch_size": 64}})


def space(num: int) -> Space:
    """A space of at least so many candidates: all meshes of 8 and 16 GPUs, times lengths of sequences."""
    one = {"mesh": (), "training.micro_batch_size": (), "training.recompute": (), "options": ()}
    gpus, frameworks = (8, 16), ("fsdp2", "megatron")
    each = sum(1 for _ in candidates(space_of(BASE, gpus=gpus, frameworks=frameworks, free=one)))
    lengths = tuple(128 * (at + 1) for at in range(-(-num // each)))
    return space_of(BASE, gpus=gpus, frameworks=frameworks, free={**one, "training.seq_len": lengths})


def resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


class MadeUp:
    """Answers that cost nothing: one in `every` fits, the others are refused or too large in turn."""

    def __init__(self, every: int) -> None:
        self.every, self.count = every, 0

    def judged(self, _base: Scenario, asked: Sequence[Candidate]) -> list[Judged]:
        self.count += 1
        if self.every and self.count % self.every == 0:
            return [Sized("fits", 2**33 + self.count, 2**36, 8, 8192, 2.5, 0.01 + self.count % 97 / 1000)] * len(asked)
        if self.count % 3:
            return [Refused("illegal", "made up", f"made up, of kind {self.count % 5}")] * len(asked)
        return [Sized("oom", 2**37 + self.count, -2**30, 8, 8192, 2.5, 0.01)] * len(asked)

    def timed(self, _base: Scenario, asked: Sequence[Candidate]) -> list[Timed | None]:
        return [Timed(0.2, 1000.0, 0.3, 1.5, "none")] * len(asked)


def run(num: int, every: int, folder: Path, workers: int = 0) -> dict[str, float]:
    """Figures of one search: candidates, seconds of each part, MiB, bytes on the disk a candidate."""
    asked, marks, begun = space(num), dict[str, float](), time.monotonic()
    question = Search(asked, (OBJECTIVES["tokens"], OBJECTIVES["peak"]), place=processes(workers) if workers else None)
    last = begun

    def told(stage: str, done: int, all_of: int, found: int) -> None:
        nonlocal last
        if stage == "memory" and done in (0, all_of // 10, all_of):
            name = {0: "beginning", all_of // 10: "tenth"}.get(done, "end")
            marks[f"MiB at {name}"] = resident()
            marks[f"s to {name}"] = time.monotonic() - begun
        last = time.monotonic()

    made_up = MadeUp(every)
    if workers:
        answer = search(question, told, folder)
    else:
        with patch.object(searching, "judged", made_up.judged), patch.object(searching, "timed", made_up.timed):
            answer = search(question, told, folder)
    counts = answer.counts
    rows = sum(path.stat().st_size for path in (folder / "data").iterdir())
    return {"candidates": counts.candidates, **marks, "s of ranking, answer and rows": time.monotonic() - last,
            "s in all": time.monotonic() - begun, "MiB after rows": resident(), "ranked": counts.ranked,
            "a second": counts.candidates / (time.monotonic() - begun),
            "bytes of journal each": (folder / JOURNAL).stat().st_size / counts.candidates,
            "bytes of rows each": rows / counts.candidates}


def main() -> int:
    parser = argparse.ArgumentParser(description="A search of very many candidates.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--candidates", type=int, default=1_000_000)
    parser.add_argument("--fits", type=int, default=0, help="one in so many fits; 0: none")
    parser.add_argument("--real", type=int, default=0, metavar="WORKERS")
    asked = parser.parse_args()
    for name, value in run(asked.candidates, asked.fits, asked.folder, asked.real).items():
        sys.stdout.write(f"{name}: {value:,.1f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
