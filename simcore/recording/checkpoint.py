"""A checkpointed region: how it is run again, what its nodes saved, and which outputs were kept from the first run.

torch 2.13 `torch/utils/checkpoint.py`: a replay stops at the last thing that any node saves, unless `early_stop=False`.
Selective checkpointing (`create_selective_checkpoint_contexts`) keeps the outputs of chosen operators in forward; the
replay takes them in the same order instead of running the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

__all__ = ["Frame", "Keeps", "StopReplay"]

Keeps = Callable[[str], bool]
"""Whether the output of the operator that runs next is kept; asked once for each operator, in order."""


class StopReplay(Exception):
    """Everything that somebody saved is there again."""


@dataclass(slots=True, eq=False)
class Frame:
    """`run` keeps the region's inputs. `kept`: for each operator that was asked about, its outputs or None.

    `nested`: the replay makes a graph of its own, run to its end (a reentrant checkpoint), and does not hand what it
    saves to the nodes of the first run.
    """

    run: Callable[[], object]
    keeps: Keeps | None = None
    early_stop: bool = True
    nested: bool = False
    owners: list[ref[Any]] = field(default_factory=list)
    position: int = 0
    replayed: bool = False
    kept: list[Any] = field(default_factory=list)

    def outputs(self, operator: str, make: Callable[[], Sequence[Any]], *, replay: bool) -> Sequence[Any]:
        """What `operator` puts out: made, or in a replay what was kept of it."""
        if self.keeps is None:
            return make()
        if replay:
            kept: Sequence[Any] | None = self.kept.pop(0)
            return make() if kept is None else kept
        made = make()
        self.kept.append([x.detach() for x in made] if self.keeps(operator) else None)
        return made

    @property
    def is_complete(self) -> bool:
        """A replay may stop here."""
        return self.early_stop and not self.nested and self.position == len(self.owners)
