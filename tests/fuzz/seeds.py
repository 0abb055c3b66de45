"""Files of every kind that the commands read, as they should be: what mutations start from."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final

from fuzz.case import Tree
from fuzz.drawing import parsed
from simcore.inputs.document import read_document
from simcore.inputs.shipped import data_folder
from simcore.simulate import simulate
from viz.exports.snapshot import MAX_POSTINGS, pickled

__all__ = ["LOGS", "PLAIN", "measured", "results", "scenarios", "shipped", "snapshots", "tree_of"]

PLAIN: Final[Tree] = {
    "name": "s", "model": "llama-tiny", "framework": "fsdp2", "topology": "dgx-h100", "mesh": {"dp_shard": 8},
    "training": {"seq_len": 64, "global_batch_size": 16}}
"""A scenario that takes no time."""

_OTHERS: Final[tuple[Tree, ...]] = (
    {"framework": "megatron", "model": "nemotron-3-tiny", "mesh": {"dp_shard": 2, "tp": 2, "ep": 2}},
    {"framework": "zero3", "limits": {"usable_memory": "10 MiB"}}, {"framework": "fsdp1", "model": "nowhere"},
    {"training": {"seq_len": 64, "routing": {"seed": 1, "draws": 5}}, "model": "nemotron-3-tiny",
     "framework": "automodel", "mesh": {"dp_shard": 8, "ep": 2}})


@cache
def scenarios() -> tuple[bytes, ...]:
    """Shipped ones, as text."""
    folder = data_folder("scenarios")
    files = (path for path in sorted(folder.rglob("*.yaml")) if "answers" not in path.parts)
    return tuple(path.read_bytes() for path in files)


@cache
def shipped(folder: str) -> tuple[Path, ...]:
    """Topologies, and their parts in `efficiency` and `nccl`."""
    return tuple(sorted((data_folder("topologies") / folder).glob("*.yaml")))


@cache
def tree_of(path: Path) -> Tree:
    """Content of a shipped file."""
    return read_document(path).data


@cache
def results() -> tuple[Tree, ...]:
    """Results of `run --json`: one that fits, one that does not, one that is refused."""
    made = (simulate(parsed({**PLAIN, **other})) for other in ({}, *_OTHERS))
    return tuple(json.loads(report.model_dump_json()) for report in made)


@cache
def measured() -> tuple[Tree, ...]:
    """Rows of measured runs, small ones."""
    files = sorted(data_folder("measured").glob("*.jsonl"))
    rows = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()[:20]]
    plain: Tree = {key: value for key, value in PLAIN.items() if key != "name"}
    own: list[Tree] = [
        {"id": "a", "group": "g", "source": "s", "scenario": plain, "step_s": 0.5, "readings": [
            {"of": "allocated_peak", "rank": "max", "bytes": 10**9}, {"of": "reserved_peak", "rank": 0, "bytes": 1}]},
        {"id": "b", "group": "g", "source": "s", "scenario": plain, "verdict": "fits", "kind": "tuned"}]
    return tuple(own + [row for row in rows if row.get("scenario") is None])


@cache
def snapshots() -> tuple[bytes, ...]:
    """Memory snapshots, as PyTorch pickles them."""
    return tuple(pickled(simulate(parsed({**PLAIN, **other}), detail=True, postings=MAX_POSTINGS))
                 for other in ({}, {"framework": "ddp", "mesh": {"dp_replicate": 2}}))


LOGS: Final = tuple(text.encode() for text in (
    "\x1b[31mstep:  1  \x1b[32mloss: 11.5  \x1b[38;2;54;234;195mmemory: 40.10GiB(51.44%)  \x1b[34mtps: 1,000  "
    "tflops: 50.00  mfu: 5.00%\x1b[39m\nstep: 10  loss: 9  memory: 48.87GiB(60.1%)  tps: 4,000  tflops: "
    "250.0  mfu: N/A\n",
    "[Rank 0] (after 1 iterations) memory (MB) | allocated: 100.00 | max allocated: 200.00 | reserved: 300.00 | max "
    "reserved: 310.50\n iteration 2/ 100 | consumed samples: 256 | elapsed time per iteration (ms): 2000.0 | "
    "throughput per GPU (TFLOP/s/GPU): 400.0 | global batch size:   128 | lm loss: 1.1E+01 |\n"
    " iteration 3/ 100 | elapsed time per iteration (ms): 1900.0 | throughput per GPU (TFLOP/s/GPU): 420.0 |\n",
    "Step Time : 2.50s GPU utilization: 320.5MODEL_TFLOP/s/GPU\n[Rank 0] (after 2 iterations) memory (GB) | "
    "mem-allocated-gigabytes: 12.345 | mem-max-allocated-gigabytes: 50.123 | mem-max-reserved-gigabytes: 61.5\n"))

