"""How far measured runs lay from what is simulated, by class of layout: `bands.json` beside the measured rows.

[Note: bands]
Classes are: parameters gathered for use or resident on every rank; dense, mixture of experts or hybrid; full or LoRA;
linears in 16 bits or in fp8. A residual is measured over simulated, of the allocated peak (else of what is reserved,
else of the device) of one observation. Stored are their 10% and 90% quantiles. A class with fewer than five
observations takes in those of all classes together; one with none is called unvalidated. `python -m
tests.memory.test_band
--write` makes the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final

from simcore.inputs.document import read_text
from simcore.inputs.shipped import data_folder
from simcore.models.blocks import Mamba2
from simcore.placement.framework import Framework
from simcore.placement.job import Job

__all__ = ["EVERY", "FEW", "Band", "band_of", "layout_class", "make_bands", "read_bands"]

FEW: Final = 5
EVERY: Final = "every class"
_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class Band:
    """Measured over simulated, from `low` to `high`, of `num` observations of the class."""

    num: int
    low: float
    high: float


def layout_class(job: Job, framework: Framework) -> str:
    """Such as `resident, moe, lora`, or `resident, dense, full, fp8`."""
    parameters = "resident" if framework.strategy.holds_whole_parameters else "gathered"
    mamba = any(isinstance(b.block, Mamba2) for kind in job.graph.kinds for b in kind.branches)
    blocks = "hybrid" if mamba else "moe" if job.has_experts else "dense"
    method = "full" if job.scenario.training.method == "full" else "lora"
    return f"{parameters}, {blocks}, {method}{f', {job.narrow}' if job.narrow else ''}"


def band_of(name: str) -> Band:
    """The band of a class; it holds 1, so that the simulated number lies inside."""
    bands = read_bands()
    mine, every = bands.get(name, Band(0, 1.0, 1.0)), bands.get(EVERY, Band(0, 1.0, 1.0))
    if mine.num >= FEW:
        return mine
    return Band(mine.num, min(mine.low, every.low), max(mine.high, every.high))


@lru_cache(maxsize=1)
def read_bands() -> Mapping[str, Band]:
    """The stored table."""
    path = data_folder("measured") / "bands.json"
    return {name: Band(**fields) for name, fields in json.loads(read_text(path)).items()}


def make_bands(residuals: Mapping[str, Sequence[float]]) -> str:
    """The table as it is stored, from the residuals of each class."""
    every = {EVERY: [one for group in residuals.values() for one in group]}
    table = {name: asdict(_band(found)) for name, found in sorted((every | dict(residuals)).items()) if found}
    return json.dumps(table, indent=1) + "\n"


def _band(residuals: Sequence[float]) -> Band:
    """Quantiles by nearest rank, widened to hold 1."""
    ordered = sorted(residuals)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
    return Band(len(ordered), round(min(low, 1.0), _DIGITS), round(max(high, 1.0), _DIGITS))
