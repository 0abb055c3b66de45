"""Units of PEFT's wrap policy: each matrix of an adapter is one, inside its layer's.

[Note: PEFT's units] transformers 5.23 `distributed/fsdp.py`, update_fsdp_plugin_peft: FSDP1 around a model with
adapters takes PEFT's policy (0.21.2 `utils/other.py`, fsdp_auto_wrap_policy), by which a module without children whose
weight trains is a unit, beside each layer. So a flat parameter is frozen or trained as a whole, which
`use_orig_params: false` asks for, and a frozen one has no gradient. Both matrices of an adapter are gathered around
their product, in replays too; in backward they are gathered, reduced and freed one after the other, from the last. A
frozen layer is freed when the gradient of its input is there, behind the gathering of the layer below. With
BACKWARD_PRE each gathers ahead the unit whose forward ended before its own: a layer's ends behind its adapters'.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.placement.framework import Unit
from simcore.placement.plan import Plan
from simcore.recording.rows import ADAPTER_BACKWARD_BEGIN, ADAPTER_BACKWARD_END, ADAPTER_FORWARD_END

__all__ = ["AdapterUnits"]


class AdapterUnits:
    """Finder of the unit, an index in `units`, that a border inside a layer belongs to.

    A pass over a layer meets its units in the order of `units`, in backward in reverse; a replay, which is part of a
    backward pass, in the order of forward. `wraps`: True if there are any.
    """

    def __init__(self, plan: Plan, units: Sequence[Unit]) -> None:
        self._of: dict[int, list[int]] = {}
        self._names: dict[int, frozenset[str]] = {}
        for u, unit in enumerate(units):
            if unit.inner:
                self._of.setdefault(unit.first, []).append(u)
                self._names[u] = frozenset(plan.of_layer(layer)[number].spec.name
                                           for layer, numbers in unit.members for number in numbers)
        self.wraps = bool(self._of)
        self._passed, self._behind = 0, 0
        layers = sorted((unit.first, u) for u, unit in enumerate(units) if not unit.inner and not unit.is_root)
        self._order = [u for layer, own in layers for u in (*self._of.get(layer, ()), own)]

    def names(self, u: int) -> frozenset[str]:
        """Names of the parameters of unit `u`."""
        return self._names[u]

    def before(self, u: int) -> int:
        """Unit whose forward ends before that of unit `u`, which backward gathers ahead; -1 if there is none."""
        at = self._order.index(u) if u else len(self._order)
        return self._order[at - 1] if at else -1

    def enter(self) -> None:
        """Tells that a pass over a layer begins."""
        self._passed = self._behind = 0

    def at(self, layer: int, mark: int) -> int:
        """Unit inside layer number `layer` whose border is `mark`."""
        units = self._of[layer]
        if mark in (ADAPTER_BACKWARD_BEGIN, ADAPTER_BACKWARD_END):
            self._behind += mark == ADAPTER_BACKWARD_BEGIN
            return units[-self._behind]
        u = units[self._passed]
        self._passed += mark == ADAPTER_FORWARD_END
        return u
