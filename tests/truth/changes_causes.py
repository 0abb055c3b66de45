"""Why step times are farther than they were: moved by the fit's factors, by changed physics, or by what was left out.

    git archive c03050cd topologies | tar -x -C OLD
    python tests/truth/changes_causes.py OLD/topologies/efficiency

Comes in: `changes/errors.json`, and the efficiency files of the second commit that it names. Goes out:
`changes/causes.json`: three parts of the change of each error left out that is farther, in logarithms; they add up:

 * `factors`: today's engine with today's shares and host times, less the same engine with those of the commit;
 * `physics`: the rest of the change of the fitted error, which today's engine makes with shares as they were;
 * `left_out`: change of the ratio of the time by the fit without the row's group to the time by the whole fit.

Both times are of a step with fewer microbatches, as slopes of the fit are (`fit_cases.py`); what a step takes once is
added to the whole of it. Shares that did not exist at the commit are as they are now, but for `host.statistics`, which
was a part of `host.step` for all runs: what it takes more than today's is theirs who log statistics, and that others do
not have it is physics. `overlap.expert` meant something else then, and is as it is now.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from changes_seen import CHANGES, FITTED, LEFT, Seen, read
from fit_cases import short_case
from ruamel.yaml import YAML

from simcore.hardware.efficiency import Efficiency, load_efficiency
from simcore.validation.runs import Measured, read_measured

FILE: Final = CHANGES / "causes.json"
OTHER: Final = ("overlap", "expert")
"""A share that had another meaning at the commit."""


class Parts(NamedTuple):
    """Change of the logarithm of a row's simulated time, in parts that add up."""

    physics: float
    factors: float
    left_out: float


def parts(fitted: tuple[float, float], left: tuple[float, float], factors: float) -> Parts:
    """Parts of the change of the error `left`, then and now; `fitted`: those by the whole fit; errors are shares."""
    now, then = math.log1p(fitted[1]) - math.log1p(fitted[0]), math.log1p(left[1]) - math.log1p(left[0])
    return Parts(now - factors, factors, then - now)


def stretched(now: tuple[float, float], then: tuple[float, float], whole_s: float) -> float:
    """Ratio of a whole step's time with older shares to `whole_s`, its seconds with those of now.

    `now`, `then`: seconds of a step with fewer microbatches by both, and those of them that a step takes once.
    """
    ratio = (then[0] - then[1]) / (now[0] - now[1])
    return (then[1] + ratio * (whole_s - now[1])) / whole_s


def shares_of(then: Mapping[str, Any], now: Efficiency) -> Efficiency:
    """Today's efficiency with the numbers of an older file, where they mean the same."""
    given = now.model_dump(by_alias=True)
    for keys, value in _numbers(then):
        at = given
        for key in keys[:-1]:
            at[key] = at[key] or {}
            at = at[key]
        if keys != OTHER and keys[-1] in at:
            at[keys[-1]] = {"value": str(value), "kind": "fitted", "source": "as it was"}
    older = Efficiency.model_validate(given)
    if "statistics" not in then["host"]:
        rest = {"value": f"{1e3 * (older.host.step.si - now.host.step.si):.4f} ms", "kind": "fitted",
                "source": "a part of host.step"}
        given["host"] |= {"statistics": rest, "step": now.model_dump(by_alias=True)["host"]["step"]}
    return Efficiency.model_validate(given)


def _numbers(told: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(keys, value) of each number of a file."""
    for key, value in told.items():
        if isinstance(value, Mapping):
            yield from [((*keys, key), value["value"])] if "value" in value else _numbers(value, (*keys, key))


def farther() -> list[tuple[Seen, Seen]]:
    """(left out, fitted) of each observation whose error left out is farther than at the commit."""
    seen, noise = read()
    fitted = {row: one for one in seen if one.kind == FITTED for row in one.rows}
    return [(one, fitted[one.rows[0]]) for one in seen if one.kind == LEFT and one.moved(noise) > 0]


def known(one: Seen) -> tuple[float, float]:
    """Errors of then and now, which there are."""
    then, now = (error for error in one.errors[1:] if error is not None)
    return then, now


def found(folder: Path, rows: Mapping[str, Measured]) -> Iterator[tuple[str, Parts | None]]:
    """(row, parts of its change) of each such observation; `folder`: efficiency files of the commit.

    None of a machine that had no file then.
    """
    @cache
    def old(file: str) -> Efficiency:
        return shares_of(YAML(typ="safe").load((folder / f"{file}.yaml").read_text()), load_efficiency(file))

    for left, fitted in farther():
        (then, now), of_left = known(fitted), known(left)
        case = short_case(rows[left.rows[0]])
        if case is None or not (folder / f"{case.file}.yaml").exists():
            print("not answered, or a machine without shares then:", left.rows[0], flush=True)
            yield left.rows[0], None
            continue
        moved = -math.log(stretched(case.seconds(load_efficiency(case.file)), case.seconds(old(case.file)),
                                    case.measured_s * (1.0 + now)))
        told = parts((then, now), of_left, moved)
        print(left.rows[0], *(f"{name} {value:+.3f}" for name, value in told._asdict().items()), flush=True)
        yield left.rows[0], told


def main(arguments: Iterable[str]) -> None:
    """Writes the parts of each observation, a line each."""
    (folder,) = arguments
    rows = {one.row.id: one for one in read_measured()[0]}
    lines = (json.dumps([row, *([None] * 3 if told is None else (round(value, 4) for value in told))])
             for row, told in found(Path(folder), rows))
    FILE.write_text("[\n " + ",\n ".join(lines) + "\n]\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
