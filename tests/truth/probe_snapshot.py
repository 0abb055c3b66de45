"""Asks torch's own tool to open what `rankscope export snapshot` writes; nothing of rankscope is imported.

    python tests/truth/probe_snapshot.py COMMAND...     # such as .venv/bin/rankscope, or python -m simcore

Opened by `torch.cuda._memory_viz`: `segsum` (which asserts that blocks tile their segments), `trace`, `trace_plot`
(also of segments, and without what was freed) and `segment_plot`. `memory` and `segments` of that tool fetch a script
over the network, `compare` takes an older form: they are not asked. Fields are those that torch documents.
"""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.cuda import _memory_viz as viz

FIELDS = {"Segment": "segments", "Block": "blocks", "TraceEntry": "device_traces", "Frame": "frames"}
OPTIONAL = {"compile_context", "user_metadata", "device_free", "addr", "fx_node_op", "fx_node_name",
            "fx_original_trace", "history", "cpp_frames"}

SCENARIOS = {
    "fits": "model: nemotron-3-tiny\nframework: fsdp2\nmesh: {dp_shard: 4}\n",
    "stages": "model: nemotron-3-tiny\nframework: megatron\nmesh: {dp_shard: 2, pp: 5}\n",
    "oom": "model: nemotron-3-nano-30b-a3b\nframework: automodel\nmesh: {dp_shard: 2, ep: 2}\n",
}
COMMON = "topology: dgx-h100\ntraining: {seq_len: 64, global_batch_size: 8}\n"


def exported(command: list[str], name: str, folder: Path) -> dict[str, Any]:
    """The snapshot of a scenario."""
    scenario, path = folder / f"{name}.yaml", folder / f"{name}.pickle"
    scenario.write_text(f"name: {name}\n{COMMON}{SCENARIOS[name]}", encoding="utf-8")
    subprocess.run([*command, "export", "snapshot", str(scenario), "-o", str(path)], check=True, capture_output=True)
    loaded: dict[str, Any] = pickle.loads(path.read_bytes())  # noqa: S301 - written a line above
    return loaded


def documented() -> dict[str, set[str]]:
    """Fields by class, from the docstring of torch.cuda.memory._snapshot."""
    text = torch.cuda.memory._snapshot.__doc__ or ""
    parts = re.split(r"class (\w+)\(TypedDict\):", text)
    return {name: set(re.findall(r"^ {12}(\w+):", body, re.M))
            for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def used(made: dict[str, Any]) -> dict[str, set[str]]:
    """Fields that every dictionary of a class has."""
    blocks = [block for segment in made["segments"] for block in segment["blocks"]]
    events = [event for events in made["device_traces"] for event in events]
    frames = [frame for event in events for frame in event["frames"]]
    every = {"Segment": made["segments"], "Block": blocks, "TraceEntry": events, "Frame": frames}
    return {name: set.intersection(*(set(one) for one in found)) for name, found in every.items()}


def check(name: str, made: dict[str, Any]) -> None:
    """Every tool, and what it makes of the file."""
    for which, fields in documented().items():
        if which in FIELDS:
            missing = fields - OPTIONAL - used(made)[which]
            assert not missing, f"{name}: {which} lacks {missing}"
    assert f"segments: {len(made['segments'])}\n" in viz.segsum(made)
    traced = viz.trace(made)
    assert traced.count("Device ") == len(made["device_traces"])
    assert ("raise OutOfMemoryError" in traced) == (name == "oom")
    assert "<script" in viz.segment_plot(made)
    for segments in (False, True):
        assert "<script" in viz.trace_plot(copy.deepcopy(made), plot_segments=segments)
    assert "<script" in viz.trace_plot(copy.deepcopy(made), filter_freed=True)


def main(command: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in SCENARIOS:
            made = exported(command, name, Path(folder))
            check(name, made)
            print(f"{name}: {sum(map(len, made['device_traces']))} events on {len(made['segments'])} devices, "
                  f"opened by torch {torch.__version__}")


if __name__ == "__main__":
    main(sys.argv[1:] or [sys.executable, "-m", "simcore"])
