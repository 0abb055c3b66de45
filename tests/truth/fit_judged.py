"""Lines by which `validate` judges step times, and where errors of tuned runs are, for the page of the fit.

    rankscope validate --json > V.json; python tests/truth/fit_judged.py V.json

Comes in: what `validate` found, and the measured rows. Goes out: `measured/judged.json`: lines of step time; groups of
tuned runs (of one source, model, machine and format) with their errors by a fit that had not seen them; rows that are
kept out of every fit; digests of what it was made from, as in `left_out.json`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simcore.validation.runs import read_measured

MEASURED = Path(__file__).resolve().parent / "measured"
LARGE = 0.1
"""An error that is told."""
TIMED = "step time, "


def judged(found: Mapping[str, Any], kept_out: Iterable[str], left: Mapping[str, Any]) -> dict[str, Any]:
    """Lines of the page about `found`. `kept_out`: ids of rows that no fit saw; `left`: `left_out.json`."""
    aside = set(kept_out)
    timed = found["time"]["timed"]
    tuned = [one for one in timed if one["kind"] == "tuned" and one["stable"] and aside.isdisjoint(one["rows"])]
    lines = [{key: line[key] for key in ("what", "num", "allowed", "found", "fitted", "is_kept")}
             for line in found["time"]["judged"]]
    groups = grouped(tuned, ("group", "model", "topology", "precision"))
    return {"rows": left["rows"], "factors": left["factors"], "lines": lines,
            "groups": sorted((one for one in groups if one["large"]), key=lambda one: (-one["large"], one["of"])),
            "kept_out": grouped([one for one in timed if not aside.isdisjoint(one["rows"])], ("group", "topology"))}


def grouped(timed: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Errors of runs that agree in `keys`: their number, how many are large, the median without and with its sign."""
    errors: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for one in timed:
        errors[tuple(str(one[key]) for key in keys)].append(one["left_out_error"])
    return [{"of": list(key), "num": len(each), "large": sum(abs(error) > LARGE for error in each),
             "median": round(statistics.median(map(abs, each)), 4), "bias": round(statistics.median(each), 4),
             "least": round(min(each), 4), "most": round(max(each), 4)} for key, each in sorted(errors.items())]


def main(path: str) -> None:
    """Reads what `validate` wrote to `path`, and writes the file."""
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    left = json.loads((MEASURED / "left_out.json").read_text(encoding="utf-8"))
    aside = [one.row.id for one in read_measured()[0] if one.row.kept_out]
    told = judged(found[0] if isinstance(found, list) else found, aside, left)
    (MEASURED / "judged.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(sys.argv[1])
