"""Secondary partitions of parameters, over fewer ranks: [Note: hpZ]."""

from __future__ import annotations

from collections.abc import Mapping

from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.outline import Tables

__all__ = ["HpzShards", "Key"]

Key = tuple[int, int, int]
"""(layer, number, expert) of a parameter; the last is 0 but for modules of experts."""


class HpzShards:
    """The secondary shards of parameters (hpZ) at one point of the step, and their memory events.

    Inactive unless `zero_hpz_partition_size` > 1. A parameter, the type Key, is (layer number of the whole model, index
    of the tensor in the layer, expert).
    """

    def __init__(self, plan: Plan, tables: Tables, out: Builder, strategy: ZeroStrategy) -> None:
        self.out, self.parts = out, strategy.secondary
        axis = f"{strategy.axis}/{strategy.secondary}"
        self.comm = tables.comm("all_gather", axis, plan.framework.compute_dtype) if self.parts else -1
        self.slot = tables.slot("secondary_part", "post_forward_shard")
        self.kept: dict[Key, int] = {}
        self.frozen = frozenset[Key]()

    def start(self, frozen: Mapping[Key, int]) -> None:
        """Simulates the allocation of what is there before a step: shards of frozen parameters, which never expire.

        Small ones that stay gathered have one from the start too.

        `frozen`: bytes of each when it is gathered. DeepSpeed 0.19.6 `stage3.py`:706, invalidate_secondary_tensor: of
        the optimizer's groups alone.
        """
        for key, num_bytes in frozen.items():
            self.keep(key, num_bytes)
        self.frozen = frozenset(frozen)

    def has(self, key: Key) -> bool:
        """True if the parameter has a secondary shard, from which it is then gathered."""
        return key in self.kept

    def keep(self, key: Key, num_bytes: int) -> None:
        """Simulates the allocation of a secondary shard when a gathered parameter of `num_bytes` is released.

        `key`: the parameter, as (layer number of the whole model, index in the layer, expert). Only the first
        time in a step.
        """
        if self.parts and key not in self.kept:
            self.kept[key] = num_bytes // self.parts
            self.out.alloc(key[0], self.slot, self.kept[key])

    def drop(self) -> None:
        """Simulates the release of secondary shards of what the step has updated."""
        for key in [key for key in self.kept if key not in self.frozen]:
            self.out.free(key[0], self.slot, self.kept.pop(key))
