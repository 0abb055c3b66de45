"""Second parts of parameters, cut over fewer ranks: [Note: hpZ]."""

from __future__ import annotations

from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.outline import Tables

__all__ = ["HpzShards", "Key"]

Key = tuple[int, int]
"""(layer, number) of a parameter."""


class HpzShards:
    """Which parameters have one, and its rows; of nothing where hpZ is not asked for."""

    def __init__(self, plan: Plan, tables: Tables, out: Builder, strategy: ZeroStrategy) -> None:
        self.out, self.parts = out, strategy.secondary
        axis = f"{strategy.axis}/{strategy.secondary}"
        self.comm = tables.comm("all_gather", axis, plan.framework.compute_dtype) if self.parts else -1
        self.slot = tables.slot("secondary_part", "post_forward_shard")
        self.kept: dict[Key, int] = {}

    def has(self, key: Key) -> bool:
        """Whether it is gathered from its second parts."""
        return key in self.kept

    def keep(self, key: Key, num_bytes: int) -> None:
        """The first time that a whole parameter of so many bytes is released."""
        if self.parts and key not in self.kept:
            self.kept[key] = num_bytes // self.parts
            self.out.alloc(key[0], self.slot, self.kept[key])

    def drop(self) -> None:
        """The step has updated what they are copies of."""
        for (layer, _), num_bytes in self.kept.items():
            self.out.free(layer, self.slot, num_bytes)
        self.kept.clear()
