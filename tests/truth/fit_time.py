"""Calibrates what kernels and hosts reach on measured step times, and says how far it is off where it did not see.

    python tests/truth/fit_time.py [--write] [--left-out]

Comes in: the rows of `measured/*.jsonl` that have a step time and an answer. Goes out: the numbers of
`topologies/efficiency/*.yaml` (`--write`), `measured/fitted.json` (what was fitted, on which rows), and, with
`--left-out`, errors on groups and GPUs whose rows were left out (`measured/left_out.json`). No number belongs to a row.

How: a number is what was known before (`fit_priors.py`) times a few factors that it shares with its like, a factor is
looked for around 1 with a spread, by Gauss-Newton steps on the logarithm of simulated over measured time. A
configuration counts once whatever the number of its releases; rows that are far off count less (Cauchy).
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import multiprocessing
import pickle
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from fit_priors import FACTORS, Number
from fit_priors import NUMBERS as EVERY
from ruamel.yaml import YAML

from simcore.hardware.efficiency import Efficiency, load_efficiency
from simcore.simulate import simulate
from simcore.validation.runs import Measured, layout_of, read_measured

HERE = Path(__file__).resolve().parent
FILES = HERE.parents[1] / "topologies" / "efficiency"
engine = importlib.import_module("simcore.simulation.step")
NUMBERS = [number for number in EVERY if (FILES / f"{number.file}.yaml").exists()]
SPREAD = 0.06
"""Of the logarithm of an error: rows that are off by more count less. Releases of one configuration drift as much."""
STEP = 0.04
ROUNDS = 4


@dataclass(eq=False)
class Case:
    """One configuration: its measured seconds (the median of its releases) and its programs, which stay.

    `timed`: what was measured, a row's word. `short`: of a step with fewer microbatches; slopes are taken there.
    """

    group: str
    topology: str
    file: str
    rows: tuple[str, ...]
    measured_s: float
    timed: str
    parts: Any = field(repr=False)
    short: Any = field(repr=False)

    def log_error(self, efficiency: Efficiency) -> float:
        return self._log_time(self.parts, efficiency) - math.log(self.measured_s)

    def slopes(self, point: Point) -> dict[str, float]:
        here = self._log_time(self.short, efficiency_at(self.file, point))
        beside = {name: {**point, name: point[name] + STEP} for name in factors_of(self.file)}
        return {name: (self._log_time(self.short, efficiency_at(self.file, at)) - here) / STEP
                for name, at in beside.items()}

    def _log_time(self, parts: Any, efficiency: Efficiency) -> float:
        parts.routes.topology = parts.routes.topology.model_copy(update={"efficiency": efficiency})
        clocked = engine._timing(parts)
        left_ns = clocked.phase_ns["optimizer"] if self.timed == "forward_backward" else 0
        return math.log((clocked.step_ns - left_ns) * 1e-9)


def cases() -> list[Case]:
    """Every configuration with a measured time that the engine answers."""
    found: dict[object, list[Measured]] = defaultdict(list)
    for one in read_measured()[0]:
        if one.entry is not None and one.row.step_s is not None and not one.row.kept_out:
            found[(one.row.group, layout_of(one.entry))].append(one)
    made = (_case(rows) for rows in found.values())
    return [case for case in made if case]


def _case(rows: Sequence[Measured]) -> Case | None:
    entry, row = rows[0].entry, rows[0].row
    assert entry is not None
    parts = _prepared(entry.scenario)
    if parts is None:
        return None
    topology = parts.topology
    measured = statistics.median(one.row.step_s for one in rows if one.row.step_s)
    return Case(row.group, topology.name, topology.efficiency.name, tuple(r.row.id for r in rows), measured, row.timed,
                parts, _prepared(_shortened(entry.scenario)) or parts)


def _shortened(scenario: Any) -> Any:
    """Two microbatches a stage of a long pipeline, which takes seconds to run."""
    mesh, training = scenario.mesh, scenario.training
    if mesh.pp == 1 or 2 * mesh.pp >= scenario.num_microbatches:
        return scenario
    batch = training.global_batch_size * 2 * mesh.pp // scenario.num_microbatches
    return scenario.model_copy(update={"training": training.model_copy(update={"global_batch_size": batch})})


def _prepared(scenario: Any) -> Any:
    """What the engine has made of a scenario when it looks at the clock."""
    parts: list[Any] = []
    clocked = engine._timing
    engine._timing = lambda given: (parts.append(given), clocked(given))[1]
    try:
        report = simulate(scenario)
    finally:
        engine._timing = clocked
    return parts[-1] if report.time and parts else None


# ---- numbers ------------------------------------------------------------------------------------------------------
Point = dict[str, float]
"""Logarithms of factors."""


def valued(number: Number, point: Point) -> float:
    value = number.base * math.exp(sum(point[name] for name in number.factors))
    return min(value, 1.0) if number.unit == "%" else value


def efficiency_at(file: str, point: Point) -> Efficiency:
    """The file's with its numbers at a point."""
    given = load_efficiency(file).model_dump(by_alias=True)
    for number in NUMBERS:
        if number.file == file:
            at: Any = given
            for key in number.keys:
                if at[key] is None:
                    at[key] = {"kind": "fitted", "source": ""}
                at = at[key]
            at["value"] = written(number, point)
    return Efficiency.model_validate(given)


def written(number: Number, point: Point) -> str:
    value = valued(number, point)
    scale = {"%": 100.0, "us": 1e6, "ms": 1e3}[number.unit]
    digits = f"{value * scale:.3g}"
    return f"{digits}%" if number.unit == "%" else f"{digits} {number.unit}"


def factors_of(file: str) -> list[str]:
    return sorted({name for number in NUMBERS if number.file == file for name in number.factors})


# ---- the fit ------------------------------------------------------------------------------------------------------
_CASES: list[Case] = []


def _row(task: tuple[int, Point]) -> tuple[int, float, dict[str, float]]:
    """The logarithm of a case's error and its slope along each factor."""
    number, point = task
    case = _CASES[number]
    return number, case.log_error(efficiency_at(case.file, point)), case.slopes(point)


def _error(task: tuple[int, Point]) -> tuple[int, float]:
    number, point = task
    return number, _CASES[number].log_error(efficiency_at(_CASES[number].file, point))


@dataclass
class Line:
    """Errors of all cases near a point, as a straight line."""

    point: Point
    errors: np.ndarray
    slopes: np.ndarray


def linear(pool: Any, point: Point) -> Line:
    names = list(FACTORS)
    errors, slopes = np.zeros(len(_CASES)), np.zeros((len(_CASES), len(names)))
    for number, here, found in pool.imap_unordered(_row, [(n, point) for n in range(len(_CASES))], chunksize=4):
        errors[number] = here
        slopes[number] = [found.get(name, 0.0) for name in names]
    return Line(point, errors, slopes)


def solved(line: Line, used: np.ndarray) -> Point:
    """The best point of a straight line, cases that are not used left out."""
    names = list(FACTORS)
    start = np.array([line.point[name] for name in names])
    spreads = np.array([FACTORS[name] for name in names])
    at = start.copy()
    for _ in range(40):
        errors = line.errors + line.slopes @ (at - start)
        robust = used / (SPREAD**2 + errors**2)
        left = line.slopes.T @ (robust[:, None] * line.slopes) + np.diag(spreads**-2)
        at = np.linalg.solve(left, line.slopes.T @ (robust * (line.slopes @ start - line.errors)))
    return dict(zip(names, np.clip(at, start - 0.7, start + 0.7).tolist(), strict=True))


def objective(errors: np.ndarray, point: Point) -> float:
    """What `solved` makes small."""
    known = sum((point[name] / spread)**2 for name, spread in FACTORS.items())
    return float(np.log(SPREAD**2 + errors**2).sum()) + known


def searched(pool: Any, line: Line, goal: Point) -> Point:
    """The best of some points on the way to where a straight line would be best."""
    best, least = line.point, objective(line.errors, line.point)
    for share in (1.0, 0.5, 0.25):
        point = {name: at + share * (goal[name] - at) for name, at in line.point.items()}
        errors = np.zeros(len(_CASES))
        for number, error in pool.imap_unordered(_error, [(n, point) for n in range(len(_CASES))], chunksize=4):
            errors[number] = error
        found = objective(errors, point)
        told(f"{share} of the way: {found:.2f} after {least:.2f}", errors)
        if found < least:
            best, least = point, found
    return best


def start() -> Point:
    """Where the last fit ended."""
    told = json.loads((HERE / "measured" / "fitted.json").read_text())
    return {name: math.log(told[name]["factor"]) if name in told else 0.0 for name in FACTORS}


def fit(pool: Any, rounds: int, dump: Path | None, *, again: bool) -> Line:
    """The line at the best point."""
    point = start() if again else dict.fromkeys(FACTORS, 0.0)
    everything = np.ones(len(_CASES))
    for turn in range(rounds):
        line = linear(pool, point)
        told(f"round {turn}", line.errors)
        if dump:
            dump.write_bytes(pickle.dumps((line, [replace(c, parts=None, short=None) for c in _CASES])))
        point = searched(pool, line, solved(line, everything))
    line = linear(pool, point)
    if dump:
        dump.write_bytes(pickle.dumps((line, [replace(c, parts=None, short=None) for c in _CASES])))
    return line


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


# ---- what was left out --------------------------------------------------------------------------------------------
def left_out(pool: Any, line: Line) -> dict[str, dict[str, dict[str, float]]]:
    """Errors of each group, and of each kind of GPU, by a fit on all other rows."""
    return {what: {name: _without(pool, line, keys, name) for name in sorted(set(keys))}
            for what, keys in (("group", [c.group for c in _CASES]), ("gpu", [c.topology for c in _CASES]))}


def _without(pool: Any, line: Line, keys: Sequence[str], name: str) -> dict[str, float]:
    point = solved(line, np.array([key != name for key in keys], dtype=float))
    found = pool.imap_unordered(_error, [(n, point) for n, key in enumerate(keys) if key == name])
    away = sorted((math.exp(error) - 1 for _, error in found), key=abs)
    inside = [math.exp(line.errors[n]) - 1 for n, key in enumerate(keys) if key == name]
    return {"configurations": len(away), "median": round(abs(statistics.median(map(abs, away))), 4),
            "percentile_90": round(abs(away[math.ceil(0.9 * len(away)) - 1]), 4),
            "bias": round(statistics.median(away), 4), "fitted_median": round(statistics.median(map(abs, inside)), 4)}


# ---- writing ------------------------------------------------------------------------------------------------------
def report_of(line: Line) -> dict[str, Any]:
    """Each factor: how far it is from what was thought, and the groups of rows that say so."""
    names = list(FACTORS)
    weights = 1.0 / (SPREAD**2 + line.errors**2)
    left = line.slopes.T @ (weights[:, None] * line.slopes)
    spread = np.sqrt(np.diag(np.linalg.inv(left + np.diag([FACTORS[name] ** -2 for name in names]))))
    told: dict[str, Any] = {}
    for place, name in enumerate(names):
        shares: Counter[str] = Counter()
        for case, slope, weight in zip(_CASES, line.slopes[:, place], weights, strict=True):
            shares[case.group] += float(weight * slope**2)
        rows = {group: round(float(share / left[place, place]), 2) for group, share in shares.most_common(4)
                if left[place, place] and share / left[place, place] > 0.05}
        told[name] = {"factor": round(math.exp(line.point[name]), 3), "prior_spread": FACTORS[name],
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
    groups: Counter[str] = Counter()
    for name in number.factors:
        groups.update(told[name]["rows_of"])
    rows = ", ".join(group for group, _ in groups.most_common(4))
    return f"{number.source}; fitted on rows of {rows}" if rows else f"{number.source}; no row tells"


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--left-out", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--dump", type=Path)
    parser.add_argument("--again", action="store_true", help="begin where the last fit ended")
    given = parser.parse_args(arguments)
    _CASES.extend(cases())
    with multiprocessing.get_context("fork").Pool(2) as pool:
        line = fit(pool, given.rounds, given.dump, again=given.again)
        told("fitted", line.errors)
        for name, value in report_of(line).items():
            spreads = f"{value['spread']:5} of {value['prior_spread']}"
            print(f"  {name:24} x {value['factor']:6} +- {spreads} {value['rows_of']}")
        if given.write:
            write(line)
        if given.left_out:
            found = left_out(pool, line)
            (HERE / "measured" / "left_out.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
