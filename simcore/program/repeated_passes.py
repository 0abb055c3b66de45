"""Passes over the layers of a chunk that a step repeats: their rows are copied, not written again.

A stage runs many microbatches, and under most schedules all but the first and the last passes find the framework's
hooks in a state that an earlier pass found too. Equal passes in equal states append equal rows (`HookState`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from simcore.program.builder import Builder, Passage
from simcore.program.hooks import HookState, MemoryHooks

__all__ = ["RepeatedPasses"]


@dataclass(frozen=True, eq=False)
class _Pass:
    """A pass over layers that was written: what it appended, and the states around it."""

    passage: Passage
    before: HookState[Any]
    after: HookState[Any]


class RepeatedPasses:
    """Memory of the passes over layers that were written into a step."""

    def __init__(self, builder: Builder, hooks: MemoryHooks) -> None:
        self._out, self._hooks = builder, hooks
        self._known: dict[Hashable, _Pass] = {}

    def write(self, kind: Hashable, written: Callable[[], None]) -> None:
        """Appends the rows of a pass over layers: by `written()`, or as copies if it was written before.

        `kind`: everything besides the hooks' state on which the rows depend, without the microbatch.
        """
        before = self._hooks.state()
        if before is None:
            written()
            return
        key = kind, self._out.phase, before.read
        known = self._known.get(key)
        if known is not None:
            self._out.repeat(known.passage)
            self._hooks.follow(known.before, known.after)
            return
        start = self._out.here()
        written()
        after = self._hooks.state()
        if after is not None:
            self._known[key] = _Pass(self._out.passage(start), before, after)
