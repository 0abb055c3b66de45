"""Gradients that have no bucket under ZeRO-1 and 2: [Note: gradients apart]."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simcore.program.builder import Builder
from simcore.recording.tape import Kernel

__all__ = ["UnbucketedGradients"]

Key = tuple[int, int]
"""(layer, number) of a parameter, or of one linear of all experts."""


class UnbucketedGradients:
    """The gradients at one point of the step without `contiguous_gradients`, and their memory events.

    Each stays where autograd made it, until it is reduced and not needed. A parameter is (layer, index in the layer).
    `is_mine`: tells whether a parameter has elements in the rank's partition, so that its gradient stays. `behind` (a
    bool): gradients of all others are freed after the next reduction, as DeepSpeed does with overlap_comm, and not
    after their own.
    """

    def __init__(self, out: Builder, is_mine: Callable[[Key], bool], *, behind: bool) -> None:
        self.out, self.is_mine, self.behind = out, is_mine, behind
        self.fresh: dict[Key, tuple[int, int]] = {}
        self.kept: dict[Key, tuple[int, int]] = {}
        self.before: list[Key] = []

    def made(self, key: Key, slot: int, num_bytes: int) -> None:
        """Adds a gradient of autograd; if the parameter has one already, it is added to that and freed.

        `key`: the parameter, as (layer number of the whole model, index in the layer). `slot`: index of the gradient's
        owner in `Tables.slots`.
        """
        if key in self.fresh:
            self.out.free(key[0], slot, num_bytes)
        self.fresh.setdefault(key, (slot, num_bytes))

    def sent(self, key: Key) -> None:
        """Simulates the release of a parameter's gradient, which was copied into a bucket."""
        self._drop([key])

    def reduced(self, keys: Iterable[Key]) -> None:
        """Simulates that gradients of `keys` are reduced: those outside the rank's partition are released.

        With `behind` those of the reduction before are released, and these after the next.
        """
        self._drop(self.before)
        self.before = [key for key in keys if not self.is_mine(key)]
        if not self.behind:
            self._drop(self.before)

    def end_microbatch(self) -> None:
        """Keeps the gradients of the rank's partition until the step; frees all others.

        From the second microbatch on it simulates their addition to the kept ones.
        """
        self._drop([key for key in self.fresh if not self.is_mine(key)])
        self.before = []
        if not self.kept:
            self.kept, self.fresh = self.fresh, {}
            return
        num_bytes_kept = sum(num_bytes for _, num_bytes in self.fresh.values())
        self.out.compute(Kernel.ELEMENTWISE, num_bytes_kept // 2, 3 * num_bytes_kept)
        self._drop(list(self.fresh))

    def drop_kept(self) -> None:
        """Simulates the release of the gradients that `end_microbatch` kept: the step has their copy in fp32."""
        for (layer, _), (slot, num_bytes) in self.kept.items():
            self.out.free(layer, slot, num_bytes)
        self.kept.clear()

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key in self.fresh:
                self.out.free(key[0], *self.fresh.pop(key))
