"""Asks HolisticTraceAnalysis how much of the communication in a trace is overlapped by computation.

    python tests/truth/probe_hta.py > tests/truth/hta/overlap-0.5.0.json
    python tests/truth/probe_hta.py --check                 # asks again and compares with that file
    python tests/truth/probe_hta.py --check FOLDER...       # traces of `rankscope export kineto`: with their own words

Cases are intervals in ns, written as the least trace that it reads; nothing of rankscope is imported.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from json_lines import listed

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # else it rounds times inwards to microseconds
warnings.simplefilter("ignore")

from hta.trace_analysis import TraceAnalysis  # noqa: E402 - reads the line above

STORED = Path(__file__).resolve().parent / "hta" / "overlap-0.5.0.json"
NAMES = {"compute": "gemm", "communication": "ncclDevKernel_AllGather", "copy": "Memcpy DtoH (Device -> Pinned)"}
Case = dict[str, list[list[int]]]


def cases() -> Iterator[tuple[str, Case]]:
    """Borders that meet, nested and repeated intervals, copies that count as neither; then drawn ones."""
    yield "none overlaps", {"compute": [[0, 1000]], "communication": [[2000, 3000]]}
    yield "all overlaps", {"compute": [[0, 5000]], "communication": [[1000, 2000], [2500, 3001]]}
    yield "borders meet", {"compute": [[0, 1000], [2000, 3000]], "communication": [[1000, 2000]]}
    yield "two streams communicate at once", {"compute": [[500, 1500]], "communication": [[0, 1000], [200, 2000]]}
    yield "computation in pieces", {"compute": [[0, 300], [300, 700], [900, 1000]], "communication": [[100, 950]]}
    yield "a copy is neither", {"compute": [[0, 1000]], "communication": [[500, 1500]], "copy": [[0, 4000]]}
    for seed in range(12):
        drawn = random.Random(seed)
        yield f"drawn {seed}", {kind: _drawn(drawn) for kind in ("compute", "communication", "copy")}


def _drawn(drawn: random.Random) -> list[list[int]]:
    starts = sorted(drawn.sample(range(1_000_000), 40))
    return [[start, start + drawn.randrange(1, 60_000)] for start in starts]


def trace(case: Case) -> dict[str, Any]:
    """What Kineto would have written."""
    events: list[dict[str, Any]] = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 9, "tid": 9,
                                     "ts": 0, "dur": 2000.0, "args": {}}]
    for stream, (kind, intervals) in enumerate(case.items(), 7):
        for start, end in intervals:
            number = len(events)
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9,
                           "ts": 0.0, "dur": 0.0, "args": {"correlation": number}})
            events.append({"ph": "X", "cat": "kernel", "name": NAMES[kind], "pid": 0, "tid": stream,
                           "ts": start / 1000, "dur": (end - start) / 1000,
                           "args": {"correlation": number, "stream": stream, "device": 0}})
    return {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
            "traceEvents": events}


def measured(folder: str) -> dict[int, dict[str, float]]:
    """By rank: what it says of a folder of traces."""
    found = TraceAnalysis(trace_dir=folder)
    table = found.get_comm_comp_overlap(visualize=False)
    names = found.t.symbol_table.get_sym_id_map()
    told = {}
    for rank, share in zip(table["rank"], table["comp_comm_overlap_pctg"], strict=True):
        events = found.t.traces[rank]
        steps = events[events["name"] == names["ProfilerStep#0"]]
        kernels = events[events["stream"] >= 0]
        told[int(rank)] = {"overlap_pctg": float(share), "step_us": float(steps["dur"].iloc[0]),
                           "kernels_end_us": float((kernels["ts"] + kernels["dur"]).max())}
    return told


def rows() -> list[dict[str, Any]]:
    """All cases with their answers."""
    made = []
    for name, case in cases():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "rank0.json").write_text(json.dumps(trace(case)), encoding="utf-8")
            made.append({"name": name, **case, "overlap_pctg": measured(folder)[0]["overlap_pctg"]})
    return made


def differences(folder: Path) -> Iterator[str]:
    """Where it reads another number from a file than the file says of itself."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    told = measured(str(folder))
    if len(files) != len(told):
        yield f"{folder}: {len(files)} files, {len(told)} ranks"
    for file in files:
        rank, own = file["distributedInfo"]["rank"], file["rankscope"]
        found = told[rank]
        print(f"rank {rank}: overlap {found['overlap_pctg']} %, here {100 * own['overlap']:.4f} %; "
              f"step {found['step_us']:.3f} us, here {own['end_s'] * 1e6:.3f} us")
        if abs(found["overlap_pctg"] - 100 * own["overlap"]) > 0.005 + 1e-9:
            yield f"{folder}: rank {rank}: overlap {found['overlap_pctg']} %, expected {100 * own['overlap']} %"
        if abs(found["step_us"] - own["end_s"] * 1e6) > 1e-3:
            yield f"{folder}: rank {rank}: step {found['step_us']} us, expected {own['end_s'] * 1e6} us"
        if found["kernels_end_us"] > found["step_us"] + 1e-3:
            yield f"{folder}: rank {rank}: kernels end at {found['kernels_end_us']} us, behind the step"


def main(arguments: Sequence[str]) -> int:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("folders", nargs="*", type=Path)
    asked = parser.parse_args(arguments)
    if asked.folders:
        wrong = [line for folder in asked.folders for line in differences(folder)]
    elif asked.check:
        wrong = [] if rows() == json.loads(STORED.read_text(encoding="utf-8")) else [f"{STORED.name} differs"]
        print(f"{STORED.name}: {'as stored' if not wrong else 'differs'}")
    else:
        print(listed(rows()))
        return 0
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
