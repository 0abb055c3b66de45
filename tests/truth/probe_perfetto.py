"""Asks Perfetto's trace processor for the step, the slices and the arrows of traces of `rankscope export chrome`.

    python tests/truth/probe_perfetto.py FILE...        # 1: it reads something else than the file says of itself

It needs the package `perfetto`, which fetches the program `trace_processor_shell` the first time; where that cannot be
had (PERFETTO_BINARY_PATH may name one), it says so and checks nothing. Nothing of rankscope is imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import SubprocessError
from typing import Any
from urllib.error import URLError

from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

SLICES = """select process.pid, thread.name as thread, slice.name, slice.ts, slice.dur, slice.depth
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"""
ARROWS = "select count(*) as number from flow"
COUNTERS = """select process.pid, max(counter.value) as most from counter
join process_counter_track on counter.track_id = process_counter_track.id join process using (upid)
where process_counter_track.name = 'allocated bytes' group by process.pid"""
COMPLAINTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def opened(path: Path) -> TraceProcessor | None:
    """The file in the trace processor; None where there is no such program here."""
    try:
        config = TraceProcessorConfig(bin_path=os.environ.get("PERFETTO_BINARY_PATH"))
        return TraceProcessor(trace=str(path), config=config)
    except (SubprocessError, URLError, OSError) as error:
        print(f"not checked: Perfetto's trace processor cannot be started here ({type(error).__name__}: {error})")
        return None


def differences(path: Path, read: TraceProcessor) -> Iterator[str]:
    """Where it reads something else than what is written."""
    file = json.loads(path.read_text(encoding="utf-8"))
    events: list[dict[str, Any]] = file["traceEvents"]
    yield from (f"{path}: complains of {row.name}, {row.value}" for row in read.query(COMPLAINTS))
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in events
               if event["name"] == "thread_name"}
    written = Counter((event["pid"], threads[event["pid"], event["tid"]], event["name"], ns(event["ts"]),
                       ns(event["dur"])) for event in events if event["ph"] == "X")
    found = list(read.query(SLICES))
    seen = Counter((row.pid, row.thread, row.name, row.ts, row.dur) for row in found)
    yield from (f"{path}: not read so: {one}" for one in sorted((written - seen).elements())[:5])
    yield from (f"{path}: read, not written: {one}" for one in sorted((seen - written).elements())[:5])
    yield from (f"{path}: {row.name} lies over another slice" for row in found if row.depth and row.thread != "step")
    steps = {row.dur for row in found if row.name == "step"}
    step = round(file["otherData"]["step_s"] * 1e9)
    print(f"{path}: the step is {', '.join(map(str, sorted(steps)))} ns, here {step}; {len(found):,} slices")
    if not file["otherData"]["left_out"] and steps != {step}:
        yield f"{path}: the step is {steps} ns, expected {step}"
    (arrows,) = (row.number for row in read.query(ARROWS))
    if arrows != sum(event["ph"] == "s" for event in events):
        yield f"{path}: {arrows} arrows, expected {sum(event['ph'] == 's' for event in events)}"
    most = {row.pid: row.most for row in read.query(COUNTERS)}
    told: dict[int, int] = {}
    for event in events:
        if event["name"] == "allocated":
            told[event["pid"]] = max(told.get(event["pid"], 0), event["args"]["bytes"])
    if most != told:
        yield f"{path}: at most {most} bytes, expected {told}"


def ns(us: float) -> int:
    return round(us * 1000)


def main(paths: Sequence[str]) -> int:
    wrong: list[str] = []
    for path in map(Path, paths):
        if (read := opened(path)) is None:
            return 0
        with read:
            wrong += differences(path, read)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
