"""Units of plain FSDP2: one for each `fully_shard` call, root first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from simcore.frameworks.common.qlora import is_packed
from simcore.frameworks.fsdp2.pairs.reference import REFERENCE, reference_unit
from simcore.models.blocks import Embedding, FinalNorm, Head, Loss, Moe
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.models.vision_blocks import PARTS, TOWER_LAYERS
from simcore.placement.framework import Unit

__all__ = ["Wrapping", "units"]


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The parts of a model that `fully_shard` wraps as units, for one job, and how each reshards.

    Reshard policies, True, False or the ranks of a smaller group: `root`, `layers` and the `last` layer of each stage,
    `head` (with the norm), `experts` and `last_experts` of the last layer. `separate`: embedding and head are units,
    the root has no parameters. `loss_inside`: the root's hooks run around the loss too. `experts_unit`: experts are
    separate units; `experts_apart`: they belong to no other unit; `packed_apart`: weights in 4 bits belong to no unit.
    `replicates`: HSDP. `checkpointed`: layers are inside a checkpoint's wrapper. `joins_copies`: all experts of a layer
    are one tensor (KempnerForge, packed). `experts_axes`: mesh axes over which the experts' unit is cut and copied.
    `norm_in_root`: the last norm is the root's where the head is a unit. `embedding_apart`: the embedding alone is a
    unit beside the layers, and reshards as they do. `ties_again`: [Note: tied behind a plan].
    `head_rests`: [Note: a head read apart] in `pairs/rules.py`. `tower_layers`: layers of a vision tower are units, as
    those of the decoder are. `compute`, `reduce`: dtypes of gathered parameters and
    of reduced gradients.
    """

    root: bool | int
    layers: bool | int
    last: bool | int
    head: bool
    experts: bool | int
    separate: bool
    loss_inside: bool
    experts_unit: bool
    experts_apart: bool
    packed_apart: bool
    replicates: bool
    checkpointed: bool
    compute: str
    reduce: str
    joins_copies: bool = False
    last_experts: bool | int = True
    norm_in_root: bool = False
    ties_again: bool = False
    embedding_apart: bool = False
    experts_axes: tuple[str, str] = ("expert_dp", "")
    head_rests: bool = False
    tower_layers: bool = True


@lru_cache(maxsize=256)
def units(graph: ModelGraph, stages: tuple[tuple[int, ...], ...], wrapping: Wrapping) -> tuple[Unit, ...]:
    """Returns the units of every pipeline stage, stage by stage, each with a root, which comes first.

    `stages`: the layer numbers, in the whole model, of each stage; with several chunks a rank, of each chunk.
    """
    return tuple(unit for stage in stages for unit in _of_stage(graph, stage, wrapping))


def _of_stage(graph: ModelGraph, stage: tuple[int, ...], wrapping: Wrapping) -> list[Unit]:
    found = (_separate if wrapping.separate else _together)(graph, wrapping, stage)
    found = _with_tower_at_rest(graph, wrapping, stage, found) if graph.architecture.resting else found
    for layer in _around(graph, stage, *TOWER_LAYERS):  # _no_split_modules has them too (transformers 5.23 `models/`)
        found.append(_unit(graph, wrapping, graph.layers[layer].path, [layer], reshard=wrapping.layers, explicit=True))
    blocks = [layer for layer in stage if graph.kinds[graph.layers[layer].kind].block is None]
    for block in blocks:
        layer, experts = ((wrapping.last, wrapping.last_experts) if block == blocks[-1]
                          else (wrapping.layers, wrapping.experts))
        found.append(_unit(graph, wrapping, graph.layers[block].path, [block], reshard=layer, explicit=True))
        if wrapping.experts_unit and _moe_name(graph, block):
            found.append(_experts_unit(graph, wrapping, block, reshard=experts))
    return [*found, *reference_unit(graph, stage, _called(graph, wrapping, stage)[1], (wrapping.compute,
                                                                                     wrapping.reduce))]


def _with_tower_at_rest(graph: ModelGraph, wrapping: Wrapping, stage: tuple[int, ...], found: list[Unit]) -> list[Unit]:
    """The units, with a tower that is given no images: what is in none of its units is the root's, gathered with it.

    A unit of a layer that is never called is never gathered, and reduces nothing (torch 2.13 `_fsdp_state.py`).
    """
    root, front = found[0], stage[0]
    paths = [path for path, kind in graph.architecture.resting if wrapping.tower_layers
             and isinstance(kind.block, TOWER_LAYERS)]
    specs = graph.tensors[graph.layers[front].kind]
    at_rest = _numbers(graph, front, lambda t: t.rests and not _is_apart(wrapping, t))
    apart = {path: tuple(n for n in at_rest if specs[n].name.startswith(f"{path}.")) for path in paths}
    beside = {*at_rest}.difference(*apart.values()) | {n for layer, numbers in root.members if layer == front
                                                       for n in numbers}
    members = (*([(front, tuple(sorted(beside)))] if beside else []), *(m for m in root.members if m[0] != front))
    layers = (replace(_unit(graph, wrapping, path, [front], reshard=wrapping.layers), members=((front, numbers),),
                      rests=True) for path, numbers in apart.items())
    return [replace(root, members=members), *found[1:], *layers]


def _is_tower_layer(graph: ModelGraph, layer: int) -> bool:
    return isinstance(graph.kinds[graph.layers[layer].kind].block, TOWER_LAYERS)


def _around(graph: ModelGraph, stage: tuple[int, ...], *types: type) -> list[int]:
    """The stage's parts that are no blocks, of some types."""
    return [layer for layer in stage if isinstance(graph.kinds[graph.layers[layer].kind].block, types)]


def _together(graph: ModelGraph, wrapping: Wrapping, stage: tuple[int, ...]) -> list[Unit]:
    """The root has all that no layer, nor an embedding that is a unit, has."""
    if wrapping.norm_in_root:
        return _tied_tail(graph, wrapping, stage)
    tower = [layer for layer in _around(graph, stage, *PARTS) if not _is_tower_layer(graph, layer)]
    apart = _around(graph, stage, Embedding) if wrapping.embedding_apart else []
    around = sorted({*_around(graph, stage, Embedding, FinalNorm, Head, Loss), *tower} - {*apart})
    span = _called(graph, wrapping, stage)
    return [_unit(graph, wrapping, "root", around, reshard=wrapping.root, span=span, is_root=True),
            *(_unit(graph, wrapping, graph.layers[layer].path, [layer], reshard=wrapping.layers) for layer in apart)]


def _tied_tail(graph: ModelGraph, wrapping: Wrapping, stage: tuple[int, ...]) -> list[Unit]:
    """The root has the last norm alone; embedding and tied head are a unit that never reshards.

    Its hooks before backward run at the head's output, behind the loss (torch 2.13 `_fsdp_state.py`, _MultiHandler).
    """
    ends, called = _around(graph, stage, Embedding, Head), _called(graph, wrapping, stage)
    names = ", ".join(graph.layers[layer].path for layer in ends)
    return [_unit(graph, wrapping, "", _around(graph, stage, FinalNorm), reshard=False, span=called, is_root=True),
            _unit(graph, wrapping, names, ends, reshard=False, span=(called[0], ends[-1]))]


def _called(graph: ModelGraph, wrapping: Wrapping, stage: tuple[int, ...]) -> tuple[int, int]:
    """First and last layer of the stage that run inside the root's call: a trainer's loss comes behind it."""
    inside = stage if wrapping.loss_inside else [n for n in stage if n not in _around(graph, stage, Loss)]
    return stage[0], inside[-1]


def _separate(graph: ModelGraph, wrapping: Wrapping, stage: tuple[int, ...]) -> list[Unit]:
    if wrapping.ties_again:
        return _tied_again(graph, wrapping, stage)
    norm = _around(graph, stage, FinalNorm) if wrapping.norm_in_root else []
    embedding, end = _around(graph, stage, Embedding), [
        layer for layer in _around(graph, stage, FinalNorm, Head) if layer not in norm]
    found = [_unit(graph, wrapping, "", norm, reshard=False, span=_called(graph, wrapping, stage), is_root=True)]
    for layers, policy in ((embedding, wrapping.layers), (end, wrapping.head)):
        if layers:
            names = ", ".join(graph.layers[layer].path for layer in layers)
            made = _unit(graph, wrapping, names, layers, reshard=policy)
            found.append(replace(made, rests=wrapping.head_rests and layers is end))
    return found


def _tied_again(graph: ModelGraph, wrapping: Wrapping, stage: tuple[int, ...]) -> list[Unit]:
    """The head is the root's; embedding and last norm are a unit that never reshards."""
    ends = [*_around(graph, stage, Embedding), *_around(graph, stage, FinalNorm)]
    names = ", ".join(graph.layers[layer].path for layer in ends)
    return [_unit(graph, wrapping, "", _around(graph, stage, Head), reshard=False,
                  span=_called(graph, wrapping, stage), is_root=True),
            _unit(graph, wrapping, names, ends, reshard=False, span=(ends[0], ends[-1]))]


def _unit(graph: ModelGraph, wrapping: Wrapping, name: str, layers: list[int], *, reshard: bool | int,
          span: tuple[int, int] | None = None, is_root: bool = False, explicit: bool = False) -> Unit:
    """All tensors of `layers` but experts that are apart; `span`: first and last layer, if used beyond its own."""
    members = ((layer, _numbers(graph, layer, lambda t: not (t.rests or _is_apart(wrapping, t)),
                                tied=wrapping.ties_again)) for layer in layers)
    first, last = span or (layers[0], layers[-1])
    return Unit(name, tuple(m for m in members if m[1]), first, last, "dp_shard_cp",
                "dp_replicate" if wrapping.replicates else "", reshard, is_root=is_root, explicit=explicit,
                joins_copies=wrapping.joins_copies, param_dtype=wrapping.compute, reduce_dtype=wrapping.reduce,
                gather_dtype=wrapping.compute)


def _experts_unit(graph: ModelGraph, wrapping: Wrapping, layer: int, *, reshard: bool | int) -> Unit:
    inside = "._checkpoint_wrapped_module" if wrapping.checkpointed else ""
    name = f"{graph.layers[layer].path}{inside}.{_moe_name(graph, layer)}.experts"
    numbers = _numbers(graph, layer, _is_routed)
    return Unit(name, ((layer, numbers),) if numbers else (), layer, layer, *wrapping.experts_axes,
                reshard_after_forward=reshard, inner="experts", param_dtype=wrapping.compute,
                reduce_dtype=wrapping.reduce, gather_dtype=wrapping.compute)


def _is_apart(wrapping: Wrapping, spec: TensorSpec) -> bool:
    return (wrapping.experts_apart and _is_routed(spec)) or (wrapping.packed_apart and is_packed(spec))


def _is_routed(spec: TensorSpec) -> bool:
    return spec.component == "routed_experts"


def _numbers(graph: ModelGraph, layer: int, belongs: Callable[[TensorSpec], bool], *,
             tied: bool = False) -> tuple[int, ...]:
    specs = graph.tensors[graph.layers[layer].kind]
    return tuple(i for i, t in enumerate(specs)
                 if (t.is_owned or (t.tied and tied)) and t.component != REFERENCE and belongs(t))


def _moe_name(graph: ModelGraph, layer: int) -> str:
    """The module that holds a layer's experts, or nothing."""
    kind = graph.kinds[graph.layers[layer].kind]
    return next((branch.name for branch in kind.branches if isinstance(branch.block, Moe)), "")
