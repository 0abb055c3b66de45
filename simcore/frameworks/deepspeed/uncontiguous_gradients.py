"""Gradients that have no bucket under ZeRO-1 and 2: [Note: gradients apart]."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simcore.frameworks.deepspeed.hpz import Key
from simcore.program.builder import Builder
from simcore.recording.tape import Kernel

__all__ = ["UnbucketedGradients"]


class UnbucketedGradients:
    """Where they lie, as (slot, bytes). `is_mine`: whether something of it lies in the rank's part.

    `behind`: others go behind the next reduction, not this one.
    """

    def __init__(self, out: Builder, is_mine: Callable[[Key], bool], *, behind: bool) -> None:
        self.out, self.is_mine, self.behind = out, is_mine, behind
        self.fresh: dict[Key, tuple[int, int]] = {}
        self.kept: dict[Key, tuple[int, int]] = {}
        self.before: list[Key] = []

    def made(self, key: Key, slot: int, num_bytes: int) -> None:
        """By autograd: one that is there is added to."""
        if key in self.fresh:
            self.out.free(key[0], slot, num_bytes)
        self.fresh.setdefault(key, (slot, num_bytes))

    def sent(self, key: Key) -> None:
        """It is in a bucket."""
        self._drop([key])

    def reduced(self, keys: Iterable[Key]) -> None:
        """A bucket's worth has been sent."""
        self._drop(self.before)
        self.before = [key for key in keys if not self.is_mine(key)]
        if not self.behind:
            self._drop(self.before)

    def end_microbatch(self) -> None:
        """The rank's own are kept, or added to what it has kept."""
        self._drop([key for key in self.fresh if not self.is_mine(key)])
        self.before = []
        if not self.kept:
            self.kept, self.fresh = self.fresh, {}
            return
        held = sum(num_bytes for _, num_bytes in self.fresh.values())
        self.out.compute(Kernel.ELEMENTWISE, held // 2, 3 * held)
        self._drop(list(self.fresh))

    def drop_kept(self) -> None:
        """The step has a copy in fp32."""
        for (layer, _), (slot, num_bytes) in self.kept.items():
            self.out.free(layer, slot, num_bytes)
        self.kept.clear()

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key in self.fresh:
                self.out.free(key[0], *self.fresh.pop(key))
