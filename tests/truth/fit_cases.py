"""Configurations with a measured step time, each with programs that stay, and its time at any point of the fit.

Comes in: the rows of `measured/*.jsonl` that have a step time and an answer. Goes out: for a point (a logarithm for
each factor of `fit_priors.py`) the logarithm of simulated over measured time, and its slope along each factor. A
program is made once; a point changes the durations of its rows alone.
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from fit_priors import FACTORS, Number
from fit_priors import NUMBERS as EVERY

from simcore.errors import RankscopeError
from simcore.frameworks.setup import configuration
from simcore.hardware.efficiency import Efficiency, load_efficiency
from simcore.simulation.simulation import placed_simulation
from simcore.simulation.step import written_out
from simcore.timing.kernel import DTYPES, KERNELS
from simcore.timing.program_kernels import kernels_of
from simcore.timing.step import with_reasons
from simcore.validation.runs import Measured, layout_of, read_measured

FILES = Path(__file__).resolve().parents[2] / "topologies" / "efficiency"
NUMBERS = [number for number in EVERY if (FILES / f"{number.file}.yaml").exists()]
engine = importlib.import_module("simcore.simulation.step")
STEP = 0.04
"""Of a factor's logarithm, for slopes."""
Point = dict[str, float]
"""Logarithms of factors."""


# ---- numbers ------------------------------------------------------------------------------------------------------
def valued(number: Number, point: Point) -> float:
    value = number.base * math.exp(sum(point[name] for name in number.factors))
    return min(value, 1.0) if number.unit == "%" else value


def at_most(file: str, keys: Sequence[tuple[str, ...]], point: Point) -> bool:
    """Whether one of a file's numbers is all of a peak at a point, beyond which it says nothing."""
    return any(number.unit == "%" and valued(number, point) == 1.0 for number in NUMBERS
               if number.file == file and number.keys in keys)


def written(number: Number, point: Point, digits_kept: int = 3) -> str:
    value = valued(number, point)
    scale = {"%": 100.0, "us": 1e6, "ms": 1e3}[number.unit]
    digits = f"{value * scale:.{digits_kept}g}"
    return f"{digits}%" if number.unit == "%" else f"{digits} {number.unit}"


def efficiency_at(file: str, point: Point) -> Efficiency:
    """The file's with its numbers at a point, not rounded as they are in the file: slopes are of small differences."""
    return _efficiency(file, tuple(point[name] for name in FACTORS))


@lru_cache(maxsize=256)
def _efficiency(file: str, values: tuple[float, ...]) -> Efficiency:
    given = load_efficiency(file).model_dump(by_alias=True)
    point = dict(zip(FACTORS, values, strict=True))
    for number in NUMBERS:
        if number.file == file:
            at: Any = given
            for key in number.keys:
                if at[key] is None:
                    at[key] = {"kind": "fitted", "source": ""}
                at = at[key]
            at["value"] = written(number, point, 9)
    return Efficiency.model_validate(given)


@cache
def alike(file: str) -> dict[tuple[tuple[str, ...], ...], list[str]]:
    """Factors of a file's numbers, by the keys of the numbers: those of equal keys have equal slopes."""
    found: dict[tuple[tuple[str, ...], ...], list[str]] = defaultdict(list)
    for name in FACTORS:
        if keys := tuple(n.keys for n in NUMBERS if n.file == file and name in n.factors):
            found[keys].append(name)
    return found


# ---- configurations -----------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Case:
    """One configuration: its measured seconds (the median of its releases) and its programs, which stay.

    `group`, `family`, `topology`: its source, its model's family and its machine: rows that agree in all three are left
    out together. `timed`: what was measured, a row's word. `short`: of a step with fewer microbatches; slopes are taken
    there.
    """

    group: str
    family: str
    topology: str
    file: str
    rows: tuple[str, ...]
    measured_s: float
    timed: str
    parts: Any = field(repr=False)
    short: Any = field(repr=False)

    @property
    def together(self) -> tuple[str, str, str]:
        return self.group, self.family, self.topology

    def log_error(self, point: Point) -> float:
        return self._log_time(self.parts, point) - math.log(self.measured_s)

    def slopes(self, point: Point) -> dict[str, float]:
        """Of the logarithm of its time, along each factor that its kernels, calls and host know; others are 0."""
        here = self._log_time(self.short, point)
        found = dict.fromkeys(FACTORS, 0.0)
        for keys, names in alike(self.file).items():
            if any(self._knows(key) for key in keys):
                step = -STEP if at_most(self.file, keys, {**point, names[0]: point[names[0]] + STEP}) else STEP
                beside = {**point, names[0]: point[names[0]] + step}
                slope = (self._log_time(self.short, beside) - here) / step
                found |= dict.fromkeys(names, slope)
        return found

    def _knows(self, keys: tuple[str, ...]) -> bool:
        """Whether a number can change its time."""
        libraries = self.short.framework.libraries
        switches = {("host", "graphed"): bool(libraries.graphs), ("host", "filling"): libraries.fills,
                    ("overlap", "tensor"): "tp" in libraries.overlapped,
                    ("overlap", "expert"): libraries.paired > 0 and libraries.dispatcher != "nccl"}
        kernels, formats = self._kernels
        known = {"kernels": kernels, "low_precision": formats}.get(keys[0])
        return keys[1] in known if known is not None else switches.get(keys, True)

    @cached_property
    def _kernels(self) -> tuple[set[str], set[str]]:
        """Classes of its kernels, and formats of their operands."""
        found = [kernels_of(program, self.short.routes.topology, self.short.framework)
                 for program in self.short.programs.values()]
        return ({KERNELS[kind] for one in found for kind in np.unique(one.kinds)},
                {DTYPES[dtype] for one in found for dtype in np.unique(one.dtypes)})

    def seconds(self, efficiency: Efficiency) -> tuple[float, float]:
        """Seconds of the step with fewer microbatches, and those of them that every step takes once."""
        return self._seconds(self.short, efficiency)

    def _log_time(self, parts: Any, point: Point) -> float:
        return math.log(self._seconds(parts, efficiency_at(self.file, point))[0])

    def _seconds(self, parts: Any, efficiency: Efficiency) -> tuple[float, float]:
        parts.routes.topology = parts.routes.topology.model_copy(update={"efficiency": efficiency})
        length = engine._timing(parts)
        return (length.step_ns - self._optimizer_ns(parts, length)) * 1e-9, length.once_ns * 1e-9

    def _optimizer_ns(self, parts: Any, length: Any) -> int:
        """What is no part of the measured time."""
        if self.timed != "forward_backward":
            return 0
        program = parts.programs[parts.classes[length.worst].representative]
        return int(with_reasons(length, program).phase_ns["optimizer"])


def cases() -> list[Case]:
    """Every configuration with a measured time that the engine answers, but for rows that are kept out of every fit."""
    found: dict[object, list[Measured]] = defaultdict(list)
    for one in read_measured()[0]:
        if one.entry is not None and one.row.step_s is not None and not one.row.kept_out:
            found[(one.row.group, layout_of(one.entry))].append(one)
    made = (_case(rows) for rows in found.values())
    return [case for case in made if case]


def short_case(one: Measured) -> Case | None:
    """The case of one row, of a step with fewer microbatches in both places; None if the engine refuses it."""
    return _case([one], whole=False)


def _case(rows: Sequence[Measured], *, whole: bool = True) -> Case | None:
    entry, row = rows[0].entry, rows[0].row
    assert entry is not None
    assert entry.scenario is not None
    parts = _prepared(entry.scenario if whole else _shortened(entry.scenario))
    if parts is None:
        return None
    short = (_prepared(_shortened(entry.scenario)) if whole else None) or parts
    topology, family = parts.topology, str(configuration(entry.scenario)["model_type"])
    measured = statistics.median(one.row.step_s for one in rows if one.row.step_s)
    return Case(row.group, family, topology.name, topology.efficiency.name, tuple(r.row.id for r in rows), measured,
                row.timed, parts, short)


def _shortened(scenario: Any) -> Any:
    """Two microbatches a stage of a long pipeline, which takes seconds to run."""
    mesh, training = scenario.mesh, scenario.training
    if mesh.pp == 1 or 2 * mesh.pp >= scenario.num_microbatches:
        return scenario
    batch = training.global_batch_size * 2 * mesh.pp // scenario.num_microbatches
    return scenario.model_copy(update={"training": training.model_copy(update={"global_batch_size": batch})})


def _prepared(scenario: Any) -> Any:
    """What the engine has made of a scenario when it looks at the clock; None if it refuses it."""
    try:
        simulation = placed_simulation(scenario)
        with written_out(simulation, timed=True):
            return simulation
    except RankscopeError:
        return None
