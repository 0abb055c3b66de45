"""Calibrates what kernels and hosts reach on measured step times, and says how far it is off where it did not see.

    python tests/truth/fit_time.py [--again] [--write] [--processes 1]

Comes in: the configurations of `fit_cases.py`. Goes out: the numbers of `topologies/efficiency/*.yaml` (`--write`), and
`measured/fitted.json` (what was fitted, on which rows). No number belongs to a row. `fit_left_out.py` then leaves rows
out.

How: a number is what was known before (`fit_priors.py`) times a few factors that it shares with its like, a factor is
looked for around 1 with a spread, by Gauss-Newton steps on the logarithm of simulated over measured time. A
configuration counts once whatever the number of its releases; rows that are far off count less (Cauchy).

[Note: shrinkage]
Rows of a group (`Case.together`) share what their source leaves unsaid, so n of them do not count n times: each has the
weight 1 / (1 + ALIKE (n - 1)), as in a sample of clusters whose members agree by ALIKE. That agreement and the share
of the spreads that were thought of before (`SHRUNK`) were chosen together by the mean over groups of the robust loss of
a group that was left out, on straight lines; `docs/calibration.md` tells how they compare.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fit_cases import FILES, NUMBERS, Case, Point, cases, written
from fit_priors import FACTORS, Number
from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
SPREAD = 0.06
"""Of the logarithm of an error: rows that are off by more count less. Releases of one configuration drift as much."""
ALIKE = 0.3
ROUNDS = 2
TURNS, STILL = 400, 1e-5
"""Most turns of a robust solution on a straight line, and the change of a factor's logarithm at which it ends."""


# ---- the fit ------------------------------------------------------------------------------------------------------
_CASES: list[Case] = []


def row_at(task: tuple[int, Point]) -> tuple[int, float, dict[str, float]]:
    """The logarithm of a case's error and its slope along each factor."""
    number, point = task
    case = _CASES[number]
    return number, case.log_error(point), case.slopes(point)


def error_at(task: tuple[int, Point]) -> tuple[int, float]:
    number, point = task
    return number, _CASES[number].log_error(point)


class Alone:
    """This process in the place of a pool: cases take 10 GiB, and each other process as much again."""

    @staticmethod
    def imap_unordered(function: Callable[[Any], Any], tasks: Iterable[Any], chunksize: int = 1) -> Iterator[Any]:
        assert chunksize
        return map(function, tasks)


@contextmanager
def workers(count: int) -> Iterator[Any]:
    """A pool of so many processes, which know the cases; or this one alone."""
    if count == 1:
        yield Alone()
        return
    with multiprocessing.get_context("fork").Pool(count) as pool:
        yield pool


@dataclass
class Line:
    """Errors of all cases near a point, as a straight line."""

    point: Point
    errors: np.ndarray
    slopes: np.ndarray
    weights: np.ndarray | float = 1.0


def weights_of(groups: Sequence[Hashable]) -> np.ndarray:
    """Weight of each case by its group, see [Note: shrinkage]."""
    sizes = Counter(groups)
    return np.array([1.0 / (1.0 + ALIKE * (sizes[group] - 1)) for group in groups])


def linear(pool: Any, point: Point) -> Line:
    names = list(FACTORS)
    errors, slopes = np.zeros(len(_CASES)), np.zeros((len(_CASES), len(names)))
    for number, here, found in pool.imap_unordered(row_at, [(n, point) for n in range(len(_CASES))], chunksize=4):
        errors[number] = here
        slopes[number] = [found.get(name, 0.0) for name in names]
    return Line(point, errors, slopes, weights_of([case.together for case in _CASES]))


def solved(line: Line, used: np.ndarray) -> Point:
    """The best point of a straight line, cases that are not used left out."""
    start, spreads = np.array([line.point[name] for name in FACTORS]), np.array([*FACTORS.values()])
    slopes, rest, at = line.slopes, line.errors - line.slopes @ start, start
    for _ in range(TURNS):
        robust = used * line.weights / (SPREAD**2 + (rest + slopes @ at)**2)
        left = slopes.T @ (robust[:, None] * slopes) + np.diag(spreads**-2)
        before, at = at, np.linalg.solve(left, -slopes.T @ (robust * rest))
        if np.abs(at - before).max() < STILL:
            break
    return dict(zip(FACTORS, np.clip(at, start - 0.7, start + 0.7).tolist(), strict=True))


def objective(line: Line, errors: np.ndarray, point: Point) -> float:
    """What `solved` makes small."""
    known = sum((point[name] / spread)**2 for name, spread in FACTORS.items())
    return float((line.weights * np.log(SPREAD**2 + errors**2)).sum()) + known


def searched(pool: Any, line: Line, goal: Point) -> Point:
    """The best of some points on the way to where a straight line would be best."""
    best, least = line.point, objective(line, line.errors, line.point)
    for share in (1.0, 0.5, 0.25):
        point = {name: at + share * (goal[name] - at) for name, at in line.point.items()}
        errors = np.zeros(len(_CASES))
        for number, error in pool.imap_unordered(error_at, [(n, point) for n in range(len(_CASES))], chunksize=4):
            errors[number] = error
        found = objective(line, errors, point)
        told(f"{share} of the way: {found:.2f} after {least:.2f}", errors)
        if found < least:
            best, least = point, found
    return best


def start() -> Point:
    """Where the last fit ended."""
    told = json.loads((HERE / "measured" / "fitted.json").read_text())
    return {name: math.log(told[name]["factor"]) if name in told else 0.0 for name in FACTORS}


def fit(pool: Any, rounds: int, *, again: bool) -> Line:
    """The line at the best point."""
    point, everything = start() if again else dict.fromkeys(FACTORS, 0.0), np.ones(len(_CASES))
    for turn in range(rounds):
        line = linear(pool, point)
        told(f"round {turn}", line.errors)
        point = searched(pool, line, solved(line, everything))
    return linear(pool, point)


def told(title: str, errors: np.ndarray) -> None:
    groups: dict[str, list[float]] = defaultdict(list)
    for case, error in zip(_CASES, errors.tolist(), strict=True):
        groups[case.group + " " + case.topology].append(math.exp(error) - 1)
        groups["all"].append(math.exp(error) - 1)
    print(title)
    for name, found in sorted(groups.items()):
        away = sorted(map(abs, found))
        print(f"  {name:44} {len(found):4} median {statistics.median(away):6.1%} 90 % "
              f"{away[int(0.9 * (len(away) - 1))]:6.1%} bias {statistics.median(found):+6.1%}", flush=True)


# ---- writing ------------------------------------------------------------------------------------------------------
def report_of(line: Line) -> dict[str, Any]:
    """Each factor: how far it is from what was thought, and the groups of rows that say so."""
    weights = line.weights / (SPREAD**2 + line.errors**2)
    left = line.slopes.T @ (weights[:, None] * line.slopes)
    spread = np.sqrt(np.diag(np.linalg.inv(left + np.diag([before ** -2 for before in FACTORS.values()]))))
    told: dict[str, Any] = {}
    for place, (name, before) in enumerate(FACTORS.items()):
        shares: Counter[str] = Counter()
        for case, slope, weight in zip(_CASES, line.slopes[:, place], weights, strict=True):
            shares[case.group] += float(weight * slope**2)
        rows = {group: round(float(share / left[place, place]), 2) for group, share in shares.most_common(4)
                if left[place, place] and share / left[place, place] > 0.05}
        told[name] = {"factor": round(math.exp(line.point[name]), 3), "prior_spread": round(before, 4),
                      "spread": round(float(spread[place]), 3), "rows_of": rows}
    return told


def write(line: Line) -> None:
    """The files, each number with the groups that it rests on."""
    told = report_of(line)
    (HERE / "measured" / "fitted.json").write_text(json.dumps(told, indent=1) + "\n")
    point = start()  # as rounded there
    yaml = YAML()
    yaml.width = 4096
    yaml.preserve_quotes = True
    for file in sorted({number.file for number in NUMBERS}):
        path = FILES / f"{file}.yaml"
        page = yaml.load(path)
        for number in NUMBERS:
            if number.file == file:
                at = page
                for key in number.keys:
                    at = at[key]
                at["value"] = written(number, point)
                at["kind"] = "fitted" if _says(told, number) else "assumed"
                at["source"] = _source(told, number)
        with path.open("w") as stream:
            yaml.dump(page, stream)


def _says(told: dict[str, Any], number: Number) -> bool:
    return any(told[name]["rows_of"] for name in number.factors)


def _source(told: dict[str, Any], number: Number) -> str:
    if not number.factors:
        return f"{number.source}; not fitted"
    groups: Counter[str] = Counter()
    for name in number.factors:
        groups.update(told[name]["rows_of"])
    rows = ", ".join(group for group, _ in groups.most_common(4))
    return f"{number.source}; " + (f"fitted on rows of {rows}" if rows else "no row tells")


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="begin where the last fit ended")
    given = parser.parse_args(arguments)
    _CASES.extend(cases())
    with workers(given.processes) as pool:
        line = fit(pool, given.rounds, again=given.again)
        told("fitted", line.errors)
        for name, value in report_of(line).items():
            spreads = f"{value['spread']:5} of {value['prior_spread']}"
            print(f"  {name:24} x {value['factor']:6} +- {spreads} {value['rows_of']}")
        if given.write:
            write(line)


if __name__ == "__main__":
    main()
