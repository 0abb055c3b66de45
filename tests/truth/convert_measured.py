"""Published measurements, restated as our own rows: what was measured, in bytes, and the scenario that was run.

    python tests/truth/convert_measured.py MEASURED.json MEGATRON_GOLDENS.json MLPERF.json

Comes in: the collections of published measurements (a list of runs; one golden file of Megatron-LM a line; a list of
MLPerf results).
Goes out: `measured/GROUP.jsonl`, one row a line. A scenario is derived from the row's published configuration alone,
by one rule for each group; no rule looks at what was measured. What a scenario cannot say gets `not_modelled`, with the
reason. `README.md` beside this file tells how readings are to be read.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import measured_bridge
import measured_cards
import measured_golden
import measured_mlperf
import measured_runs

HERE = Path(__file__).resolve().parent / "measured"


def rows(measured, goldens, results):
    """Every row that carries a memory reading, a verdict or a time, in the order of the sources."""
    known = {golden["source"] for golden in goldens}
    for golden in goldens:
        if not measured_golden.is_copy(golden):
            yield measured_golden.row(golden)
    for run in measured:
        if run["group"] == "mcore-golden":
            if run["source"].removeprefix("github:") not in {_long(source) for source in known}:
                yield measured_golden.unfiled(run)
        elif run["group"] == "mbridge-perf-summary":
            yield measured_bridge.row(run)
        elif run["group"] == "mbridge-card":
            yield measured_runs.restated(run, measured_cards.card)
        elif made := measured_runs.row(run):
            yield made
    yield from map(measured_mlperf.row, results)


def _long(source):
    """One collection shortens the commit to 8 digits, the other to 12."""
    return source.replace("@d98e8a64:", "@d98e8a64ddf3:")


def main(measured_file, goldens_file, results_file):
    """Write one file a group."""
    measured = json.loads(Path(measured_file).read_text(encoding="utf-8"))
    goldens = [json.loads(line) for line in Path(goldens_file).read_text(encoding="utf-8").splitlines()]
    results = json.loads(Path(results_file).read_text(encoding="utf-8"))
    groups = defaultdict(list)
    for row in rows(measured, goldens, results):
        groups[row["group"]].append(json.dumps(row, ensure_ascii=False))
    HERE.mkdir(exist_ok=True)
    for old in HERE.glob("*.jsonl"):
        old.unlink()
    for group, lines in sorted(groups.items()):
        (HERE / f"{group}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        print(f"{group}: {len(lines)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
