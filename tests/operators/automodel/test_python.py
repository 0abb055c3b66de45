"""Host time of Python in Automodel's layers, as it was timed: with a layer's kernels it is as long as the layer was."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import small
from checkout import ROOT
from simcore.models.blocks import Attention, LatentAttention, Mamba2, Mlp, Moe
from simcore.operators.automodel.env import ALONE, BESIDE
from simcore.placement.mesh import IntArray
from simcore.program.outline import Phase
from simcore.recording.host_operators import Operators
from simcore.recording.kernel_shape import shapes_in
from simcore.recording.tape import Kernel, Op

TIMED = json.loads((ROOT / "tests/truth" / "host" / "automodel-0.7.0.json").read_text(encoding="utf-8"))
BLOCKS = {"mamba": Mamba2, "attention": Attention, "mlp": Mlp, "moe": Moe, "moe_alone": Moe}
PATTERNS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E", "moe_alone": "E"}
PYTHON = 16 / 21
OF_THE_SCAN = {"mamba": (2, 3)}
"""Kernels of a Mamba-2 layer that the scan's own function launches, gated norm and projection: not in the timed run."""


def expected(kind: str) -> Operators:
    return ALONE if kind == "moe_alone" else BESIDE[BLOCKS[kind]]


@cache
def layer(kind: str) -> tuple[IntArray, IntArray]:
    """Kernels of one layer of that kind, forward and backward, that are told of one by one."""
    mesh = {"dp_shard": 2} if kind == "moe_alone" else {"dp_shard": 2, "ep": 2}
    pattern = PATTERNS[kind] * 3 + ("E" if kind != "moe_alone" and "E" not in PATTERNS[kind] else "")
    model: dict[str, Any] = {"config": "nemotron-3-tiny", "overrides": {
        "num_hidden_layers": len(pattern), "hybrid_override_pattern": pattern}}
    outline = small.program_of("automodel", mesh, model=model).outline
    found = []
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        tiles = [outline.tiles[piece.tile].rows for piece in outline.pieces
                 if piece.tile >= 0 and piece.phase == phase and piece.layer == 2]
        rows = np.concatenate(tiles)
        found.append(rows[rows[:, 0] == Op.COMPUTE])
    return found[0], found[1]


def kernels(rows: IntArray) -> int:
    """That run on the device and are one operator each."""
    apart = np.isin(rows[:, 2], (Kernel.MAMBA_SCAN, Kernel.CONV)) | (
        (shapes_in(rows[:, 4]) > 1) & np.isin(rows[:, 2], (Kernel.PERMUTE, Kernel.ELEMENTWISE)))
    return int((~apart).sum())


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_a_layer_takes_as_long_as_it_was_timed(kind: str) -> None:
    inside = OF_THE_SCAN.get(kind, (0, 0))
    for way, (rows, less) in enumerate(zip(layer(kind), inside, strict=True)):
        timed = TIMED["operators"][kind]["forward" if way == 0 else "backward"]
        assert expected(kind)[way] == pytest.approx((timed - kernels(rows) + less) * PYTHON, abs=1.6)


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_every_layer_says_so_once_each_way(kind: str) -> None:
    for way, rows in enumerate(layer(kind)):
        alone = rows[(rows[:, 2] == Kernel.ELEMENTWISE) & (rows[:, 5] == 0) & (rows[:, 3] == 0)]
        assert shapes_in(alone[:, 4]).tolist() == [expected(kind)[way]]


def test_a_replayed_layer_says_so_again() -> None:
    """Whole blocks with experts over ranks, and parts of dense layers."""
    for model, mesh in (("nemotron-3-tiny", {"dp_shard": 2, "ep": 2}), ("llama-tiny", {"dp_shard": 2})):
        program = small.program_of("automodel", mesh, model=model, recompute="full")
        rows, phases = np.array(program.columns.tolist()), program.outline.phase
        alone = (rows[:, 0] == Op.COMPUTE) & (rows[:, 2] == Kernel.ELEMENTWISE) & (rows[:, 3] + rows[:, 5] == 0)
        forward, replayed = (shapes_in(rows[alone & (phases == phase), 4]).tolist()
                             for phase in (Phase.FORWARD, Phase.RECOMPUTE))
        assert sorted(forward) == sorted(replayed)


def test_experts_take_most() -> None:
    assert max(BESIDE, key=lambda block: sum(BESIDE[block])) is Moe
    assert BESIDE[LatentAttention] == BESIDE[Attention], "assumed alike"
