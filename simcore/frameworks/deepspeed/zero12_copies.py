"""Flat buffers of ZeRO-3 out of which several parameters are copied: how long they are there.

DeepSpeed 0.19.6 `runtime/zero/partition_parameters.py`, AllGatherCoalescedHandle: `wait` copies all parameters of a
gather when the first of them is needed, but the handle keeps the buffer (`partitions`), and stands in the coordinator's
registry under each parameter until that one's own module asks for it (`partitioned_param_coordinator.py`,
_fetch_sub_module_impl: `__inflight_param_registry.pop(param)`).
"""

from __future__ import annotations

from collections.abc import Iterable

from simcore.frameworks.deepspeed.hpz import Key
from simcore.program.builder import Builder

__all__ = ["FlatBuffers"]


class FlatBuffers:
    """Those whose parameters were copied out, with the parameters that no module has asked for yet."""

    def __init__(self, out: Builder, slot: int) -> None:
        self.out, self.slot = out, slot
        self.kept: list[tuple[set[Key], int, int]] = []

    def arrived(self, group: Iterable[Key], layer: int, num_bytes: int) -> None:
        """A gather was waited for; its buffer was counted at `layer`."""
        self.kept.append((set(group), layer, num_bytes))

    def asked(self, keys: Iterable[Key]) -> None:
        """A module asks for `keys`."""
        for waiting, layer, num_bytes in self.kept:
            waiting.difference_update(keys)
            if not waiting:
                self.out.free(layer, self.slot, num_bytes)
        self.kept = [one for one in self.kept if one[0]]
