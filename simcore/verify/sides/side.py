"""The seam between a scenario and a framework that is really run: one `Side` a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simcore.simulation.simulation import Simulation
from simcore.verify.sides.found import Found
from simcore.verify.sides.settings import Settings

__all__ = ["Side"]


@dataclass(frozen=True)
class Side:
    """A framework's real side, and how a scenario is put to it.

    `name`: as the user reads it. `script`: module of `real/` that runs it. `pins`: files of `pins/` that its
    environment needs, in the order of installation. `told`: dotted keys of a scenario that `case` translates, others
    are refused. `case`: what the script is asked, of the settings and a rank; NotYet for a value that it cannot be
    told. `ours`: the engine's answer. `skipped`: subjects that are not compared, each with the reason, of the settings.
    `most_tokens`: a longer sequence, and a larger microbatch, are made smaller on both sides where real tensors are
    computed; None: they are as asked.
    """

    name: str
    script: str
    pins: tuple[str, ...]
    told: frozenset[str]
    case: Callable[[Settings, int], dict[str, Any]]
    ours: Callable[[Simulation], Found]
    skipped: Callable[[Settings], Mapping[str, str]]
    most_tokens: int | None = None
