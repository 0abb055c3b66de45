"""The interface of a framework's data-parallel strategy: all that code outside the framework's folder may ask of it."""

from __future__ import annotations

from typing import Literal

__all__ = ["ParallelStrategy"]


class ParallelStrategy:
    """A framework's data-parallel strategy: a frozen record of its settings.

    Each framework derives its own record with the fields that its hooks read. The properties below are all that the
    rest of the engine asks; their defaults are those of a framework whose flat shards are gathered before use.
    """

    __slots__ = ()

    @property
    def holds_whole_parameters(self) -> bool:
        """Tells whether parameters are whole on every data-parallel rank between steps."""
        return False

    @property
    def holds_whole_states(self) -> bool:
        """Tells whether optimizer states are whole on every data-parallel rank."""
        return False

    @property
    def is_flat(self) -> bool:
        """Tells whether a rank's shard is cut from many tensors laid end to end, so that its contents vary by rank."""
        return True

    @property
    def is_placed_by_rank(self) -> bool:
        """Tells whether `place` runs for every rank, because bytes at rest may differ inside a class."""
        return True

    @property
    def step_varies_by_rank(self) -> bool:
        """Tells whether the operations of a step differ between ranks that hold equally many bytes."""
        return False

    @property
    def gathers_on_side_streams(self) -> bool:
        """Tells whether hooks all-gather on separate CUDA streams, so that the allocator reserves more.

        Blocks that were freed on one stream cannot serve requests of another until the events between them are over.
        """
        return False

    @property
    def counts_workspaces(self) -> bool:
        """Tells whether library workspaces are part of the allocated bytes that the framework's readings report."""
        return True

    @property
    def unit_sync(self) -> str:
        """The time at which units reduce gradients that autograd yields one by one ("every", "last", "end"), or ""."""
        return ""

    @property
    def prefetch_depth(self) -> int:
        """Units that the deepest explicit prefetch looks ahead."""
        return 0

    @property
    def rl_worker(self) -> Literal["dtensor", "megatron", ""]:
        """The kind of NeMo RL policy worker that trains with this strategy, or ""."""
        return ""
