"""rankscope's engine: simulates what a training job does on every GPU, in memory, traffic and time.

    from simcore import compare, load, simulate, table
    reports = [simulate(scenario) for scenario in load("scenarios/nano-ep4/automodel-4gpu.yaml")]
    table(reports)

In a notebook each of these displays itself: see `docs/notebook.md`. Names are loaded when first used, so that the
command line starts without the engine.

Start: `simulate.simulate`, the path of the data from a `Scenario` to a `Report`. `errors`: what a user can act on.
`units`: bytes, nanoseconds, quantities with units. Packages, each with its own page in its `__init__`:

    inputs       scenario files -> `Scenario`          program      plan + layers -> `Program` (a step in issue order)
    hardware     topology files -> `Topology`          memory       `Program` -> peak, reserved, device memory
    models       config.json -> `ModelGraph`           timing       `Program` + `Topology` -> step time
    pipeline     order of microbatches on a stage      simulation   everything -> `Report`; random draws, hosts
    recording    one layer -> rows on a tape           results      `Report` and its parts, JSON
    operators    what each implementation's layers do  validation   measured runs, snapshots, logs
    placement    mesh, layouts, plan of a rank         vllm, sglang, rl   inference engines; DPO and GRPO
    frameworks   FSDP, ZeRO, Megatron, ...: rules      calibration  measuring a machine with PyTorch
                 and memory hooks                      batch, search, cli, docgen   many scenarios, commands
    executors    processes, Dask, Ray, job arrays      recipes      recipes of other tools -> scenarios
    tables       results as rows: CSV, Parquet, SQL     lint         faults of recipes before they run
    verify       the real frameworks, beside the engine   studio   a page that asks while a job is edited
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcore.inputs.loading import load
    from simcore.inputs.scenario import Scenario
    from simcore.results.compare import compare
    from simcore.results.report import Report
    from simcore.simulate import simulate
    from simcore.tables.tabulate import table

__all__ = ["Report", "Scenario", "compare", "load", "simulate", "table"]

_HOME = {"Report": "results.report", "Scenario": "inputs.scenario", "compare": "results.compare",
         "load": "inputs.loading", "simulate": "simulate", "table": "tables.tabulate"}


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
