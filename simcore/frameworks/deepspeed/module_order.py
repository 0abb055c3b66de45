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
from dataclasses import replace
from functools import lru_cache
from typing import Final

from simcore.frameworks.deepspeed.block_order import (
    FIRST_PRODUCT,
    Part,
    beside_mlp,
    place_of,
    read_by_kernel,
    refuse_further,
    with_activation,
    with_experts,
    with_norms,
)
from simcore.frameworks.deepspeed.experts.layers import LAYERS, has_own_experts
from simcore.frameworks.deepspeed.module_units import (
    LEAF_FAMILIES,
    Call,
    Calls,
    Container,
    Linear,
    Refs,
    Unit,
    backward_of,
    of_autoep,
)
from simcore.frameworks.deepspeed.split.matrices import cut_of
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.frameworks.deepspeed.tower_order import tower_calls
from simcore.models.blocks import Attention, Branch, Embedding, Head, LatentAttention, Mamba2, Mlp, Moe
from simcore.models.graph import ModelGraph
from simcore.models.vision_blocks import VisionPart
from simcore.placement.plan import Placed, Plan

__all__ = ["asks_inputs", "backward_calls", "forward_calls", "readiness", "released_after", "replayed"]

_ADAPTERS: Final = (".lora_a", ".lora_b")
_MAGNITUDE: Final = ".lora_magnitude_vector"
_BESIDE: Final = "shared_mlp"
"""Module of GraniteMoeHybrid's shared MLP, no part of the experts' module (`modeling_granitemoehybrid.py`:1001)."""
_ROUTER: Final = "router"
"""Module of Gemma 4's router, no part of the experts' module (`modeling_gemma4.py`:1366)."""
_BY_PLACE: Final = ("nemotron_h", "mamba2")
"""Families that call their mixers with inputs that have no name."""
_MODEL: Final = Call(is_model=True)
_BY_WINDOW: Final = ("gemma3_text", "gemma4_text", "olmo3")
"""Families with rotary tables for layers with a window and others for those without (5.23 `modeling_gemma3.py`:549)."""


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
        rotary = 0 if kind.block.tower else _rotary_calls(plan)  # behind a tower it is called there
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


def _rotary_calls(plan: Plan) -> int:
    """Calls of the module that makes rotary tables: none without positions, else one, or one for each kind of them."""
    blocks = [branch.block for kind in plan.graph.kinds for branch in kind.branches]
    attention = [block for block in blocks if isinstance(block, Attention)]
    if not any(block.rotary for block in attention) and not any(isinstance(block, LatentAttention) for block in blocks):
        return 0
    return len({block.window > 0 for block in attention}) if plan.graph.architecture.family in _BY_WINDOW else 1


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
    is_scaled = plan.graph.kinds[plan.graph.layers[layer].kind].scales_output
    if part.behind or is_scaled:  # the last norm asks, or the layer itself for the number that multiplies its output
        return 1 + (not is_scaled), None
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
    last and is not over: the last linear, or, if that saves nothing, the activation before it or the container; a mixer
    behind whose first product a kernel runs; the layer, whose output a number multiplies.
    """
    if plan.graph.kinds[plan.graph.layers[layer].kind].scales_output:
        return len(backward_calls(plan, layer)[1])
    part = _parts(plan, layer)[-1]
    last = part.last()
    if part.behind:
        return 0
    if part.block.combines:
        return len(backward_of(part.block.units))
    if last is not None and last.magnitude:  # lora_B and lora_A run within the module that asked
        return 2
    if last is None or last.adapters or part.acts_last or not _saves_nothing(plan, layer, last):
        return 0
    return len(part.opened()[-1].backward()) - 2


def _saves_nothing(plan: Plan, layer: int, linear: Linear) -> bool:
    packed = plan.of_layer(layer)[linear.own[0][0]].policy.at_rest.packed
    return packed is not None and not packed.is_tensor


def _parts(plan: Plan, layer: int) -> tuple[Part, ...]:
    """Blocks in forward's order."""
    return _parts_of(plan, _first_alike(plan, layer), has_input_grad=asks_inputs(plan, layer))


@lru_cache(maxsize=256)
def _parts_of(plan: Plan, layer: int, *, has_input_grad: bool) -> tuple[Part, ...]:
    """Blocks of a layer, made once for all layers of its kind. `has_input_grad`: the layer's input needs a gradient."""
    kind, parts = plan.graph.kinds[plan.graph.layers[layer].kind], list[Part]()
    refuse_further(kind)
    shared = len(kind.branches) if kind.beside else 2 * kind.paired
    reached = has_input_grad
    for number, (name, branch) in enumerate(_blocks(plan, layer)):
        has_norm = name == branch.name and not 0 < number < shared
        part = _part_of(plan, layer, name, branch, has_norm=has_norm)
        reached = reached or _trains(plan, layer, part.before)
        parts.append(replace(part, has_input_grad=reached))
        if number + 1 >= shared and not (kind.joined and number):  # what it adds is an input of the next one
            reached = reached or any(_trains(plan, layer, one.forward()) for one in parts)
    return (*parts, *_joining(plan, layer, parts))


def _joining(plan: Plan, layer: int, parts: Sequence[Part]) -> list[Part]:
    """The norm of the sum of the last two branches, where they are joined."""
    refs = _by_module(plan, layer).get(plan.graph.kinds[plan.graph.layers[layer].kind].joined, ())
    return [Part([], Container(refs), [])] if refs and parts else []


def _part_of(plan: Plan, layer: int, name: str, branch: Branch, *, has_norm: bool) -> Part:
    named, kind = _by_module(plan, layer), plan.graph.kinds[plan.graph.layers[layer].kind]
    before, behind = _call_of(named, branch.norm) if has_norm else [], _call_of(named, branch.behind)
    if isinstance(branch.block, Moe) and _is_leaf(plan, layer):
        leaf = _in_order(plan, layer, name)
        outputs = LAYERS[plan.graph.implementation].moe_outputs if _trains(plan, layer, [Call(leaf)]) else 1
        return Part(before, Container(outputs=outputs, leaf=leaf), behind)
    if kind.joined and isinstance(branch.block, Moe):
        return Part(before, _beside_mlp(plan, layer, name), [] if name == _ROUTER else behind)
    units = tuple(_inside(plan, layer, name, branch))
    read, ready = read_by_kernel(branch, _linears(plan, layer, name), {
        placed.spec.name: (number, 0) for number, placed in enumerate(plan.of_layer(layer))})
    combines = isinstance(branch.block, Mamba2) or (isinstance(branch.block, Moe) and has_own_experts(plan.graph))
    block = Container((*named.get(name, ()), *read), units, combines=combines, by_name=kind.family not in _BY_PLACE,
                      ready=ready)
    return Part(before, block, behind, isinstance(branch.block, Mlp | Moe) and not branch.block.gated,
                 joins=not isinstance(units[-1], Container))


def _beside_mlp(plan: Plan, layer: int, name: str) -> Container:
    """Gemma 4's router, the gradient of whose last factor comes before its linear's, or experts, the last first."""
    own = _by_module(plan, layer)[name]
    ready = own[1:] if name == _ROUTER else own[::-1]
    return Container(own, tuple(beside_mlp(_linears(plan, layer, name))), ready=ready)


def _trains(plan: Plan, layer: int, calls: Calls) -> bool:
    """True if any parameter that the calls gather is trained."""
    placed = plan.of_layer(layer)
    return any(placed[number].trainable for call in calls for number, _ in call.needed)


def _call_of(named: Mapping[str, Refs], norm: str) -> Calls:
    """The call of a norm, none where there is no norm."""
    refs = named.get(norm, ())
    return [Call(refs, refs)] if norm else []


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
    kind = plan.graph.kinds[plan.graph.layers[layer].kind]
    for branch in kind.branches:
        if kind.joined and isinstance(branch.block, Moe):
            yield _ROUTER, branch
        yield branch.name, branch
        if has_beside and isinstance(branch.block, Moe):
            yield _BESIDE, branch


# ---- modules of a block ---------------------------------------------------------------------------------------------
def _inside(plan: Plan, layer: int, name: str, branch: Branch) -> list[Unit]:
    """Modules inside a block, in the order of calls."""
    linears = _linears(plan, layer, name)
    family, placed = plan.graph.kinds[plan.graph.layers[layer].kind].family, plan.of_layer(layer)
    experts = {path: one.used_copies for path, linear in linears.items()
               if (one := placed[linear.own[0][0]]).spec.copies > 1}
    if experts:
        return with_experts(linears, experts, family)
    if has_own_experts(plan.graph) and isinstance(branch.block, Moe):
        return of_autoep(linears)
    if isinstance(branch.block, Mamba2):
        return [linear for path, linear in linears.items() if path.endswith(FIRST_PRODUCT)]
    inside = with_norms(linears, branch.block, family)
    return with_activation(inside, family) if isinstance(branch.block, Mlp) or name != branch.name else inside


def _linears(plan: Plan, layer: int, branch: str) -> dict[str, Linear]:
    """Linears of a block, and norms of their outputs, in the order of calls."""
    named, family = _by_module(plan, layer), plan.graph.kinds[plan.graph.layers[layer].kind].family
    paths = sorted((path for path in named if path.startswith(f"{branch}.")
                    and not path.endswith((*_ADAPTERS, _MAGNITUDE))),
                   key=lambda path: place_of(list(named), path, family))
    drops = bool(plan.framework.options.lora_dropout)
    return {path: Linear(named[path], tuple(named[f"{path}{end}"] for end in _ADAPTERS if f"{path}{end}" in named),
                         named.get(f"{path}{_MAGNITUDE}", ()), drops) for path in paths}


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
    refs = (ref for call in reversed(forward_calls(plan, layer)) for ref in (*call.ready, *(
        call.needed if weight_first and not _is_autotps(plan, placed, call) else call.needed[::-1])))
    return list(dict.fromkeys(ref for ref in refs if placed[ref[0]].trainable))


def _is_autotps(plan: Plan, placed: Sequence[Placed], call: Call) -> bool:
    """True for a call of a linear that AutoTP has replaced."""
    return plan.mesh.tp > 1 and any(cut_of(placed[number].spec) for number, _ in call.needed)
