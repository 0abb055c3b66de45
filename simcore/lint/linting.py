"""Asks all rules about the files of a recipe or scenario."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from simcore.errors import InputError, Problem
from simcore.inputs.loading import Entry, files_of
from simcore.lint.finding import Finding, line_of
from simcore.lint.opening import is_known, subjects
from simcore.lint.registry import RULES
from simcore.lint.rule import Rule
from simcore.recipes.answers import Answers

__all__ = ["Linted", "lint", "lint_all"]


@dataclass(frozen=True, slots=True)
class Linted:
    """Result for one recipe or scenario file.

    `findings`: by place. `unjudged`: texts that say for what part rules were not asked. `problems`: those for which
    there is nothing to judge, such as a file that cannot be read.
    """

    path: str
    format: str
    findings: tuple[Finding, ...] = ()
    unjudged: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def lint(paths: Sequence[str], answers: Answers, overrides: Sequence[str] = (), named: str = "", *,
         rules: Iterable[Rule] = RULES) -> Linted:
    """Findings in the files of one recipe, or in one scenario file; `named`, `overrides` as `opening.subjects`."""
    try:
        opened = subjects(paths, answers, overrides, named)
    except InputError as error:
        return Linted(paths[0], named, problems=error.problems)
    asked = tuple(rules)
    found = [finding for one in opened for rule in asked for finding in rule.findings(one)]
    places = {finding.where for finding in found}
    problems = [problem for one in opened for problem in one.problems if line_of(problem.where) not in places]
    unjudged = dict.fromkeys(text for one in opened for text in one.unjudged())
    return Linted(opened[0].path, opened[0].format, tuple(sorted(dict.fromkeys(found), key=_place)), tuple(unjudged),
                  tuple(dict.fromkeys(problems)))


def lint_all(paths: Iterable[str], beside: Sequence[str], answers: Answers, overrides: Sequence[str] = (),
             named: str = "") -> Iterator[Linted]:
    """Findings in each file that the paths stand for, with the files `beside` of one recipe.

    Of folders and globs those files are left out that are no recipe and no scenario.
    """
    for path in paths:
        for file in files_of(path):
            if isinstance(file, Entry):
                yield Linted(path, named, problems=file.problems)
            elif file == path or is_known(file):
                yield lint([file, *beside], answers, overrides, named)


def _place(finding: Finding) -> tuple[str, int, int, str]:
    file, _, line = finding.where.rpartition(":")
    return (file, int(line), -finding.rank, finding.code) if line.isdigit() else (finding.where, 0, -finding.rank,
                                                                                  finding.code)
