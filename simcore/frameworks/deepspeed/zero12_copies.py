"""Lifetimes of ZeRO-3's flat buffers from which several parameters are copied.

DeepSpeed 0.19.6 `runtime/zero/partition_parameters.py`, AllGatherCoalescedHandle: `wait` copies all parameters of a
gather when the first of them is needed, but the handle keeps the buffer (`partitions`), and stays in the coordinator's
registry under each parameter until that parameter's own module requests it (`partitioned_param_coordinator.py`,
_fetch_sub_module_impl: `__inflight_param_registry.pop(param)`).
"""

from __future__ import annotations

from collections.abc import Iterable

from simcore.frameworks.deepspeed.hpz import Key
from simcore.program.builder import Builder

__all__ = ["FlatBuffers"]


class FlatBuffers:
    """The flat buffers of ZeRO-3's gathers that still exist at one point of the step.

    Each is kept with the parameters, (layer, index in the layer, expert), that no module has requested from it yet.
    """

    def __init__(self, out: Builder, slot: int) -> None:
        self.out, self.slot = out, slot
        self.kept: list[tuple[set[Key], int, int]] = []

    def arrived(self, group: Iterable[Key], layer: int, num_bytes: int) -> None:
        """Adds the buffer of `num_bytes` of a finished gather of the parameters `group`.

        `layer`: number of the layer under which its allocation is listed.
        """
        self.kept.append((set(group), layer, num_bytes))

    def asked(self, keys: Iterable[Key]) -> None:
        """Takes the parameters `keys` that a module requests; buffers of which all were requested are released."""
        for waiting, layer, num_bytes in self.kept:
            waiting.difference_update(keys)
            if not waiting:
                self.out.free(layer, self.slot, num_bytes)
        self.kept = [buffer for buffer in self.kept if buffer[0]]
