"""Gathered weights of ZeRO-3 that AutoEP's router keeps beyond a layer's backward.

[Note: weights behind the router's logits] The graph of logits that a block still refers to ([Note: logits that are not
read] in `operators/torchtitan/autoep.py`) was made inside of a checkpoint's replay, whose hook saves every tensor as a
detached one (torch 2.13 `utils/checkpoint.py`, _recomputation_hook), parameters too: so the copies that the replay has
gathered of the attention's and the router's parameters stay when DeepSpeed releases them, until the layer's next
forward.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from simcore.frameworks.deepspeed.experts.joint_gathers import Key
from simcore.frameworks.deepspeed.experts.layers import EXPERTS_AXIS, axis_of, has_own_experts
from simcore.placement.plan import Plan
from simcore.program.builder import Builder

__all__ = ["ReplayedWeights"]


class ReplayedWeights:
    """The copies of parameters, (layer, index in the layer, expert) each, that stay, and their memory events.

    None without DeepSpeed's experts, and without recomputation. `slots`: of a copy, by where it lies; `whole`: its
    bytes.
    """

    def __init__(self, plan: Plan, out: Builder, slots: Sequence[int], whole: Callable[[Key], int]) -> None:
        self.out, self.slots, self.whole = out, slots, whole
        self.is_on = has_own_experts(plan.graph) and plan.framework.checkpoint != "none"
        self.used = {key for layer in plan.layers if self.is_on for key in _before_router(plan, layer)}
        self.seen = set[Key]()
        self.kept: dict[Key, int] = {}

    def start(self, gathered: Container[Key]) -> None:
        """Simulates the allocation of what the step before has left of the parameters that are gathered."""
        for key in sorted(key for key in self.used if key in gathered):
            self.kept[key] = 0
            self.out.alloc(key[0], self.slots[0], self.whole(key))

    def replayed(self, keys: Iterable[Key]) -> None:
        """Takes the parameters that a call of a module in a replay uses."""
        self.seen.update(key for key in keys if key in self.used)

    def keeps(self, key: Key, slot: int) -> bool:
        """True if the copy of a parameter that is released, in a slot, stays; of several in a replay, one does."""
        if key not in self.seen or key in self.kept:
            return False
        self.seen.remove(key)
        self.kept[key] = slot
        return True

    def forward(self, layer: int) -> None:
        """Simulates the release of what stayed until a layer's forward, as if at its end.

        `layer`: its number in the whole model, embedding 0.
        """
        for key in [key for key in self.kept if key[0] == layer]:
            self.out.free(layer, self.slots[self.kept.pop(key)], self.whole(key))
        self.seen = {key for key in self.seen if key[0] != layer}


def _before_router(plan: Plan, layer: int) -> list[Key]:
    """Parameters of a layer with DeepSpeed's experts, but for those and the shared expert's."""
    placed = [(number, one) for number, one in enumerate(plan.of_layer(layer)) if not one.spec.is_buffer]
    if all(axis_of(one) != EXPERTS_AXIS for _, one in placed):
        return []
    return [(layer, number, 0) for number, one in placed
            if one.spec.component != "shared_experts" and axis_of(one) != EXPERTS_AXIS]
