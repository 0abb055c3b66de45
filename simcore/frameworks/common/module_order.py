"""The order in which modules of transformers' layers are called, as hooks on modules see it.

A call is a tuple of numbers of the module's direct parameters; most containers and activations have none. Backward
runs in reverse, a container before what it holds. A checkpointed layer is replayed when the first of its modules needs
what it has saved: the last linear (torch 2.13 `utils/checkpoint.py`, use_reentrant=False). The layer itself is not
called again: its `forward` is checkpointed, within its hooks (transformers 5.23 `modeling_layers.py`).
Of two blocks behind one norm (GraniteMoeHybrid's experts and the MLP beside them) the second comes first in backward:
autograd runs the latest node first.

[Note: calls of an adapted linear] PEFT 0.21.2 `tuners/lora/layer.py`, `tuners/lora/bnb.py`: the module around a linear
reads the type of `lora_A`'s weight, which DeepSpeed then takes for its own (`parameter_offload.py`,
register_external_parameter); then come the linear itself, a dropout that does nothing, `lora_A` and `lora_B`. In
backward `lora_B` and `lora_A` come before the linear. A linear whose input needs no gradient is not called again. A
frozen one of 4 bits saves nothing, so a replay begins behind it and ends before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from simcore.models.blocks import Branch, Embedding, Head, Mlp, Moe
from simcore.placement.plan import Plan

__all__ = ["Calls", "asks_inputs", "backward_calls", "forward_calls", "readiness", "released_after",
           "replayed"]

Calls = list[tuple[int, ...]]
_ADAPTERS: Final = (".lora_a", ".lora_b")
_MAGNITUDE: Final = ".lora_magnitude_vector"
_BESIDE: Final = "shared_mlp"
"""Module of GraniteMoeHybrid's shared MLP, no part of the experts' module (`modeling_granitemoehybrid.py`:1001)."""


def forward_calls(plan: Plan, layer: int) -> Calls:
    """Returns the module calls of the forward of layer number `layer` (of the whole model, embedding 0), in order.

    A call is a tuple: indices, among the layer's tensors, of the parameters that the module holds itself; often empty.
    """
    kind = plan.graph.kinds[plan.graph.layers[layer].kind]
    if kind.block is not None:
        own = [tuple(number for number, p in enumerate(plan.of_layer(layer)) if not p.spec.is_buffer)]
        if isinstance(kind.block, Embedding):  # PEFT's model, the model, its inner model; the rotary embedding
            return [*_around(plan), (), (), *own, ()]
        return own if own[0] else []
    return [(), *(call for part in _parts(plan, layer) for call in part.forward())]


def backward_calls(plan: Plan, layer: int) -> tuple[Calls, Calls]:
    """Returns the module calls of a layer's backward: (until its recomputation is over, those after it).

    `layer`: its number in the whole model, embedding 0. The first list ends with the calls of the forward that runs
    again; without recomputation it is empty. A call is as in `forward_calls`.
    """
    kind = plan.graph.kinds[plan.graph.layers[layer].kind]
    if kind.block is not None:  # the model before its head, the inner model before its norm
        own = [call for call in forward_calls(plan, layer) if call]
        if isinstance(kind.block, Embedding):
            return [], own if asks_inputs(plan, layer + 1) else []
        return [], [*(_around(plan) if isinstance(kind.block, Head) else []), (), *own] if own else own
    backward: Calls = [()]
    for part in reversed(_parts(plan, layer, is_backward=True)):
        backward += part.backward()
    if plan.framework.checkpoint == "none":
        return [], backward
    first, last = replayed(plan, layer)
    return [*backward[:first], *forward_calls(plan, layer)[1:last]], backward[first:]


def _around(plan: Plan) -> Calls:
    """The model that PEFT puts around the model."""
    return [()] if any(t.module == "adapter" for specs in plan.graph.tensors for t in specs) else []


def replayed(plan: Plan, layer: int) -> tuple[int, int | None]:
    """Returns (number of a layer's backward calls before its recomputation, end of its slice of forward calls).

    The recomputation makes the calls `forward_calls(...)[1:end]`: end None for all of them, -1 for all but the last.
    `layer`: a transformer layer, by its number in the whole model.
    """
    part = _parts(plan, layer)[-1]
    if part.last.adapters:  # its module, and lora_B
        return 4, None
    return 3, -1 if _saves_nothing(plan, layer, part.last) else None


def released_after(plan: Plan, layer: int) -> int:
    """Returns the number of backward calls between a layer's recomputation and the release of frozen parameters.

    Those that the recomputation gathered are then released even if they are used again soon. DeepSpeed 0.19.6
    `partitioned_param_coordinator.py`, update_recompute_parameters: they belong to the module of which backward began
    last and is not over: the last linear, or, if that saves nothing, the container that it is in.
    """
    part = _parts(plan, layer, is_backward=True)[-1]
    if part.last.adapters or not _saves_nothing(plan, layer, part.last):
        return 0
    return len(part.inside) - 1


def _saves_nothing(plan: Plan, layer: int, linear: _Linear) -> bool:
    packed = plan.of_layer(layer)[linear.own[0]].policy.at_rest.packed
    return packed is not None and not packed.is_tensor


@dataclass(frozen=True, slots=True)
class _Linear:
    """Numbers of its parameters, of the adapter's two, if it has one, and of its magnitudes."""

    own: tuple[int, ...]
    adapters: tuple[tuple[int, ...], ...]
    magnitude: Calls = field(default_factory=list)

    def forward(self) -> Calls:
        return [self.adapters[0], self.own, (), *self.magnitude, *self.adapters] if self.adapters else [self.own]

    def backward(self) -> Calls:
        """In forward's order."""
        return [self.own, (), *self.adapters, self.adapters[0]] if self.adapters else [self.own]


@dataclass(frozen=True, slots=True)
class _Part:
    """A block: the norm before it, its container (with what it has itself: sinks, Mamba's vectors), what is inside.

    `before` is empty where another block stands behind the same norm already.
    """

    before: Calls
    container: tuple[int, ...]
    inside: Calls
    last: _Linear

    def forward(self) -> Calls:
        return [*self.before, self.container, *self.inside]

    def backward(self) -> Calls:
        return [self.container, *reversed(self.inside), *self.before]


def _parts(plan: Plan, layer: int, *, is_backward: bool = False) -> list[_Part]:
    """Blocks in forward's order. `is_backward`: what backward calls of them, in that order too."""
    named, parts = _by_module(plan, layer), list[_Part]()
    for number, (name, branch) in enumerate(_blocks(plan, layer)):
        linears = _linears(plan, layer, name)
        inside = [linear.backward() if is_backward else linear.forward() for linear in linears]
        if is_backward and number == 0 and not asks_inputs(plan, layer):
            inside[:-1] = [[*linear.adapters, *linear.adapters[:1]] for linear in linears[:-1]]
        if isinstance(branch.block, Mlp) or name != branch.name:
            inside.insert(1, [()])  # the activation of a gated MLP
        parts.append(_Part([named.get(branch.norm, ())] if name == branch.name else [], named.get(name, ()),
                           [call for calls in inside for call in calls], linears[-1]))
    return parts


def _blocks(plan: Plan, layer: int) -> Iterator[tuple[str, Branch]]:
    """Names of a layer's blocks, each with the branch that it is in."""
    has_beside = any(path.startswith(f"{_BESIDE}.") for path in _by_module(plan, layer))
    for branch in plan.graph.kinds[plan.graph.layers[layer].kind].branches:
        yield branch.name, branch
        if has_beside and isinstance(branch.block, Moe):
            yield _BESIDE, branch


def _linears(plan: Plan, layer: int, branch: str) -> list[_Linear]:
    """In the order of calls: queries and keys are normed as soon as they are there (5.23 `modeling_qwen3.py`:244)."""
    named = _by_module(plan, layer)
    paths = sorted((path for path in named if path.startswith(f"{branch}.")
                    and not path.endswith((*_ADAPTERS, _MAGNITUDE))),
                   key=lambda path: list(named).index(path.replace("q_norm", "q_proj").replace("k_norm", "k_proj")))
    return [_Linear(named[path], tuple(named[f"{path}{end}"] for end in _ADAPTERS if f"{path}{end}" in named),
                    [named[f"{path}{end}"] for end in (_MAGNITUDE,) if f"{path}{end}" in named])
            for path in paths]


def asks_inputs(plan: Plan, layer: int) -> bool:
    """True if backward computes gradients of the inputs of layer number `layer` (of the whole model, embedding 0).

    It does if layers of this rank before it are trained, or if the embedding's output requires a gradient.
    """
    return plan.framework.options.embeddings_require_grad or any(
        plan.of_layer(below).is_trained for below in plan.layers if below < layer)


def _by_module(plan: Plan, layer: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for number, placed in enumerate(plan.of_layer(layer)):
        if not placed.spec.is_buffer:
            path = placed.spec.name.rpartition(".")[0]
            found[path] = (*found.get(path, ()), number)
    return found


def readiness(plan: Plan, layer: int, *, weight_first: bool = False) -> Sequence[int]:
    """Returns the indices, among the layer's tensors, of its trained parameters in the order of their gradients.

    `layer`: its number in the whole model. The order is that in which autograd makes them.
    A linear's bias comes before its weight; with `weight_first`, for ZeRO-3's own linear (0.19.6
    `runtime/zero/linear.py`), after it.
    """
    placed = plan.of_layer(layer)
    return list(dict.fromkeys(number for call in reversed(forward_calls(plan, layer))
                              for number in (call if weight_first else call[::-1]) if placed[number].trainable))
