"""A checkpointed region: how it is replayed, what its nodes saved, and which outputs were kept from the first run.

torch 2.13 `torch/utils/checkpoint.py`: a replay stops at the last tensor that any node saves, unless
`early_stop=False`. Selective checkpointing (`create_selective_checkpoint_contexts`) keeps the outputs of chosen
operators in forward; the replay takes them in the same order instead of running the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

__all__ = ["Frame", "Keeps", "StopReplay"]

Keeps = Callable[[str], bool]
"""True if the output of the operator that runs next is kept; called once for each operator, in order."""


class StopReplay(Exception):
    """Raised to end the replay of a checkpointed region, when all tensors that its nodes save exist again."""


@dataclass(slots=True, eq=False)
class Frame:
    """One checkpointed region of a layer's forward pass, and the state of its replay in backward.

    `run`: function that runs the region; it refers to the region's inputs. `keeps`: decides which operators' outputs
    are kept in forward (None: none). `early_stop`: the replay ends at the last tensor that a node saved. `nested`: the
    replay makes a separate graph and runs to its end (a reentrant checkpoint), so what it saves does not go to the
    nodes of the first run. `owners`: nodes of the first run, one entry for each thing that a node saved, in order;
    `position`: index of the next one in the replay. `replayed`: the replay has begun. `kept`: outputs (or None) of
    every operator that `keeps` was called for.
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
        """Outputs of `operator`: those of `make()`, or in a replay those that were kept in forward, if any.

        `replay`: True while the region runs again. Outside a replay, outputs are kept here if `keeps` says so.
        """
        if self.keeps is None:
            return make()
        if replay:
            kept: Sequence[Any] | None = self.kept.pop(0)
            return make() if kept is None else kept
        computed = make()
        self.kept.append([x.detach() for x in computed] if self.keeps(operator) else None)
        return computed

    @property
    def is_complete(self) -> bool:
        """True if the replay may stop here: early stop is on, and all that forward saved is saved again."""
        return self.early_stop and not self.nested and self.position == len(self.owners)
