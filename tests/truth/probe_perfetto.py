"""Asks Perfetto's own parser what it reads in traces of `rankscope export chrome`: step, slices, arrows, counters.

    python tests/truth/probe_perfetto.py FOLDER FILE...        # 1: it reads something else than is written

FOLDER has Perfetto's trace processor for node, see `oracle/trace_processor.mjs`; where node or the folder is missing
this says so and checks nothing. Nothing of rankscope is imported.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).resolve().parent / "oracle" / "trace_processor.mjs"
QUERIES = {
    "complaints": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "slices": "select process.pid, thread.name, slice.name, slice.ts, slice.dur, slice.depth from slice "
              "join thread_track on slice.track_id = thread_track.id "
              "join thread using (utid) join process using (upid)",
    "arrows": "select a.name, b.name, b.ts - a.ts < a.dur and a.ts - b.ts < b.dur from flow "
              "join slice a on slice_out = a.id join slice b on slice_in = b.id",
    "counters": "select process.pid, max(counter.value) from counter join process_counter_track as track "
                "on counter.track_id = track.id join process using (upid) "
                "where track.name = 'allocated bytes' group by 1",
    "processes": "select pid, name from process where name is not null",
}
Rows = list[list[Any]]


def asked(folder: Path, file: Path) -> dict[str, Rows]:
    """The rows of each query."""
    node = shutil.which("node")
    assert node is not None
    ran = subprocess.run([node, str(DRIVER), str(folder), str(file), *QUERIES.values()], capture_output=True, text=True,
                         check=True)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("[")]
    return dict(zip(QUERIES, map(json.loads, lines), strict=True))


def differences(file: Path, read: dict[str, Rows]) -> Iterator[str]:
    """Where it reads something else than what is written."""
    written = json.loads(file.read_text(encoding="utf-8"))
    events: list[dict[str, Any]] = written["traceEvents"]
    yield from (f"{file}: complains of {name}, {value}" for name, value in read["complaints"])
    yield from _slices(file, events, read["slices"])
    steps = {dur for _, _, name, _, dur, _ in read["slices"] if name == "step"}
    if "step_s" in written["otherData"] and not written["otherData"]["left_out"] and steps:
        step = round(written["otherData"]["step_s"] * 1e9)
        print(f"{file.name}: the step is {', '.join(map(str, sorted(steps)))} ns, in the report {step} ns; "
              f"{len(read['slices']):,} slices, {len(read['arrows']):,} arrows")
        if steps != {step}:
            yield f"{file}: the step is {steps} ns, expected {step}"
    arrows = sum(event["ph"] == "s" for event in events)
    if len(read["arrows"]) != arrows or not all(together for _, _, together in read["arrows"]):
        yield f"{file}: {len(read['arrows'])} arrows, expected {arrows}, each between slices of one time"
    yield from _whole(file, events, read)


def _slices(file: Path, events: list[dict[str, Any]], found: Rows) -> Iterator[str]:
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in events
               if event["name"] == "thread_name"}
    written = Counter((event["pid"], threads[event["pid"], event["tid"]], event["name"], _ns(event["ts"]),
                       _ns(event["dur"])) for event in events if event["ph"] == "X")
    seen = Counter(tuple(row[:5]) for row in found)
    yield from (f"{file}: not read so: {one}" for one in sorted((written - seen).elements())[:5])
    yield from (f"{file}: read, not written: {one}" for one in sorted((seen - written).elements(), key=str)[:5])
    yield from (f"{file}: {name} lies in another slice of {thread}" for _, thread, name, _, _, depth in found
                if depth and thread != "step")


def _whole(file: Path, events: list[dict[str, Any]], read: dict[str, Rows]) -> Iterator[str]:
    """Names of processes, and the highest moment of each."""
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    if dict(map(tuple, read["processes"])) != named:
        yield f"{file}: processes {read['processes']}, expected {named}"
    most: dict[int, int] = {}
    for event in events:
        if event["name"] == "allocated":
            most[event["pid"]] = max(most.get(event["pid"], 0), event["args"]["bytes"])
    if dict(map(tuple, read["counters"])) != most:
        yield f"{file}: at most {read['counters']} bytes, expected {most}"


def _ns(us: float) -> int:
    return round(us * 1000)


def main(folder: Path, files: Sequence[Path]) -> int:
    if shutil.which("node") is None or not (folder / "trace_processor.wasm").is_file():
        print(f"not checked: Perfetto's trace processor needs node, and its files in {folder}")
        return 0
    wrong = [line for file in files for line in differences(file, asked(folder, file))]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]]))
