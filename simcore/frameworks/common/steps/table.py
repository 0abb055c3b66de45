"""Optimizers whose step has a module of its own, by their names in a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from simcore.frameworks.common.steps import adafactor, low_rank
from simcore.frameworks.common.steps.own_step import OwnStep

__all__ = ["STEPS"]

STEPS: Final[Mapping[str, OwnStep]] = MappingProxyType({
    "adafactor": OwnStep(adafactor.held, adafactor.moved),
    "galore": OwnStep(low_rank.held, low_rank.moved),
    "apollo": OwnStep(low_rank.held, low_rank.moved),
})
