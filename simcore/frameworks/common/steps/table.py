"""Optimizers whose step has a module of its own, by their names in a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from simcore.frameworks.common.steps import adafactor
from simcore.frameworks.common.steps.own_step import OwnStep

__all__ = ["STEPS"]

STEPS: Final[Mapping[str, OwnStep]] = MappingProxyType({"adafactor": OwnStep(adafactor.held, adafactor.moved)})
