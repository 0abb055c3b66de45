"""Asks the frameworks about the layouts of `verified/` as `rankscope verify` does, and stores their answers.

    python tests/truth/store_verified.py            # all layouts: the case that is asked, and the answer
    python tests/truth/store_verified.py --check    # runs them again, compares with what is stored, writes nothing
    python tests/truth/store_verified.py zero3      # layouts with this word in their name

Runs in rankscope's own environment; the frameworks run in the one that `verify` makes. Prints the comparison of every
layout with the engine, and its seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from simcore.inputs.loading import load
from simcore.simulation.simulation import placed_simulation
from simcore.verify.ask import ask
from simcore.verify.compare import compared
from simcore.verify.environment import environment
from simcore.verify.shrink import smaller
from simcore.verify.sides.found import found_of
from simcore.verify.sides.registry import side_of
from simcore.verify.verify import asked_case

FOLDER = Path(__file__).resolve().parent / "verified"


def asked(file: Path) -> tuple[dict[str, Any], bool]:
    """The row of a layout, and whether it agrees with the engine."""
    (scenario,) = load(file)
    side = side_of(scenario)
    small, _ = smaller(scenario, None, side.most_tokens)
    case, skipped = asked_case(side, small, 0)
    started = monotonic()
    answer = ask(environment(side.pins, print), side.script, case, 1800)
    ours = side.ours(placed_simulation(small, rank=0))
    lines = compared(ours, found_of(answer), skipped) if "tensors" in answer else ()
    differences = [line for line in lines if line.difference]
    print(f"{file.stem}: {differences or answer.get('error') or 'agrees'}, {monotonic() - started:.0f} s")
    return {"case": case, "answer": answer}, bool(lines) and not differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only layouts with this word in their name")
    parser.add_argument("--check", action="store_true", help="compare with what is stored, write nothing")
    given = parser.parse_args()
    wrong = 0
    for file in sorted(FOLDER.glob("*.yaml")):
        if given.word not in file.stem:
            continue
        row, agrees = asked(file)
        stored = file.with_suffix(".json")
        if not given.check:
            stored.write_text(json.dumps(row, separators=(",", ":")) + "\n", encoding="utf-8")
        elif json.loads(stored.read_text(encoding="utf-8")) != json.loads(json.dumps(row)):
            print(f"{file.stem}: differs from {stored.name}")
            agrees = False
        wrong += not agrees
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
