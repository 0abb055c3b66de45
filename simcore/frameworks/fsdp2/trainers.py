"""Trainers whose layers FSDP2 wraps, by the name of the implementation."""

from __future__ import annotations

from typing import Final

from simcore.frameworks.common import llmfoundry, transformers
from simcore.frameworks.common.trainer import Trainers
from simcore.frameworks.fsdp2 import hub, kempnerforge, torchtitan

__all__ = ["TRAINERS"]

TRAINERS: Final[Trainers] = {
    "hf": transformers.TRAINER, "hub": hub.HUB_TRAINER, "hf4": hub.FOUR_TRAINER,
    "torchtitan": torchtitan.TRAINER, "kempnerforge": kempnerforge.TRAINER, "llmfoundry": llmfoundry.TRAINER,
}
