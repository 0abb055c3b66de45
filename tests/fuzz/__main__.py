"""The fuzzer's command line."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from fuzz.driver import Job, Summary, judge_case, run
from fuzz.kinds import cases_named

KILLS: Final = Path(__file__).with_name("kills.py")
"""Kills, interrupts and full disks at random moments of a batch: a program of its own."""


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
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="afterwards, so many of each kind of kill")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` ends it as Ctrl-C does
    if given.only:
        case, summary = cases_named(given.seed, given.only), Summary()
        summary.add(case.kind.name, *judge_case(case, set()))
    else:
        summary = run(Job(given.seed, given.seconds, given.cases, given.workers, given.keep, given.first))
    sys.stdout.write(summary.told())
    sys.stdout.flush()
    if summary.interrupted:
        return 130
    return int(bool(summary.faults) or not _survives(given.kills, given.seed))


def _survives(count: int, seed: int) -> bool:
    """True if a batch's results are the same after `count` kills of each kind."""
    if not count:
        return True
    each = [word for kind in ("parent", "worker", "interrupt", "full") for word in (f"--{kind}", str(count))]
    return subprocess.run([sys.executable, str(KILLS), *each, "--seed", str(seed)], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
