"""Modules of a layer as the hooks of ZeRO-3 see them: linears with or without an adapter, containers, leaves.

[Note: leaf modules] DeepSpeed 0.19.6 `runtime/zero/leaf_module_config.py` and `utils/z3_leaf_module.py`: the MoE blocks
of Mixtral, Qwen2-MoE and Qwen3-MoE are leaves without being asked for, in transformers 4 and 5 alike. Hooks are on the
block and on nothing inside: it gathers the router and all experts at once, and its gradients are reduced when its
backward is over, in the order of registration, with zeros for experts without tokens (`stage3.py`,
reduce_leaf_module_grads). That reduction is a full backward hook of torch, which gives every output a gradient: the
router's logits, which transformers 4's block returns too, so that the hook before backward runs twice. Other experts
that are modules are gathered one linear after the other: all run in Nemotron-3-Nano's repository, those without tokens
on a row of zeros.

[Note: calls of AutoEP's block] DeepSpeed 0.19.6 `module_inject/auto_ep_layer.py`, AutoEPMoELayer: its class is no leaf
(`runtime/zero/leaf_module_config.py` names transformers' blocks, which it replaces). The router's linear runs in the
router, and once more in a hook on the router whose logits are not read (_register_logit_hook); then come all experts as
one module, the shared expert and its gate. The block itself weighs what the experts have made, so a replay begins in
it, before the modules inside are called in backward, and ends behind them.

[Note: inputs by name] DeepSpeed 0.19.6 `runtime/zero/parameter_offload.py`: the end of a module's backward is seen at
its inputs, of which hooks before forward are given those without a name alone. A module that is called with names
alone (`self.mamba(hidden_states=...)`) is not over before the pass is: what it gathers for itself stays.

[Note: parameters that a kernel reads] The kernel behind Mamba-2's first product takes the convolution's, the norm's and
the last linear's weights, none of which is called as a module (transformers 5.23 `modeling_bamba.py`, likewise in
Nemotron-3-Nano's repository). DeepSpeed takes them for the mixer's own from the first pass on (`parameter_offload.py`,
ZeROOrderedDict): they are gathered with it. Their gradients come at once; autograd adds them to the parameters in the
order in which its heap gives up nodes of equal rank (torch 2.13 `autograd/engine.cpp` ReadyQueue).

[Note: calls of an adapted linear] PEFT 0.21.2 `tuners/lora/layer.py`, `tuners/lora/bnb.py`: the module around a linear
reads the type of `lora_A`'s weight, which DeepSpeed then takes for its own (`parameter_offload.py`,
register_external_parameter) and keeps until that module is over; then come the linear itself, a dropout that does
nothing, `lora_A` and `lora_B`. In backward `lora_B` and `lora_A` come before the linear. A linear whose input needs no
gradient is not called again. A frozen one of 4 bits saves nothing, so a replay begins behind it and ends before it.

[Note: calls of a linear with DoRA] PEFT 0.21.2 `tuners/lora/dora.py`, DoraLinearLayer.forward: the module of the
magnitudes reads the base's weight, which in the first pass is released by then, so that DeepSpeed takes it for that
module's too. It runs `lora_A` and `lora_B` on a unit matrix, then on the input; backward passes the former by. What it
returns saves products of its own, so a replay begins in it, and frozen parameters of the replay go when it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

__all__ = ["BLANK", "LEAF_FAMILIES", "Call", "Calls", "Chain", "Container", "Linear", "Part", "Refs", "Unit",
           "backward_of", "forward_of", "of_autoep"]

Refs = tuple[tuple[int, int], ...]
"""Parameters: (index among the layer's tensors, number of the expert, 0 if experts are no modules) each."""
LEAF_FAMILIES: Final = ("mixtral", "qwen2_moe", "qwen3_moe")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a module: parameters `own` that it holds itself, and all that are `inside`, its own too.

    `is_leaf`: it gathers what is inside. `is_model`: the parameters of all layers are inside. `reads`: head or
    embedding, of which it gathers the weight, since the model's own forward reads it. `released`: parameters whose last
    open module ends with the call, if not all that it gathers. `ready`: parameters of the module around it, or of its
    own, whose gradients come before those of its own, in their order.
    """

    own: Refs = ()
    inside: Refs = ()
    is_leaf: bool = False
    is_model: bool = False
    reads: str = ""
    released: Refs | None = None
    ready: Refs = ()

    @property
    def needed(self) -> Refs:
        """Parameters that it gathers."""
        return self.inside if self.is_leaf else self.own

    def and_releases(self, refs: Refs) -> Call:
        """The same call, with which the last open module of `refs` ends too."""
        released = self.needed if self.released is None else self.released
        return replace(self, released=(*released, *refs))


Calls = list[Call]


class Unit(Protocol):
    """A module, or an adapted linear, with the calls that hooks see of it."""

    @property
    def inside(self) -> Refs:
        """All of its parameters."""

    def forward(self) -> Calls:
        """Returns its calls in forward, in order."""

    def backward(self) -> Calls:
        """Returns its calls in backward, the last one first."""

    def without_input_grad(self) -> Calls:
        """Returns its calls in backward, the last one first, where its input needs no gradient."""


@dataclass(frozen=True, slots=True)
class Linear:
    """References to its parameters, to those of the adapter's two, if it has one, and to its magnitudes.

    `drops`: dropout runs before the adapter. `ready`: parameters of the module around it whose gradients come just
    before its own. With magnitudes: [Note: calls of a linear with DoRA].
    """

    own: Refs
    adapters: tuple[Refs, ...] = ()
    magnitude: Refs = ()
    drops: bool = False
    ready: Refs = ()

    @property
    def inside(self) -> Refs:
        """All of its parameters."""
        return (*self.own, *(ref for refs in self.adapters for ref in refs), *self.magnitude)

    def forward(self) -> Calls:
        """Returns its calls in forward, in order."""
        *calls, last = self._forward()
        return [*calls, replace(last, ready=self.ready)]

    def _forward(self) -> Calls:
        if not self.adapters:
            return [_simple(self.own)]
        first, last = self.adapters
        low, high = _simple(first, ()), _simple(last)
        begin = [self._around(), _simple(self.own)]
        if not self.magnitude:
            return [*begin, Call(), low, replace(high, released=(*last, *first))]
        return [*begin, *self._dropout(), self._dora(), low, high, low,
                replace(high, released=(*last, *self._scaled(), *first))]

    def backward(self) -> Calls:
        """Returns its calls in backward, the last one first."""
        if not self.adapters:
            return [_simple(self.own)]
        end = _simple(self.own, (*self.own, *self.adapters[0]))
        if not self.magnitude:
            return [end, Call(), *self.without_input_grad()]
        low, *rest = self.without_input_grad()
        return [end, *self._dropout(), replace(low, released=self._scaled()), *rest]

    def without_input_grad(self) -> Calls:
        """Returns its calls in backward, the last one first, where its input needs no gradient.

        The module around it is then not over before the whole backward is.
        """
        if not self.adapters:
            return []
        first, last = self.adapters
        return [_simple(first, ()), _simple(last), *([self._dora()] if self.magnitude else []), self._around()]

    def _around(self) -> Call:
        return Call(self.adapters[0], self.inside, released=())

    def _scaled(self) -> Refs:
        """Parameters that the module of the magnitudes gathers: these, and the linear's own, which it reads."""
        return (*self.magnitude, *self.own)

    def _dora(self) -> Call:
        return Call(self._scaled(), self._scaled(), released=())

    def _dropout(self) -> Calls:
        return [Call()] * self.drops


def _simple(refs: Refs, released: Refs | None = None) -> Call:
    return Call(refs, refs, released=released)


def _after_first_trained(units: Iterable[Unit]) -> Calls:
    """Calls in backward, the last one first, of units of which each takes what the one before it has made.

    The input of the first needs no gradient.
    """
    calls: Calls = []
    for unit in units:
        calls += unit.backward() if calls else unit.without_input_grad()
    return calls


@dataclass(frozen=True, slots=True)
class _CalledTwice:
    """A linear that forward calls once more than backward: [Note: calls of AutoEP's block]."""

    linear: Linear

    @property
    def inside(self) -> Refs:
        """All of its parameters."""
        return self.linear.inside

    def forward(self) -> Calls:
        """Returns its calls in forward, in order."""
        return [*self.linear.forward(), *self.linear.forward()]

    def backward(self) -> Calls:
        """Returns its calls in backward, the last one first."""
        return self.linear.backward()

    def without_input_grad(self) -> Calls:
        """Returns its calls in backward, the last one first, where its input needs no gradient."""
        return self.linear.without_input_grad()


@dataclass(frozen=True, slots=True)
class Chain:
    """Modules that run one after the other: a linear and the norm of its output."""

    units: tuple[Unit, ...]

    @property
    def inside(self) -> Refs:
        """All of its parameters."""
        return tuple(ref for unit in self.units for ref in unit.inside)

    def forward(self) -> Calls:
        """Returns its calls in forward, in order."""
        return forward_of(self.units)

    def backward(self) -> Calls:
        """Returns its calls in backward, the last one first."""
        return backward_of(self.units)

    def without_input_grad(self) -> Calls:
        """Returns its calls in backward, the last one first, where its input needs no gradient."""
        return _after_first_trained(self.units)


@dataclass(frozen=True, slots=True)
class Container:
    """A module with parameters of its own, or none, that runs others one after the other.

    `outputs`: tensors that it returns. `leaf`: what is inside a leaf, which has no units. `combines`: it saves what its
    units have made, for a product of its own behind them. `by_name`: [Note: inputs by name]. `ready`: its own
    parameters in the order of their gradients, where that is not the order in which they are registered, and where
    these come before those of its units.
    """

    own: Refs = ()
    units: tuple[Unit, ...] = ()
    outputs: int = 1
    leaf: Refs = ()
    combines: bool = False
    by_name: bool = False
    ready: Refs = ()

    @property
    def inside(self) -> Refs:
        """All of its parameters."""
        return (*self.own, *self.leaf, *(ref for unit in self.units for ref in unit.inside))

    def opening(self) -> Call:
        """Returns the call of the module itself."""
        return Call(self.own, self.inside, is_leaf=bool(self.leaf), ready=() if self.units else self.ready)

    def forward(self) -> Calls:
        """Returns its calls in forward, in order."""
        opening, inside = self.opening(), forward_of(self.units)
        if not (self.own and inside):
            return [opening, *inside]
        last = replace(inside[-1].and_releases(self.own), ready=self.ready)
        return [replace(opening, released=()), *inside[:-1], last]

    def backward(self) -> Calls:
        """Returns its calls in backward, the last one first."""
        opening, inside = self.opening(), backward_of(self.units)
        if self.own and inside:
            opening = replace(opening, released=())
            inside[0] = inside[0] if self.by_name else inside[0].and_releases(self.own)
        return [*inside, opening, *[replace(opening, released=())] * (self.outputs - 1)]

    def without_input_grad(self) -> Calls:
        """Returns its calls in backward, the last one first, where its input needs no gradient.

        They begin with the first trained unit; none if there is none.
        """
        calls = _after_first_trained(self.units)
        return [*calls, self.opening()] if calls else []


BLANK: Final = Container()
"""A module without parameters, such as an activation."""


def forward_of(units: Iterable[Unit]) -> Calls:
    """Returns the calls of `units` in forward, in order."""
    return [call for unit in units for call in unit.forward()]


def backward_of(units: Iterable[Unit]) -> Calls:
    """Returns the calls of `units` in backward, the last one first."""
    return [call for unit in units for call in unit.backward()]


def of_autoep(linears: Mapping[str, Linear]) -> list[Unit]:
    """Returns the modules of DeepSpeed's own block of experts, in the order of calls: [Note: calls of AutoEP's block].

    `linears`: by their paths in the layer.
    """
    router, experts = (linears[path] for path in linears if path.endswith((".router.gate", ".experts")))
    shared = [linear for path, linear in linears.items() if ".shared_experts." in path]
    gate = [linear for path, linear in linears.items() if path.endswith(".shared_experts_gate")]
    beside = [Container((), (shared[0], BLANK, *shared[1:]))] if shared else []
    return [Container((), (_CalledTwice(router),)), experts, *beside, *gate]


@dataclass(frozen=True, slots=True)
class Part:
    """A block: the norm before it, its module (with what that has itself: sinks, Mamba's vectors), the norm behind it.

    `before` is empty where another block stands behind the same norm already, both are where there is no norm.
    `acts_last`: the activation is a module of which the last linear takes the output as it is. `has_input_grad`: the
    block's input needs a gradient. `joins`: the last unit takes what the others have made, and not the block's input.
    `asks`: the module behind has saved something, so a replay begins in it.
    """

    before: Calls
    block: Container
    behind: Calls
    acts_last: bool = False
    has_input_grad: bool = True
    joins: bool = True
    asks: bool = False

    def forward(self) -> Calls:
        """Returns its calls in forward, in order."""
        return [*self.before, *self.block.forward(), *self.behind]

    def backward(self) -> Calls:
        """Returns its calls in backward, the last one first; none where nothing in it is trained or needs it."""
        if self.has_input_grad:
            return [*self.behind, *reversed(self.block.backward()), *self.before]
        *first, last = self.block.units
        inside = [call for unit in first for call in unit.without_input_grad()]
        inside += last.backward() if self.joins and inside else last.without_input_grad()
        if not inside:
            return []
        opening = self.block.opening()
        if opening.own:  # its end is not seen, as its input has no gradient
            opening = replace(opening, released=())
        return [*self.behind, opening, *reversed(inside)]  # the norm before it is frozen, as all before it

    def opened(self) -> list[Container]:
        """The module and the containers in it, from the outside in, that hold the last linear."""
        found = [self.block]
        while found[-1].units and not found[-1].combines and isinstance(found[-1].units[-1], Container):
            found.append(found[-1].units[-1])
        return found

    def last(self) -> Linear | None:
        """The linear that runs last; None in a leaf, whose linears have no hooks, and where a product comes behind."""
        inner = self.opened()[-1]
        last = None if inner.combines or not inner.units else inner.units[-1]
        return last if isinstance(last, Linear) else None
