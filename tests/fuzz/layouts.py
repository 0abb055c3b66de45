"""Drawn layouts as cases: an answer and its invariants, and some of the pairs."""

from __future__ import annotations

from random import Random

from fuzz.case import Fault, Findings, Input
from fuzz.drawing import FILE, drawn_layout, parsed
from fuzz.invariants import hold
from fuzz.pairs import PAIRS
from simcore.errors import RankscopeError
from simcore.simulate import simulate

__all__ = ["draw", "judge"]

_AT_ONCE = 3
"""Pairs of one layout: each costs a simulation or two."""


def draw(random: Random) -> Input:
    """A layout and what of it is compared."""
    return Input({FILE: drawn_layout(random)}, checks=tuple(random.sample(sorted(PAIRS), _AT_ONCE)))


def judge(given: Input, found: Findings) -> None:
    """One simulation, every invariant, and the pairs; of what is refused only how."""
    tree = given.files[FILE]
    assert isinstance(tree, dict)
    try:
        scenario = parsed(tree)
    except RankscopeError as error:
        found.count("layouts refused")
        for problem in error.problems:
            found.expect("a refusal has file and line", problem.where.startswith(f"{FILE}:"), str(problem))
        return
    try:
        report = simulate(scenario)
    except OverflowError:  # told by the command: the sizes pass what 64 bits can count
        found.count("layouts refused")
        return
    found.count("layouts answered" if report.status == "ok" else "layouts refused")
    hold(report, found)
    for name in given.checks if report.status == "ok" else ():
        before = len(found.faults)
        PAIRS[name](tree, report, found)
        found.faults[before:] = [Fault(fault.check, f"{fault.told} [{name}]") for fault in found.faults[before:]]
