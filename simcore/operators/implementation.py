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
from simcore.recording.tape import Section

__all__ = ["Implementation"]


class _Recorder(Protocol):
    def __call__(self, kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
                 comms: dict[tuple[str, str, str], int]) -> RecordedLayer: ...


_Sections = tuple[Section, Section]


def _nothing(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    return {}


def _no_sections(runs: Sequence[tuple[LayerKind, LayerWorkload]], slots: dict[tuple[str, str], int],
                 comms: dict[tuple[str, str, str], int]) -> _Sections | None:
    return None


def _nothing_sent(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One code base's layers, as three functions.

    `record`: (kind, workload, slots, comms) to the recording of one layer or part; entries are added to the tables
    `slots` (storages) and `comms` (communications). `tensors`: whole parameters and buffers of a kind of layer, in
    registration order, names relative to the layer; raises NotYet for what the code base does not build. `standing`:
    from (kind, workload) of a pipeline stage's layers to the bytes on a rank, by name, of buffers that these layers
    share; `stands_by_chunk`: each of a rank's parts of the model has its own. `stage_stem`: the same of tensors that a
    stage after the model's first makes for its layers in each microbatch, in the place of the model's stem, and that
    live until their backward; `stage_passing`: until their forward is over;
    `stage_sections`: the same as recorded sections, before their forward and behind their backward.
    `stage_sends`: bytes of what a stage sends on beside the hidden state of a microbatch, and gets a gradient of.
    `exports_experts_apart`: state dicts for other programs have each expert's matrices as tensors of their own.
    `builds_towers`: it has vision towers too. `value_heads`: families that it has with a value head in the place of the
    output projection (`models/value_head.py`); `biased_values`: that head has a bias. `predicts_last`: multi-token
    prediction stands behind the head. `mixes_families`: it builds all families of the same layers, without the
    configuration's names of modules. `follows_fullest_expert`: blocks of all experts are as long as the fullest one's,
    on one rank too.
    """

    record: _Recorder
    tensors: Callable[[LayerKind], tuple[TensorSpec, ...]]
    standing: Callable[[Sequence[tuple[LayerKind, LayerWorkload]]], dict[str, int]] = _nothing
    stage_stem: Callable[[Sequence[tuple[LayerKind, LayerWorkload]]], dict[str, int]] = _nothing
    stage_passing: Callable[[Sequence[tuple[LayerKind, LayerWorkload]]], dict[str, int]] = _nothing
    stage_sections: Callable[[Sequence[tuple[LayerKind, LayerWorkload]], dict[tuple[str, str], int],
                              dict[tuple[str, str, str], int]], _Sections | None] = _no_sections
    stage_sends: Callable[[Sequence[tuple[LayerKind, LayerWorkload]]], int] = _nothing_sent
    stands_by_chunk: bool = False
    exports_experts_apart: bool = False
    builds_towers: bool = False
    value_heads: tuple[str, ...] = ()
    biased_values: bool = True
    predicts_last: bool = False
    mixes_families: bool = False
    follows_fullest_expert: bool = False
