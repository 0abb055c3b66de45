"""Shards of the model that a rank has, by the library that cuts it."""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["Shards"]


class Shards(Enum):
    """Shards of a rank: none (DDP), of flat parameters (FSDP 1), of each parameter (FSDP 2), of ZeRO."""

    NONE = auto()
    FLAT = auto()
    EACH = auto()
    ZERO = auto()
