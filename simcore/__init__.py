"""rankscope's engine: what a training job does to every GPU, before anyone rents one.

    from simcore import load, simulate, compare
    reports = [simulate(scenario) for scenario in load("scenarios/nano-ep4/automodel-4gpu.yaml")]
"""

from __future__ import annotations

from simcore.compare import compare
from simcore.loading import load
from simcore.report import Report
from simcore.scenario import Scenario
from simcore.simulate import simulate

__all__ = ["Report", "Scenario", "compare", "load", "simulate"]
