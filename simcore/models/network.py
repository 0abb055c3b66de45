"""The network of a model: layers as nodes, and edges that say what passes between them and what weights they share.

A node is the module path of a layer, with the number of its `kind`. Edges of `weights` name tensors in pairs: (name in
the layer that the edge leaves, name in the layer to which it leads). Networks are frozen: a changed one is a copy.
networkx is imported only in this module, and only when a model is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from simcore.models.blocks import Head, LayerKind, Mtp, SharedTransformer
from simcore.models.tensor import TensorSpec
from simcore.models.vision_blocks import TowerEnd

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["BORROWED", "DATA", "Edge", "Network", "borrowed", "connect", "edges", "renumbered", "running_order",
           "with_copies"]

Network: TypeAlias = "nx.MultiDiGraph[str]"
Weights = tuple[tuple[str, str], ...]
_HEAD: Final = "lm_head.weight"
"""The output projection's weight, where a module of multi-token prediction uses it itself."""
_Edge: TypeAlias = "tuple[str, str, Edge, Weights]"


class Edge(StrEnum):
    """Kind of an edge between two layers, and its key in the network.

    FLOW: hidden states go to the next layer. RESIDUAL: an output passes layers by and is used again (the embedding's,
    by each shared transformer of Zamba2, or behind a vision tower). BRANCH: into a module of multi-token prediction,
    and from it to the head. TIED: the second layer uses a weight of the first. SHARED: it uses all weights of a block
    of the first. COPY: it holds a copy of the weight on another pipeline stage; gradients of all copies are summed.
    """

    FLOW = "flow"
    RESIDUAL = "residual"
    BRANCH = "branch"
    TIED = "tied"
    SHARED = "shared"
    COPY = "copy"


DATA: Final = frozenset({Edge.FLOW, Edge.RESIDUAL, Edge.BRANCH})
"""Edges that carry activations: they order the layers."""
BORROWED: Final = frozenset({Edge.TIED, Edge.SHARED})
"""Edges to a layer whose weights are another layer's storage."""


def connect(parts: Sequence[tuple[str, LayerKind]], tensors: Mapping[LayerKind, Sequence[TensorSpec]], *,
            predicts_last: bool = False) -> Network:
    """Network of a model's layers: a node for each (module path, kind) of `parts`, given in running order.

    `tensors`: tensors of each kind, between which edges of shared weights are found. A node stores the number of its
    kind; kinds are numbered in order of first appearance. `predicts_last`: modules of multi-token prediction, which
    otherwise stand before the head, stand behind it and run it themselves.
    """
    import networkx as nx


    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kind for _, kind in parts))}
    if predicts_last:
        parts = _behind_head(parts)
    network: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for path, kind in parts:
        network.add_node(path, kind=numbers[kind])
    assert len(network) == len(parts), "two layers of one path"
    _add(network, _data(parts))
    _add(network, _weights(parts, tensors))
    return _frozen(network)


def _behind_head(parts: Sequence[tuple[str, LayerKind]]) -> list[tuple[str, LayerKind]]:
    further = [part for part in parts if isinstance(part[1].block, Mtp)]
    rest = [part for part in parts if part not in further]
    at = 1 + next(place for place, (_, kind) in enumerate(rest) if isinstance(kind.block, Head))
    return [*rest[:at], *further, *rest[at:]]


def _add(network: Network, found: Iterable[_Edge]) -> None:
    for first, second, kind, weights in found:
        network.add_edge(first, second, key=kind, weights=weights)


def _frozen(network: Network) -> Network:
    import networkx as nx

    frozen: Network = nx.freeze(network)
    return frozen


def _data(parts: Sequence[tuple[str, LayerKind]]) -> Iterator[_Edge]:
    """The decoder's output goes to the head, and through each module of multi-token prediction to what follows it."""
    chain = [path for path, kind in parts if not isinstance(kind.block, Mtp)]
    further = [path for path, kind in parts if isinstance(kind.block, Mtp)]
    yield from ((first, second, Edge.FLOW, ()) for first, second in pairwise(chain))
    if further:
        paths = [path for path, _ in parts]
        begin = paths.index(further[0])
        for before, path in pairwise(paths[begin - 1:begin + len(further)]):
            yield before, path, Edge.BRANCH, ()
            yield path, paths[begin + len(further)], Edge.BRANCH, ()
    yield from ((chain[0], path, Edge.RESIDUAL, ()) for path, kind in parts
                if kind.shared is not None or isinstance(kind.block, TowerEnd))


def _weights(parts: Sequence[tuple[str, LayerKind]],
             tensors: Mapping[LayerKind, Sequence[TensorSpec]]) -> Iterator[_Edge]:
    """A tied head and multi-token prediction use the embedding's table; the first layer of a shared block owns it."""
    stem, embedding = parts[0]
    owners: dict[SharedTransformer, str] = {}
    for path, kind in parts:
        if isinstance(kind.block, Mtp) or (isinstance(kind.block, Head) and kind.block.tied):
            pairs = tuple((own.name, spec.name) for own in tensors[embedding] for spec in tensors[kind]
                          if own.dims == spec.dims and spec.dims[:1] == ("vocab",)
                          and not (isinstance(kind.block, Mtp) and spec.name == _HEAD))
            yield stem, path, Edge.TIED, pairs
        if isinstance(kind.block, Mtp):
            yield from ((own, path, Edge.TIED, ((_HEAD, _HEAD),)) for own, other in parts
                        if isinstance(other.block, Head) and _HEAD in [spec.name for spec in tensors[kind]])
        if kind.shared is not None and (owner := owners.setdefault(kind.shared, path)) != path:
            inside = f"{kind.shared.name}."
            yield owner, path, Edge.SHARED, tuple((spec.name, spec.name) for spec in tensors[kind]
                                                  if spec.name.startswith(inside))


# ---- what is read from edges ----------------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def running_order(network: Network) -> tuple[str, ...]:
    """Module paths of all layers in the order in which data reaches them.

    ValueError if the edges do not give exactly one order.
    """
    import networkx as nx

    flow: nx.DiGraph[str] = nx.DiGraph()
    flow.add_nodes_from(network)
    flow.add_edges_from((first, second) for first, second, kind in network.edges(keys=True) if kind in DATA)
    try:
        order = tuple(nx.topological_sort(flow))
    except nx.NetworkXUnfeasible:
        raise ValueError("data flows between layers in a circle") from None
    for first, second in pairwise(order):
        if not flow.has_edge(first, second):
            raise ValueError(f"data flow does not say which of {first} and {second} runs first")
    return order


def edges(network: Network) -> Iterable[_Edge]:
    """All edges of the network in no set order, as (path of the first layer, path of the second, kind, weights).

    Weights are pairs of tensor names that share storage: (name in the first layer, name in the second).
    """
    found: Iterable[_Edge] = network.edges(keys=True, data="weights")
    return found


def borrowed(network: Network, path: str) -> frozenset[str]:
    """Names of the tensors of the layer at `path` whose storage belongs to another layer."""
    found: Iterable[_Edge] = network.in_edges(path, keys=True, data="weights")
    return frozenset(name for _, _, kind, weights in found if kind in BORROWED for _, name in weights)


# ---- changed networks -----------------------------------------------------------------------------------------------
def renumbered(network: Network, numbers: Mapping[str, int]) -> Network:
    """Network with the same layers and edges; `numbers`: new number of a layer's kind, by its module path."""
    import networkx as nx

    if all(network.nodes[path]["kind"] == number for path, number in numbers.items()):
        return network
    changed: Network = nx.MultiDiGraph(network)
    nx.set_node_attributes(changed, numbers, "kind")
    return _frozen(changed)


def untied(network: Network) -> Network:
    """Copy of the network in which no weight is tied (`Edge.TIED`): every layer has its own."""
    import networkx as nx

    changed: Network = nx.MultiDiGraph(network)
    for first, second, kind, _ in [edge for edge in edges(network) if edge[2] == Edge.TIED]:
        changed.remove_edge(first, second, key=kind)
    return _frozen(changed)


def with_copies(network: Network) -> Network:
    """Copy of the network in which tied weights (`Edge.TIED`) are copies (`Edge.COPY`) on other stages.

    Modules of multi-token prediction lie on one stage: the first has the copy of the table, which the others use.
    """
    import networkx as nx

    changed: Network = nx.MultiDiGraph(network)
    tied = [edge for edge in edges(network) if edge[2] == Edge.TIED]
    for first, second, kind, _ in tied:
        changed.remove_edge(first, second, key=kind)
    further = {second for _, second, kind, _ in edges(network) if kind == Edge.BRANCH}
    modules = [path for path in running_order(network) if path in further][:-1]  # the last one is the head
    for first, second, _, weights in tied:
        if second in modules[1:]:
            _add(changed, [(modules[0], second, Edge.TIED, tuple((name, name) for _, name in weights))])
        else:
            _add(changed, [(first, second, Edge.COPY, weights)])
    return _frozen(changed)
