"""What the fit of step times says of rows that it has not seen: each group of rows is left out, and fitted without.

    python tests/truth/fit_left_out.py [--processes 1]

Comes in: the configurations of `fit_cases.py` and the point that `fit_time.py --write` stored. Goes out:
`measured/left_out.json`: errors of each group (`Case.together`: one source, model family and machine) by a fit of all
other rows; for each row the ratio of both times; the factors that rest on a group alone; errors of whole sources and
whole machines; digests of rows and factors (`digest_of_rows`, `digest_of_factors`). It takes about ten minutes of a
core and 10 GiB for each of two processes; set OPENBLAS_NUM_THREADS=1.

How: without a group the fit is solved on straight lines through all other rows (`fit_time.solved`). A row whose time
moves by more than `TRUST` from where its line was taken is timed anew there, with its slopes, and the fit is solved
again, until no row does and no factor moves. The group's own rows are then simulated by that fit, not extrapolated.
Whole sources and machines, which hold up to a third of all rows, are solved and predicted on the straight lines of the
whole fit: of the seven sources for which both were done, six medians agree to 0.1 % and one, of two rows, is 28.6
instead of 26.9 %.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from fit_cases import Point, cases
from fit_priors import FACTORS, NUMBERS
from fit_time import (
    _CASES,
    HERE,
    SPREAD,
    Line,
    error_at,
    linear,
    row_at,
    solved,
    start,
    told,
    workers,
)

from simcore.validation.runs import Measured, read_measured

TRUST = 0.08
"""Of the logarithm of a row's time: by so much it may move along the straight line that it was given."""
STILL = 0.002
"""Change of a factor's logarithm at which a fit without a group is done."""
TURNS = 12
ALONE = 0.9, 0.8
"""A factor rests on a group alone if the others leave more than this part of its spread as it was before, and all rows
together less than that."""


def main(arguments: Iterable[str] | None = None) -> None:
    """Leaves out every group, every source and every machine, and writes what it finds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(None if arguments is None else list(arguments))
    _CASES.extend(cases())
    with workers(given.processes) as pool:
        line = linear(pool, start())
        told("fitted", line.errors)
        moved = _array(solved(line, np.ones(len(_CASES)))) - _array(line.point)
        print(f"the whole fit would move a factor by up to {np.abs(moved).max():.3f}: if that is much, fit anew first")
        found: dict[str, Any] = {"rows": digest_of_rows(row for case in _CASES for row in case.rows),
                                 "factors": digest_of_factors()}
        found["together"] = [_group(pool, line, key) for key in sorted({case.together for case in _CASES})]
        for name, keys in (("group", [c.group for c in _CASES]), ("gpu", [c.topology for c in _CASES])):
            found[name] = {key: _summed(line, *on_lines(line, keys, key)) for key in sorted(set(keys))}
    (HERE / "measured" / "left_out.json").write_text(json.dumps(found, indent=1) + "\n")


# ---- one fit without some rows ------------------------------------------------------------------------------------
def left_out(pool: Any, line: Line, keys: Sequence[Hashable], name: Hashable) -> tuple[list[int], np.ndarray]:
    """(indices of the cases whose key is `name`, logarithms of their errors by a fit without them)."""
    inside = [n for n, key in enumerate(keys) if key == name]
    used = np.array([key != name for key in keys], dtype=float)
    point = settled(pool, line, used)
    errors = dict(pool.imap_unordered(error_at, [(n, point) for n in inside]))
    print(name, len(inside), f"{np.median(np.abs(np.expm1([errors[n] for n in inside]))):.1%}", flush=True)
    return inside, np.array([errors[n] for n in inside])


def on_lines(line: Line, keys: Sequence[Hashable], name: Hashable) -> tuple[list[int], np.ndarray]:
    """The same as `left_out`, on the straight lines of the whole fit."""
    inside = [n for n, key in enumerate(keys) if key == name]
    used = np.array([key != name for key in keys], dtype=float)
    point = solved(line, used)
    return inside, line.errors[inside] + line.slopes[inside] @ (_array(point) - _array(line.point))


def settled(pool: Any, line: Line, used: np.ndarray) -> Point:
    """The best point without the cases that are not used, where lines of all others hold."""
    bases = np.tile(_array(line.point), (len(line.errors), 1))
    errors, slopes = line.errors.copy(), line.slopes.copy()
    point = solved(line, used)
    for _ in range(TURNS):
        moved = np.abs(((_array(point) - bases) * slopes).sum(axis=1)) * (used > 0)
        stale = np.flatnonzero(moved > TRUST)
        for number, here, found in pool.imap_unordered(row_at, [(n, point) for n in stale.tolist()]):
            bases[number], slopes[number] = _array(point), _array(found)
            errors[number] = here - slopes[number] @ (bases[number] - _array(line.point))
        before, point = point, solved(Line(line.point, errors, slopes, line.weights), used)
        if np.abs(_array(point) - _array(before)).max() < STILL:
            return point
    print("  not settled", flush=True)
    return point


def _array(point: Point) -> np.ndarray:
    return np.array([point[name] for name in FACTORS])


# ---- what is told of it -------------------------------------------------------------------------------------------
def _group(pool: Any, line: Line, key: tuple[str, str, str]) -> dict[str, Any]:
    inside, errors = left_out(pool, line, [case.together for case in _CASES], key)
    sizes = np.abs(np.expm1(errors))
    ratios = np.exp(errors - line.errors[inside])
    return {"source": key[0], "family": key[1], "machine": key[2], "configurations": len(inside),
            "fitted": _rounded(np.median(np.abs(np.expm1(line.errors[inside])))),
            "left_out": _rounded(np.median(sizes)), "worst": _rounded(sizes.max()),
            "alone": alone(line, inside),
            "ratios": [[round(float(ratio), 4), list(_CASES[n].rows)] for n, ratio in zip(inside, ratios, strict=True)]}


def alone(line: Line, inside: Sequence[int]) -> list[str]:
    """Factors of which no other rows tell: see `ALONE`."""
    others = np.ones(len(line.errors))
    others[list(inside)] = 0.0
    before = np.array([*FACTORS.values()])
    without, with_all = (_spreads(line, used) / before for used in (others, np.ones(len(line.errors))))
    return [name for name, far, near in zip(FACTORS, without, with_all, strict=True)
            if far > ALONE[0] and near < ALONE[1]]


def _spreads(line: Line, used: np.ndarray) -> np.ndarray:
    """Spread of each factor's logarithm as some rows leave it."""
    weights = used * line.weights / (SPREAD**2 + line.errors**2)
    known = line.slopes.T @ (weights[:, None] * line.slopes) + np.diag([before**-2 for before in FACTORS.values()])
    spreads: np.ndarray = np.sqrt(np.diag(np.linalg.inv(known)))
    return spreads


def _summed(line: Line, inside: Sequence[int], errors: np.ndarray) -> dict[str, float]:
    away = sorted(np.expm1(errors).tolist(), key=abs)
    return {"configurations": len(away), "median": _rounded(statistics.median(map(abs, away))),
            "percentile_90": _rounded(abs(away[math.ceil(0.9 * len(away)) - 1])),
            "bias": _rounded(statistics.median(away)),
            "fitted_median": _rounded(np.median(np.abs(np.expm1(line.errors[list(inside)]))))}


def _rounded(value: float) -> float:
    return round(float(value), 4)


# ---- what it was made from ----------------------------------------------------------------------------------------
def digest_of_rows(ids: Iterable[str]) -> str:
    """Of scenario and time of the rows of these ids: another one if any of them changes."""
    rows = {one.row.id: one for one in read_measured()[0]}
    return _digest([_said(rows.get(one), one) for one in sorted(ids)])


def _said(measured: Measured | None, name: str) -> Any:
    row = measured.row if measured else None
    return [name, row and [row.scenario, row.step_s, row.timed, row.group]]


def digest_of_factors() -> str:
    """Of the stored factors and of what was known before."""
    stored = json.loads((HERE / "measured" / "fitted.json").read_text(encoding="utf-8"))
    return _digest([stored, FACTORS, [repr(number) for number in NUMBERS]])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=dict).encode()).hexdigest()


if __name__ == "__main__":
    main()
