"""rankscope's engine: what a training job does to every GPU, before anyone rents one.

    from simcore import compare, load, simulate, table
    reports = [simulate(scenario) for scenario in load("scenarios/nano-ep4/automodel-4gpu.yaml")]
    table(reports)

In a notebook each of these shows itself: see `docs/notebook.md`.

Names are looked up when first asked for, so that the command line starts without the engine.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcore.batch.tabulate import table
    from simcore.inputs.loading import load
    from simcore.inputs.scenario import Scenario
    from simcore.results.compare import compare
    from simcore.results.report import Report
    from simcore.simulate import simulate

__all__ = ["Report", "Scenario", "compare", "load", "simulate", "table"]

_HOME = {"Report": "results.report", "Scenario": "inputs.scenario", "compare": "results.compare",
         "load": "inputs.loading", "simulate": "simulate", "table": "batch.tabulate"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


class _Package(ModuleType):
    """`simcore.simulate`, `compare`, `table` are the functions, also after the modules of these names are loaded."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
