"""Trainers whose layers FSDP2 wraps, by the name of the implementation."""

from __future__ import annotations

from typing import Final

from simcore.frameworks.common import llmfoundry
from simcore.frameworks.common.trainer import Trainers
from simcore.frameworks.fsdp2 import hub, kempnerforge, torchtitan
from simcore.frameworks.fsdp2.split.matrices import HF_TRAINER

__all__ = ["TRAINERS"]

TRAINERS: Final[Trainers] = {
    "hf": HF_TRAINER, "hub": hub.HUB_TRAINER, "hf4": hub.FOUR_TRAINER,
    "torchtitan": torchtitan.TRAINER, "kempnerforge": kempnerforge.TRAINER, "llmfoundry": llmfoundry.TRAINER,
}
