"""An implementation as the rest of the engine sees it: one frozen record, `Implementation`.

Each implementation's folder has a module `implementation.py` that fills it in as `IMPLEMENTATION`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from simcore.models.blocks import LayerKind
from simcore.models.tensor import TensorSpec
from simcore.recording.layer import LayerWorkload, RecordedLayer

__all__ = ["Implementation"]


class _Recorder(Protocol):
    def __call__(self, kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
                 comms: dict[tuple[str, str, str], int]) -> RecordedLayer: ...


def _nothing(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One code base's layers, as three functions.

    `record`: (kind, workload, slots, comms) to the recording of one layer or part; entries are added to the tables
    `slots` (storages) and `comms` (communications). `tensors`: whole parameters and buffers of a kind of layer, in
    registration order, names relative to the layer; raises NotYet for what the code base does not build. `standing`:
    from (kind, workload) of a pipeline stage's layers to the bytes on a rank, by name, of buffers that these layers
    share; `stands_by_chunk`: each of a rank's parts of the model has its own. `stage_stem`: the same of tensors that a
    stage after the model's first makes for its layers in each microbatch, in the place of the model's stem.
    `exports_experts_apart`: state dicts for other programs have each expert's matrices as tensors of their own.
    `builds_towers`: it has vision towers too. `predicts_last`: modules of multi-token prediction stand behind the head.
    """

    record: _Recorder
    tensors: Callable[[LayerKind], tuple[TensorSpec, ...]]
    standing: Callable[[Sequence[tuple[LayerKind, LayerWorkload]]], dict[str, int]] = _nothing
    stage_stem: Callable[[Sequence[tuple[LayerKind, LayerWorkload]]], dict[str, int]] = _nothing
    stands_by_chunk: bool = False
    exports_experts_apart: bool = False
    builds_towers: bool = False
    predicts_last: bool = False
