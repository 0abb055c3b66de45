"""Bytes that wait on the host while a model is exported tensor by tensor into the files that it came from.

Megatron-Bridge 0.3.1 `hf_pretrained/state.py`, save_generator: rank 0 keeps every tensor that arrives until all
tensors of a file are there, by the index of the checkpoint that the model came from; without an index, as a model of
one file is, all of the model. Tensors arrive in the order of `conversion/utils.py`, extract_sort_key: those outside
layers first, among them the output projection, whose file is the last; then layer by layer, in each by name, experts
after the rest, and modules of multi-token prediction among the first layers.

How the files of that checkpoint are cut is not in a configuration. Here they are those of transformers 4 (4.57.1
save_pretrained, max_shard_size 5GB; huggingface_hub 2.4 `serialization/_base.py`): in the order of the model, none
larger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple

from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec

__all__ = ["FILE_BYTES", "waiting_bytes"]

FILE_BYTES: Final = 5 * 10**9
_OUTSIDE: Final = -1


class _Piece(NamedTuple):
    """A tensor that arrives, by its place in the order: number of its layer and expert, -1 for none, and name."""

    layer: int
    expert: int
    name: str
    num_bytes: int
    file: int


def waiting_bytes(graph: ModelGraph, width: int, limit: int = FILE_BYTES) -> int:
    """Returns the most bytes that wait for their file; `width`: bytes of an element, `limit`: of the largest file."""
    pieces = list(_cut_into_files(graph, width, limit))
    missing, sizes = Counter(piece.file for piece in pieces), Counter[int]()
    for piece in pieces:
        sizes[piece.file] += piece.num_bytes
    waiting = most = 0
    for piece in sorted(pieces):
        waiting += piece.num_bytes
        most = max(most, waiting)
        missing[piece.file] -= 1
        waiting -= 0 if missing[piece.file] else sizes[piece.file]
    return most


def _cut_into_files(graph: ModelGraph, width: int, limit: int) -> Iterator[_Piece]:
    """All tensors in the order of the model, each with the number of its file."""
    number = {index: place for group in (graph.blocks, graph.branches) for place, index in enumerate(group)}
    file = filled = 0
    for layer in graph.layers:
        for expert, name, numel in sorted(_tensors_of(graph.tensors[layer.kind]), key=itemgetter(0)):
            size = width * numel
            if filled and filled + size > limit:
                file, filled = file + 1, 0
            filled += size
            yield _Piece(number.get(layer.index, _OUTSIDE), expert, name, size, file)


def _tensors_of(specs: Iterable[TensorSpec]) -> Iterator[tuple[int, str, int]]:
    """(number of its expert or -1, name, elements) of each tensor of a layer that files have."""
    for spec in specs:
        if spec.is_owned and spec.module != "adapter":
            stacked = spec.shape[0] if spec.component == "routed_experts" and spec.dims[0] == "experts" else 1
            apart = stacked * spec.copies
            yield from ((expert if apart > 1 else _OUTSIDE, spec.name, spec.numel // stacked)
                        for expert in range(apart))
