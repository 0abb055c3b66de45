"""Cases of Megatron-LM's own tests as `rankscope import` reads them, beside the scenarios of the measured rows.

    python tests/truth/compare_megatron_cases.py MEGATRON_CHECKOUT

Comes in: a checkout of Megatron-LM at d98e8a64, fetched and never committed. Printed: how many pairs of a
model_config.yaml and a row's scenario are the same scenario, how many others have the same answer though their keys
differ (a key that the framework sets anyway), and in which keys. Number of GPUs, machine and release are the row's,
since the YAML does not say them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from simcore.errors import RankscopeError
from simcore.inputs.document import Document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.importing import import_recipe
from simcore.simulate import simulate

MEASURED = Path(__file__).resolve().parent / "measured"


def pairs(checkout):
    """(path of a YAML, scenario) of every row that has one, each pair once."""
    found = {}
    for file in sorted(MEASURED.glob("mcore-golden-*.jsonl")):
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if "scenario" in row:
                case = Path(checkout) / row["source"].partition(":")[2].rpartition("/")[0] / "model_config.yaml"
                found[str(case), json.dumps(row["scenario"], sort_keys=True)] = case, row["scenario"]
    return found.values()


def read(case, scenario):
    """The row's scenario and the imported one."""
    given = parse_scenario(Document("row", {**scenario, "name": "x"}))
    imported = import_recipe([str(case)], Answers.of_options(given.world_size, None, scenario["topology"]))
    imported.expect_complete()
    version = {key: scenario[key] for key in ("framework_version",) if key in scenario}
    values = {key: value for key, value in imported.values.items() if key != "framework_version"}
    return given, parse_scenario(Document("import", {**values, "name": "x", **version}))


def differences(given, imported):
    """Keys in which the imported scenario differs from the row's."""
    mine, theirs = _flat(imported.normalised()), _flat(given.normalised())
    return [f"{key}: imported {mine.get(key)}, row {theirs.get(key)}" for key in sorted({*mine, *theirs})
            if mine.get(key) != theirs.get(key)]


def answered_alike(given, imported):
    """True if memory of every rank, traffic and step time are the same."""
    first, second = (simulate(scenario) for scenario in (given, imported))
    return (first.ranks, first.time, first.verdict) == (second.ranks, second.time, second.verdict)


def _flat(values, prefix=""):
    found = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def main(checkout):
    """Print the comparison."""
    counts, reasons = Counter(), Counter()
    for case, scenario in pairs(checkout):
        try:
            given, imported = read(case, scenario)
        except RankscopeError as error:
            counts["not imported"] += 1
            reasons[error.problems[0].message[:100]] += 1
            continue
        found = differences(given, imported)
        alike = bool(found) and answered_alike(given, imported)
        counts["same" if not found else "same answer" if alike else "differs"] += 1
        reasons.update(found)
    print(dict(counts))
    for reason, count in reasons.most_common():
        print(f"{count:4} {reason[:160]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
