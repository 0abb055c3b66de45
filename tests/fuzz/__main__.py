"""The fuzzer's command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fuzz.driver import Job, Summary, judge_case, run
from fuzz.kinds import cases_named


def main() -> int:
    """Exit code 1 where there are faults."""
    parser = argparse.ArgumentParser(prog="fuzz", description="Drawn and mutated inputs, and what must hold of them.")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--cases", type=int)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", metavar="KIND-NUMBER", help="one case")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a folder for faults")
    given = parser.parse_args()
    if given.only:
        case, summary = cases_named(given.seed, given.only), Summary()
        summary.add(case.kind.name, *judge_case(case, set()))
    else:
        summary = run(Job(given.seed, given.seconds, given.cases, given.workers, given.keep, given.first))
    sys.stdout.write(summary.told())
    return int(bool(summary.faults))


if __name__ == "__main__":
    sys.exit(main())
