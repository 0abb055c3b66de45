"""Published measurements, restated as our own rows: what was measured, in bytes, and the scenario that was run.

    python tests/truth/convert_measured.py MEASURED.json MEGATRON_GOLDENS.json

Comes in: the two collections of published measurements (a list of runs; one golden file of Megatron-LM a line).
Goes out: `measured/GROUP.jsonl`, one row a line. A scenario is derived from the row's published configuration alone,
by one rule for each group; no rule looks at what was measured. What a scenario cannot say gets `not_modelled`, with the
reason; so does a run that another row restates, or whose source prints neither memory nor a step: no run of the two
collections is left out. `README.md` beside this file tells how readings are to be read.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import measured_bridge
import measured_cards
import measured_golden
import measured_runs

HERE = Path(__file__).resolve().parent / "measured"


def rows(measured, goldens):
    """Every run, in the order of the sources."""
    known = {_long(golden["source"]) for golden in goldens}
    for golden in goldens:
        copy = measured_golden.copied_from(golden)
        yield aside(golden, f"the same run as {copy}, stored twice") if copy else measured_golden.row(golden)
    for run in measured:
        if run["group"] == "mcore-golden":
            restated = run["source"].removeprefix("github:") in known
            yield aside(run, "a golden value that the other collection restates") if restated else \
                measured_golden.unfiled(run)
        elif run["group"] == "mbridge-perf-summary":
            yield measured_bridge.row(run)
        elif run["group"] == "mbridge-card":
            yield measured_runs.restated(run, measured_cards.card)
        else:
            yield measured_runs.row(run) or aside(run, _lacking(run))


def aside(run, reason):
    """A run of which nothing is compared."""
    group = run.get("group") or measured_golden.group(run)
    return {"id": run["id"], "group": group, "source": run["source"], "not_modelled": reason}


def _lacking(run):
    """Why neither memory nor the time of a step can be read off a run."""
    printed = ", ".join(sorted(name for name, value in run["measured"].items() if value is not None))
    return f"neither memory nor the time of a step is printed: {printed}"


def _long(source):
    """One collection shortens the commit to 8 digits, the other to 12."""
    return source.replace("@d98e8a64:", "@d98e8a64ddf3:")


def main(measured_file, goldens_file):
    """Write one file a group."""
    measured = json.loads(Path(measured_file).read_text(encoding="utf-8"))
    goldens = [json.loads(line) for line in Path(goldens_file).read_text(encoding="utf-8").splitlines()]
    groups = defaultdict(list)
    for row in rows(measured, goldens):
        groups[row["group"]].append(json.dumps(row, ensure_ascii=False))
    HERE.mkdir(exist_ok=True)
    for old in HERE.glob("*.jsonl"):
        old.unlink()
    for group, lines in sorted(groups.items()):
        (HERE / f"{group}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        print(f"{group}: {len(lines)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
