"""How many step times go farther between two fits of one engine, each to groups of rows that were drawn anew.

    python tests/truth/changes_refits.py --lines [OLD]      # OLD: `git archive c03050cd | tar -x -C OLD`; else of now
    python tests/truth/changes_refits.py

Comes in: `changes/errors.json`; with `--lines` the configurations of `fit_cases.py` of an engine. Goes out:
`changes/lines-*.json`, of each configuration of a fit the logarithm of its error and its slope along each factor; then
`changes/refits.json`, what is counted on them.

[Note: refits]
A fit is one of many that are as good: other groups of rows (`Case.together`: one source, model family and machine)
would have given other factors. So groups are drawn with replacement, as many as there are, and each row is predicted
by the fit to a draw without its own group, on straight lines (as `fit_left_out.py` does for whole sources). Between two
draws a row is farther where its error is larger by more than the page's threshold. Nothing but the choice of groups
differs, neither draw is better, and what is counted is chance. A draw has fewer different groups than there are, so
that its errors are somewhat larger than those of `left_out.json`: medians of both are told.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

HERE: Final = Path(__file__).resolve().parent
CHANGES: Final = HERE / "changes"
COMMITS: Final = {"c03050cd": 1, "now": 2}
"""Place of the errors of a commit in a line of `errors.json`."""
DRAWS: Final = 40
SEED: Final = 20261130
DIGITS: Final = 4
SPREAD: Final = 0.06
TURNS, STILL = 400, 1e-4
"""As in `fit_time.py`, at the commit as now."""
Floats = NDArray[np.float64]


# ---- lines ----------------------------------------------------------------------------------------------------------
def lines(place: int) -> Iterator[list[Any]]:
    """[rows, [source, family, machine], error, slopes] of each configuration of a fit; the last two are logarithms.

    `place`: of the fitted errors in `errors.json`. Slopes are of a step with fewer microbatches.
    """
    runs, cases = importlib.import_module("simcore.validation.runs"), importlib.import_module("fit_cases")
    point = importlib.import_module("fit_time").start()
    errors = {row: one[4][place] for one in _observed("step time, fitted") for row in one[3]}
    whole = cases._prepared
    cases._prepared = lambda scenario: whole(cases._shortened(scenario))
    found: dict[tuple[str, str], list[Any]] = {}
    for one in runs.read_measured()[0]:
        if one.entry is not None and one.row.step_s is not None and not one.row.kept_out:
            found.setdefault((one.row.group, runs.layout_of(one.entry)), []).append(one)
    for rows in found.values():
        known = [one.row for one in rows if errors.get(one.row.id) is not None]
        case = cases._case(rows) if known else None
        if case is not None:
            error = math.log((1.0 + errors[known[0].id]) * known[0].step_s / case.measured_s)
            slopes = {name: near for name, slope in case.slopes(point).items() if (near := round(slope, DIGITS))}
            yield [case.rows, [case.group, case.family, case.topology], round(error, DIGITS), slopes]


def _observed(kind: str) -> list[Any]:
    told = json.loads((CHANGES / "errors.json").read_text(encoding="utf-8"))
    return [one for one in told["observed"] if one[0] == kind]


def write_lines(root: str) -> None:
    """Writes the lines of the engine that lies in the folder `root`."""
    sys.path[:0] = [root, f"{root}/tests/truth"]
    commit = "c03050cd" if Path(root).resolve() != HERE.parents[1] else "now"
    fit_time = importlib.import_module("fit_time")
    told = {"factors": dict(importlib.import_module("fit_priors").FACTORS),
            "point": {name: round(at, DIGITS) for name, at in fit_time.start().items()},
            "alike": vars(fit_time).get("ALIKE", 0.0)}
    made = []
    for line in lines(COMMITS[commit]):
        made.append(json.dumps(line))
        print(len(made), line[0][0], flush=True)
    head = json.dumps(told, indent=1).removesuffix("\n}") + ',\n "lines": [\n  '
    text = head + ",\n  ".join(made) + "\n ]\n}\n"
    (CHANGES / f"lines-{commit}.json").write_text(text, encoding="utf-8", newline="\n")


# ---- fits to draws --------------------------------------------------------------------------------------------------
class Fit:
    """Straight lines of all rows, and the best factors for rows with some weights. Logarithms everywhere.

    `spreads`: of each factor, as it was known before; `errors` and `slopes` of each row, at `point`.
    """

    def __init__(self, spreads: Floats, point: Floats, errors: Floats, slopes: Floats, weights: Floats) -> None:
        self.spreads, self.point, self.errors, self.slopes, self.weights = spreads, point, errors, slopes, weights

    def at(self, point: Floats) -> Floats:
        """Errors of all rows with other factors."""
        found: Floats = self.errors + self.slopes @ (point - self.point)
        return found

    def solved(self, used: Floats, start: Floats | None = None) -> Floats:
        """Factors that are best for rows with these weights: robust, and held by what was known (`fit_time.py`)."""
        at = self.point if start is None else start
        for _ in range(TURNS):
            errors = self.at(at)
            robust = used * self.weights / (SPREAD**2 + errors**2)
            left = self.slopes.T @ (robust[:, None] * self.slopes) + np.diag(self.spreads**-2)
            before, at = at, np.linalg.solve(left, self.slopes.T @ (robust * (self.slopes @ at - errors)))
            if np.abs(at - before).max() < STILL:
                break
        return at


def left_out(fit: Fit, groups: NDArray[np.int64], often: Floats) -> Floats:
    """Error of each row by a fit to groups, each as often as drawn, without the row's own; `groups`: that of a row."""
    whole = fit.solved(often[groups])
    found = fit.at(whole)
    for group in np.flatnonzero(often):
        own = groups == group
        found[own] = fit.at(fit.solved(np.where(own, 0.0, often[groups]), whole))[own]
    return found


def drawn(fit: Fit, groups: NDArray[np.int64], draws: int = DRAWS) -> Floats:
    """[draw, row] errors as shares by fits to draws of groups, see [Note: refits]."""
    rng, num = np.random.default_rng(SEED), int(groups.max()) + 1
    often = [np.bincount(rng.integers(0, num, num), minlength=num).astype(np.float64) for _ in range(draws)]
    return np.expm1([left_out(fit, groups, each) for each in often])


def counted(errors: Floats, least: Floats) -> dict[str, Any]:
    """Rows that go farther between any two draws: mean, middle 90 of 100 pairs, and medians of errors of the draws."""
    sizes = np.abs(errors)
    pairs = [int((b - a > least).sum()) for a, b in itertools.permutations(sizes, 2)]
    low, high = np.percentile(pairs, (5, 95)).round().astype(int).tolist()
    medians = np.percentile(np.median(sizes, axis=1), (5, 50, 95)).round(4).tolist()
    return {"configurations": len(least), "mean": round(float(np.mean(pairs)), 1), "low": low, "high": high,
            "medians": medians}


def read_fit(told: Mapping[str, Any]) -> tuple[Fit, NDArray[np.int64]]:
    """(fit of a file of lines, group of each row). Weights are those of `fit_time.py` at the commit."""
    names = list(told["factors"])
    errors = np.array([error for _, _, error, _ in told["lines"]])
    slopes = np.array([[each.get(name, 0.0) for name in names] for _, _, _, each in told["lines"]])
    together = [tuple(group) for _, group, _, _ in told["lines"]]
    places = {group: place for place, group in enumerate(dict.fromkeys(together))}
    groups = np.array([places[group] for group in together])
    sizes = np.bincount(groups)[groups]
    fit = Fit(np.array([told["factors"][name] for name in names]), np.array([told["point"][name] for name in names]),
              errors, slopes, 1.0 / (1.0 + told.get("alike", 0.0) * (sizes - 1)))
    return fit, groups


def main(arguments: Sequence[str]) -> None:
    """Writes lines, or what is counted on them."""
    if arguments[:1] == ["--lines"]:
        write_lines(arguments[1] if arguments[1:] else str(HERE.parents[1]))
        return
    noise = json.loads((CHANGES / "errors.json").read_text(encoding="utf-8"))["noise"]
    found = {commit: _counted_of(json.loads(path.read_text(encoding="utf-8")), noise)
             for commit in COMMITS if (path := CHANGES / f"lines-{commit}.json").exists()}
    (CHANGES / "refits.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8", newline="\n")


def _counted_of(told: Mapping[str, Any], noise: Mapping[str, float]) -> dict[str, Any]:
    fit, groups = read_fit(told)
    least = np.array([max(0.02, noise.get(group[0], 0.0)) for _, group, _, _ in told["lines"]])
    return {"factors": len(told["factors"]), **counted(drawn(fit, groups), least)}


if __name__ == "__main__":
    main(sys.argv[1:])
