"""Tiles at the borders of a rank's part of the model."""

from __future__ import annotations

import pytest

from simcore.models.blocks import Embedding
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.program.outline import Tables
from simcore.program.stage_borders import Edges, edges_of
from simcore.program.tile import AMOUNT, LayerRows
from simcore.recording.layer import LayerWorkload

HIDDEN_SIZE = 16


def edges(*, tp: int = 1, sequence_parallel: bool = False, mask: bool = False, width: int = 1) -> Edges:
    options = MegatronOptions(create_attention_mask=mask)
    run = LayerWorkload(2, 8, "bf16", {}, "hf", "none", tp=tp, sequence_parallel=sequence_parallel, options=options)
    return edges_of(run, [Embedding(32, HIDDEN_SIZE)], HIDDEN_SIZE * width, Tables())


def posted(tile: LayerRows) -> int:
    return int(tile.rows[0, AMOUNT])


def test_tokens_and_labels_are_int64() -> None:
    borders = edges()
    assert posted(borders.tokens) == 2 * 2 * 8 * 8 == -posted(borders.drop_tokens)


@pytest.mark.parametrize(("tp", "sequence_parallel", "cut"), [(1, False, 1), (4, False, 1), (4, True, 4)])
def test_hidden_states_are_cut_where_sequences_are_parallel(tp: int, sequence_parallel: bool, cut: int) -> None:
    borders = edges(tp=tp, sequence_parallel=sequence_parallel)
    assert posted(borders.receive_hidden) == 2 * 8 // cut * HIDDEN_SIZE * 2 == posted(borders.keep_grad)


def test_a_mask_has_a_byte_for_each_pair_of_positions() -> None:
    assert len(edges().mask.rows) == 0
    assert posted(edges(mask=True).mask) == 2 * 8 * 8


def test_borders_that_do_not_depend_on_a_layer_are_one_tile() -> None:
    assert edges().drop_hidden is edges().drop_hidden
    assert edges().drop_hidden is not edges(width=2).drop_hidden
