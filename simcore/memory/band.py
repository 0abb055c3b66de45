"""Uncertainty of simulated memory by class of layout, from measured runs: `bands.json` next to the measured rows.

[Note: bands]
Classes are: parameters gathered for use or resident on every rank; dense, mixture of experts or hybrid; full or LoRA;
linears in 16 bits or in fp8. A residual is measured over simulated bytes of one observation: of the allocated peak,
else of reserved memory, else of device memory. The table holds their 10% and 90% quantiles. The band of a class with
fewer than five observations is widened to that of all classes together; a class without any is called unvalidated.
`python -m tests.memory.test_band --write` makes the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final

from simcore.inputs.document import read_text
from simcore.inputs.shipped import data_folder
from simcore.models.blocks import GatedDeltaNet, Mamba2
from simcore.placement.framework import Framework
from simcore.placement.job import Job

__all__ = ["EVERY", "FEW", "Band", "band_of", "layout_class", "make_bands", "read_bands"]

FEW: Final = 5
EVERY: Final = "every class"
_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class Band:
    """Range of measured over simulated memory, from `num` measured runs of one class of layouts.

    `low`, `high`: their 10% and 90% quantiles, widened to contain 1.
    """

    num: int
    low: float
    high: float


def layout_class(job: Job, framework: Framework) -> str:
    """Name of the class of layouts that the job belongs to, such as `resident, dense, full, fp8`.

    Measured runs of a class tell how far simulated memory is off, see [Note: bands].
    """
    parameters = "resident" if framework.strategy.holds_whole_parameters else "gathered"
    hybrid = any(isinstance(b.block, Mamba2 | GatedDeltaNet) for kind in job.graph.kinds for b in kind.branches)
    blocks = "hybrid" if hybrid else "moe" if job.has_experts else "dense"
    method = "full" if job.scenario.training.method == "full" else "lora"
    return f"{parameters}, {blocks}, {method}{f', {job.narrow}' if job.narrow else ''}"


def band_of(name: str) -> Band:
    """Range of measured over simulated memory for the class `name` (`layout_class`); it contains 1.

    With fewer than `FEW` measured runs it is widened to the range of all classes; `num` 0: no run of this class.
    """
    bands = read_bands()
    own, all_classes = bands.get(name, Band(0, 1.0, 1.0)), bands.get(EVERY, Band(0, 1.0, 1.0))
    if own.num >= FEW:
        return own
    return Band(own.num, min(own.low, all_classes.low), max(own.high, all_classes.high))


@lru_cache(maxsize=1)
def read_bands() -> Mapping[str, Band]:
    """Range of measured over simulated memory by name of class, from `bands.json`; `EVERY`: all classes."""
    path = data_folder("measured") / "bands.json"
    return {name: Band(**fields) for name, fields in json.loads(read_text(path)).items()}


def make_bands(residuals: Mapping[str, Sequence[float]]) -> str:
    """JSON text for `bands.json`, from measured over simulated bytes of each run, listed by name of class."""
    all_classes = {EVERY: [residual for group in residuals.values() for residual in group]}
    table = {name: asdict(_band(values)) for name, values in sorted((all_classes | dict(residuals)).items()) if values}
    return json.dumps(table, indent=1) + "\n"


def _band(residuals: Sequence[float]) -> Band:
    """Quantiles of residuals by nearest rank, widened to contain 1."""
    ordered = sorted(residuals)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
    return Band(len(ordered), round(min(low, 1.0), _DIGITS), round(max(high, 1.0), _DIGITS))
