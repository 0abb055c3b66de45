"""Contents of DeepSpeed's ZeRO-3 at every call of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def watch(found: list[list[int]]) -> None:
    """Every call is noted when it has gathered what it needs and what comes next.

    A row: 1 in forward, available parameters, parameters in flight, bytes of flat buffers in flight.
    """
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator as Coordinator
    fetch = Coordinator._fetch_sub_module_impl

    def noted(self: Any, module: Any, forward: bool, is_leaf: bool) -> None:
        fetch(self, module, forward, is_leaf)
        registry = self._PartitionedParameterCoordinator__inflight_param_registry
        handles = [one for handle in registry.values() for one in _each(handle)]
        buffers = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
                   for handle in handles for x in getattr(handle, "partitions", ())}
        found.append([int(forward), self._PartitionedParameterCoordinator__n_available_params, len(registry),
                      sum(buffers.values())])
    Coordinator._fetch_sub_module_impl = noted


def _each(handle: Any) -> Iterator[Any]:
    """Handles of single gathers inside one of several, in which there may be such again."""
    if not hasattr(handle, "handles"):
        yield handle
        return
    for one in handle.handles:
        yield from _each(one)
