"""The order in which modules of transformers' layers are called, as ZeRO's hooks on modules see it.

A call is a tuple of references to the module's direct parameters (`module_units`); most containers and activations have
none. Backward runs in reverse, a container before what it holds. A checkpointed layer is replayed when the first of its
modules needs what it has saved: the last linear (torch 2.13 `utils/checkpoint.py`, use_reentrant=False). The layer
itself is not called again: its `forward` is checkpointed, within its hooks (transformers 5.23 `modeling_layers.py`);
Nemotron-3-Nano's repository checkpoints its `__call__`.
Of two blocks behind one norm (GraniteMoeHybrid's experts and the MLP beside them) the second comes first in backward:
autograd runs the latest node first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.frameworks.deepspeed.experts.layers import LAYERS, has_own_experts
from simcore.frameworks.deepspeed.module_units import (
    BLANK,
    LEAF_FAMILIES,
    Call,
    Calls,
    Chain,
    Container,
    Linear,
    Refs,
    Unit,
    of_autoep,
)
from simcore.frameworks.deepspeed.split.matrices import cut_of
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.frameworks.deepspeed.tower_order import tower_calls
from simcore.models.blocks import Attention, Branch, Embedding, Head, Mlp, Moe
from simcore.models.graph import ModelGraph
from simcore.models.vision_blocks import VisionPart
from simcore.operators.hf.remote_code import LINEARS
from simcore.placement.plan import Placed, Plan

__all__ = ["asks_inputs", "backward_calls", "forward_calls", "readiness", "released_after", "replayed"]

_ADAPTERS: Final = (".lora_a", ".lora_b")
_MAGNITUDE: Final = ".lora_magnitude_vector"
_BESIDE: Final = "shared_mlp"
"""Module of GraniteMoeHybrid's shared MLP, no part of the experts' module (`modeling_granitemoehybrid.py`:1001)."""
_MODEL: Final = Call(is_model=True)


def forward_calls(plan: Plan, layer: int) -> Calls:
    """Returns the module calls of the forward of layer number `layer` (of the whole model, embedding 0), in order.

    A call is a tuple of references to the parameters that the module holds itself; often empty.
    """
    return list(_forward_of(plan, _first_alike(plan, layer)))


@lru_cache(maxsize=256)
def _forward_of(plan: Plan, layer: int) -> tuple[Call, ...]:
    """Calls of a layer's forward, made once for all layers of its kind."""
    kind = plan.graph.kinds[plan.graph.layers[layer].kind]
    everything = tuple((number, 0) for number, p in enumerate(plan.of_layer(layer)) if not p.spec.is_buffer)
    if isinstance(kind.block, Embedding):  # PEFT's model, the model, its inner model; the rotary embedding
        rotary = _has_rotary_embedding(plan) and not kind.block.tower  # behind a tower it is called there
        return (*_around(plan), _model(plan), _MODEL, Call(everything, everything), *[Call()] * rotary)
    if isinstance(kind.block, VisionPart):
        return tower_calls(plan, layer)
    if kind.block is not None:
        return (Call(everything, everything),) if everything else ()
    return (_whole(plan, layer), *(call for part in _parts(plan, layer) for call in part.forward()))


def _model(plan: Plan) -> Call:
    """The call of the model that holds the head."""
    return Call(is_model=True, reads_head=LAYERS[plan.graph.implementation].reads_head)


def _whole(plan: Plan, layer: int) -> Call:
    """The call of the layer itself."""
    return Call((), tuple((number, expert) for number, placed in enumerate(plan.of_layer(layer))
                          if not placed.spec.is_buffer for expert in range(placed.used_copies)))


def _has_rotary_embedding(plan: Plan) -> bool:
    """False for models whose attention has no positions: they have no module that makes them."""
    blocks = [branch.block for kind in plan.graph.kinds for branch in kind.branches]
    attention = [block for block in blocks if isinstance(block, Attention)]
    return not attention or any(block.rotary for block in attention)


def backward_calls(plan: Plan, layer: int) -> tuple[Calls, Calls]:
    """Returns the module calls of a layer's backward: (until its recomputation is over, those after it).

    `layer`: its number in the whole model, embedding 0. The first list ends with the calls of the forward that runs
    again; without recomputation it is empty. A call is as in `forward_calls`.
    """
    kind = plan.graph.kinds[plan.graph.layers[layer].kind]
    if isinstance(kind.block, VisionPart):
        return [], []  # frozen, see `table.py`
    if kind.block is not None:  # the model before its head, the inner model before its norm
        own = [call for call in forward_calls(plan, layer) if call.own]
        if isinstance(kind.block, Embedding):
            return [], own if asks_inputs(plan, layer + 1) else []
        inner = [_MODEL] * (1 + plan.graph.architecture.has_tower)
        outer = [*_around(plan), _model(plan)] if isinstance(kind.block, Head) else inner
        return [], [*outer, *own] if own else own
    before, after = _backward_of(plan, _first_alike(plan, layer), has_input_grad=asks_inputs(plan, layer))
    return list(before), list(after)


@lru_cache(maxsize=256)
def _backward_of(plan: Plan, layer: int, *, has_input_grad: bool) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    """`backward_calls` of a transformer layer, made once for all of its kind with (without) a gradient of the input."""
    if not (plan.of_layer(layer).is_trained or has_input_grad):
        return (), ()
    backward: Calls = [_whole(plan, layer)]
    for part in reversed(_parts_of(plan, layer, has_input_grad=has_input_grad)):
        backward += part.backward()
    if plan.framework.checkpoint == "none":
        return (), tuple(backward)
    first, last = replayed(plan, layer)
    is_called_again = LAYERS[plan.graph.implementation].replays_layers
    before, again = backward[:first], forward_calls(plan, layer)[not is_called_again:last]
    if last is None:  # torch stops inside the module whose backward asked, which is over when that backward is
        is_same = again[-1].own == before[-1].own
        again[-1] = replace(again[-1], released=before[-1].released if is_same else again[-1].own)
        before[-1] = replace(before[-1], released=())
    return (*before, *again), tuple(backward[first:])


def _around(plan: Plan) -> Calls:
    """The model that PEFT puts around the model."""
    return [_MODEL] if any(t.module == "adapter" for specs in plan.graph.tensors for t in specs) else []


def replayed(plan: Plan, layer: int) -> tuple[int, int | None]:
    """Returns (number of a layer's backward calls before its recomputation, end of its slice of forward calls).

    The recomputation makes the calls of `forward_calls` up to that end: None for all of them, -1 for all but the last.
    `layer`: a transformer layer, by its number in the whole model.
    """
    part = _parts(plan, layer)[-1]
    opened = 1 + sum(container.outputs for container in part.opened())  # the layer, containers from the outside in
    last = part.last()
    if last is None:
        return opened, None
    if last.adapters:  # its module, and lora_B or that of the magnitudes
        return opened + 2, None
    if _saves_nothing(plan, layer, last):
        return opened + 1 + part.acts_last, -1
    return opened + 1, None


def released_after(plan: Plan, layer: int) -> int:
    """Returns the number of backward calls between a layer's recomputation and the release of frozen parameters.

    Those that the recomputation gathered are then released even if they are used again soon. DeepSpeed 0.19.6
    `partitioned_param_coordinator.py`, update_recompute_parameters: they belong to the module of which backward began
    last and is not over: the last linear, or, if that saves nothing, the activation before it or the container.
    """
    part = _parts(plan, layer)[-1]
    last = part.last()
    if last is not None and last.magnitude:  # lora_B and lora_A run within the module that asked
        return 2
    if last is None or last.adapters or part.acts_last or not _saves_nothing(plan, layer, last):
        return 0
    return len(part.opened()[-1].backward()) - 2


def _saves_nothing(plan: Plan, layer: int, linear: Linear) -> bool:
    packed = plan.of_layer(layer)[linear.own[0][0]].policy.at_rest.packed
    return packed is not None and not packed.is_tensor


@dataclass(frozen=True, slots=True)
class _Part:
    """A block: the norm before it, its module (with what that has itself: sinks, Mamba's vectors).

    `before` is empty where another block stands behind the same norm already. `acts_last`: the activation is a module
    of which the last linear takes the output as it is. `has_input_grad`: the block's input needs a gradient. `joins`:
    the last unit takes what the others have made, and not the block's input.
    """

    before: Calls
    block: Container
    acts_last: bool = False
    has_input_grad: bool = True
    joins: bool = True

    def forward(self) -> Calls:
        return [*self.before, *self.block.forward()]

    def backward(self) -> Calls:
        if self.has_input_grad:
            return [*reversed(self.block.backward()), *self.before]
        *first, last = self.block.units
        inside = [call for unit in first for call in unit.without_input_grad()]
        inside += last.backward() if self.joins else last.without_input_grad()
        return [self.block.opening(), *reversed(inside)]  # the norm before it is frozen, as all before it is

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


def _parts(plan: Plan, layer: int) -> tuple[_Part, ...]:
    """Blocks in forward's order."""
    return _parts_of(plan, _first_alike(plan, layer), has_input_grad=asks_inputs(plan, layer))


@lru_cache(maxsize=256)
def _parts_of(plan: Plan, layer: int, *, has_input_grad: bool) -> tuple[_Part, ...]:
    """Blocks of a layer, made once for all layers of its kind. `has_input_grad`: the layer's input needs a gradient."""
    named, parts = _by_module(plan, layer), list[_Part]()
    kind = plan.graph.kinds[plan.graph.layers[layer].kind]
    if kind.beside or kind.paired:
        raise NotYet(Problem("model", f"not yet: attention and {'MLP' if kind.beside else 'a mixer'} beside each other "
                             "under DeepSpeed, whose hooks follow the order of modules; placement is served"))
    for number, (name, branch) in enumerate(_blocks(plan, layer)):
        if branch.behind:
            raise NotYet(Problem("model", f"not yet: norms behind blocks ({branch.behind}) under DeepSpeed, whose "
                                 "hooks follow the order of modules; placement is served"))
        norm = named.get(branch.norm, ())
        before = [Call(norm, norm)] if name == branch.name else []
        if isinstance(branch.block, Moe) and _is_leaf(plan, layer):
            leaf, trains = _in_order(plan, layer, name), plan.of_layer(layer)
            outputs = LAYERS[plan.graph.implementation].moe_outputs if any(
                trains[number].trainable for number, _ in leaf) else 1
            parts.append(_Part(before, Container(outputs=outputs, leaf=leaf)))
            continue
        acts_last = isinstance(branch.block, Mlp | Moe) and not branch.block.gated
        units = tuple(_inside(plan, layer, name, branch))
        combines = isinstance(branch.block, Moe) and has_own_experts(plan.graph)
        parts.append(_Part(before, Container(named.get(name, ()), units, combines=combines), acts_last,
                           number > 0 or has_input_grad, joins=not isinstance(units[-1], Container)))
    return tuple(parts)


def _first_alike(plan: Plan, layer: int) -> int:
    """Number of the model's first layer of the same kind, whose tensors have the same places."""
    return _first_layers(plan.graph)[plan.graph.layers[layer].kind]


@lru_cache(maxsize=16)
def _first_layers(graph: ModelGraph) -> dict[int, int]:
    """Number of the first layer of each kind."""
    return {one.kind: number for number, one in reversed(list(enumerate(graph.layers)))}


def _is_leaf(plan: Plan, layer: int) -> bool:
    """True if the layer's block of experts has hooks and what is inside has none: [Note: leaf modules]."""
    if has_own_experts(plan.graph) or plan.framework.strategy_as(ZeroStrategy).stage < 3:
        return False
    return plan.graph.kinds[plan.graph.layers[layer].kind].family in LEAF_FAMILIES


def _blocks(plan: Plan, layer: int) -> Iterator[tuple[str, Branch]]:
    """Names of a layer's blocks, each with the branch that it is in."""
    has_beside = any(path.startswith(f"{_BESIDE}.") for path in _by_module(plan, layer))
    for branch in plan.graph.kinds[plan.graph.layers[layer].kind].branches:
        yield branch.name, branch
        if has_beside and isinstance(branch.block, Moe):
            yield _BESIDE, branch


# ---- modules of a block ---------------------------------------------------------------------------------------------
def _inside(plan: Plan, layer: int, name: str, branch: Branch) -> list[Unit]:
    """Modules inside a block, in the order of calls."""
    linears = _linears(plan, layer, name)
    if any(plan.of_layer(layer)[linear.own[0][0]].spec.copies > 1 for linear in linears.values()):
        return _with_experts(plan, layer, linears)
    if has_own_experts(plan.graph) and isinstance(branch.block, Moe):
        return of_autoep(linears)
    inside = _with_norms(linears)
    if isinstance(branch.block, Mlp) or name != branch.name:
        inside.insert(1, BLANK)  # the activation of a gated MLP
    return inside


def _with_norms(linears: dict[str, Linear]) -> list[Unit]:
    """Linears, and queries or keys together with the norm of theirs."""
    norms = {path.replace("_norm", "_proj"): path for path in linears if path.endswith((".q_norm", ".k_norm"))}
    return [Chain((linear, linears[norms[path]])) if path in norms else linear
            for path, linear in linears.items() if path not in norms.values()]


def _with_experts(plan: Plan, layer: int, linears: dict[str, Linear]) -> list[Unit]:
    """Router, experts one after the other, shared expert: each expert a container of two or three linears."""
    of = plan.of_layer(layer)
    family = plan.graph.kinds[plan.graph.layers[layer].kind].family
    paths = [path for path, linear in linears.items() if of[linear.own[0][0]].spec.copies > 1]
    if family in LINEARS:  # Mixtral registers them in another order
        paths.sort(key=lambda path: LINEARS[family].index(path.rpartition(".")[2]))
    routed = [linears[path] for path in paths]
    others = {path: linear for path, linear in linears.items() if path not in paths}
    shared = [linear for path, linear in others.items() if path.count(".") > 1]
    router = [linear for linear in others.values() if linear not in shared]
    experts = [[_of_expert(linear, number) for linear in routed]
               for number in range(of[routed[0].own[0][0]].used_copies)]
    modules = [*experts, *([shared] if shared else [])]
    return [*router, *(Container((), (first, BLANK, *rest)) for first, *rest in modules)]


def _of_expert(linear: Linear, expert: int) -> Linear:
    def of(refs: Refs) -> Refs:
        return tuple((number, expert) for number, _ in refs)

    return replace(linear, own=of(linear.own), adapters=tuple(map(of, linear.adapters)),
                   magnitude=of(linear.magnitude))


def _linears(plan: Plan, layer: int, branch: str) -> dict[str, Linear]:
    """In the order of calls: queries and keys are normed as soon as they are there (5.23 `modeling_qwen3.py`:244).

    Hunyuan's are normed behind their rotation, before the output projection (`modeling_hunyuan_v1_dense.py`).
    """
    named = _by_module(plan, layer)
    paths = sorted((path for path in named if path.startswith(f"{branch}.")
                    and not path.endswith((*_ADAPTERS, _MAGNITUDE))),
                   key=lambda path: _place(list(named), path))
    drops = bool(plan.framework.options.lora_dropout)
    return {path: Linear(named[path], tuple(named[f"{path}{end}"] for end in _ADAPTERS if f"{path}{end}" in named),
                         named.get(f"{path}{_MAGNITUDE}", ()), drops) for path in paths}


def _place(named: Sequence[str], path: str) -> float:
    """Place of a module among the calls of its block, where that is not the one of its registration."""
    module, _, name = path.rpartition(".")
    if name in ("query_layernorm", "key_layernorm"):
        return named.index(f"{module}.o_proj") - 0.5
    return named.index(path.replace("q_norm", "q_proj").replace("k_norm", "k_proj"))


def _in_order(plan: Plan, layer: int, branch: str) -> Refs:
    """All parameters inside a block in the order of registration: those of an expert together, adapters by linears."""
    of, named = plan.of_layer(layer), _by_module(plan, layer)
    paths = [path for path in named if path == branch or path.startswith(f"{branch}.")]
    bases = [path for path in paths if not path.endswith((*_ADAPTERS, _MAGNITUDE))]
    first = next((at for at, path in enumerate(bases) if of[named[path][0][0]].spec.copies > 1), 0)
    places = dict[tuple[int, int], tuple[int, int, int, int]]()
    for path in paths:
        at = bases.index(path if path in bases else path.rpartition(".")[0])
        for number, _ in named[path]:
            copies = of[number].used_copies
            places |= {(number, expert): (first if copies > 1 else at, expert, at, number) for expert in range(copies)}
    return tuple(sorted(places, key=places.__getitem__))


def asks_inputs(plan: Plan, layer: int) -> bool:
    """True if backward computes gradients of the inputs of layer number `layer` (of the whole model, embedding 0).

    It does if layers of this rank before it are trained, or if the embedding's output requires a gradient.
    """
    return plan.framework.options.embeddings_require_grad or any(
        plan.of_layer(below).is_trained for below in plan.layers if below < layer)


def _by_module(plan: Plan, layer: int) -> Mapping[str, Refs]:
    """Parameters of each module that has some itself, by its path in the layer."""
    found: dict[str, Refs] = {}
    for number, placed in enumerate(plan.of_layer(layer)):
        if not placed.spec.is_buffer:
            path = placed.spec.name.rpartition(".")[0]
            found[path] = (*found.get(path, ()), (number, 0))
    return found


def readiness(plan: Plan, layer: int, *, weight_first: bool = False) -> Sequence[tuple[int, int]]:
    """Returns the layer's trained parameters, (index among its tensors, expert) each, in the order of their gradients.

    `layer`: its number in the whole model. The order is that in which autograd makes them.
    A linear's bias comes before its weight; with `weight_first`, for ZeRO-3's own linear (0.19.6
    `runtime/zero/linear.py`), after it. AutoTP's linears, whose bias is a sum, are not ZeRO-3's own.
    """
    placed = plan.of_layer(layer)
    refs = (ref for call in reversed(forward_calls(plan, layer)) for ref in (
        call.needed if weight_first and not _is_autotps(plan, placed, call) else call.needed[::-1]))
    return list(dict.fromkeys(ref for ref in refs if placed[ref[0]].trainable))


def _is_autotps(plan: Plan, placed: Sequence[Placed], call: Call) -> bool:
    """True for a call of a linear that AutoTP has replaced."""
    return plan.mesh.tp > 1 and any(cut_of(placed[number].spec) for number, _ in call.needed)
