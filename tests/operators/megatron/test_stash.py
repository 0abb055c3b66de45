"""Room for a rank's rows, and tensors that go to pages: bytes and FLOPs of a recorded layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operators.megatron.kinds import OSS, QWEN3, check_closed, run_of
from simcore.models.blocks import LayerKind, Moe
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.operators.megatron.stash import fused_rows, paged_tensors, rows_with_room
from simcore.recording.layer import RecordedLayer
from simcore.recording.rows import STASH_BORDER, Module
from simcore.recording.tape import Kernel, Op

PLAIN = MegatronOptions(dispatcher="flex", moe_flex_dispatcher_backend="hybridep", fp8_recipe="mxfp8",
                        use_transformer_engine_op_fuser=True)
ROOM = replace(PLAIN, moe_expert_rank_capacity_factor=1.5)
STASH = replace(ROOM, moe_paged_stash=True)


def layer(kind: LayerKind, options: MegatronOptions, top_k: int = 8, **given: bool) -> RecordedLayer:
    run = run_of(replace(kind, fp8=True), tokens=4096, top_k=top_k, ep=8, options=options, **given)
    return record(replace(kind, fp8=True), run, {}, {})


def grouped_flops(tape: RecordedLayer) -> int:
    return sum(row[3] for part in (tape.forward, tape.backward) for row in part.rows
               if row[:3] == (Op.COMPUTE, 0, Kernel.FP8_GROUPED_GEMM))


def test_room_is_a_multiple_of_what_the_fused_kernel_takes() -> None:
    assert rows_with_room(4096, 8, 1.5) == 4096 * 8 * 3 // 2
    assert rows_with_room(1000, 8, 1.2) == 9728  # 38 x 256
    assert fused_rows(1000, 3) == 3 * 512


def test_room_adds_memory_and_no_products() -> None:
    """Kept of a row by Qwen3's experts: h + h/32, two halves in bf16, a probability, the half in 8 bits with scales."""
    kept = [sum(row[3] for row in layer(QWEN3, options).forward.rows if row[0] in (Op.ALLOC, Op.FREE))
            for options in (PLAIN, ROOM)]
    assert kept[1] - kept[0] == 16384 * (2048 + 64 + 2 * 2 * 768 + 4 + 768 + 24)
    assert grouped_flops(layer(QWEN3, PLAIN)) == grouped_flops(layer(QWEN3, ROOM)) > 0


def test_the_host_waits_for_no_numbers_of_rows_with_room() -> None:
    stops = [sum(row[0] == Op.WAIT for row in layer(QWEN3, options).forward.rows) for options in (PLAIN, ROOM)]
    assert stops == [1, 0]


@pytest.mark.parametrize(("kind", "top_k", "a_row"), [
    (QWEN3, 8, 2048 + 64 + 2 * 2 * 768 + 4 + 768 + 24), (OSS, 4, 2880 + 92 + 2 * 2 * 2880 + 4 + 2880 + 92)])
def test_the_stash_takes_what_the_experts_keep(kind: LayerKind, top_k: int, a_row: int) -> None:
    """Six tensors; columns of scales are padded to 128 (2,944 of 2,880). Frees are undone by as many allocations."""
    tape = layer(kind, STASH, top_k)
    check_closed(replace(kind, fp8=True), run_of(replace(kind, fp8=True), tokens=4096, top_k=top_k, ep=8), tape)
    rows = rows_with_room(4096, top_k, 1.5)
    assert -sum(row[3] for row in tape.stow.rows) == sum(row[3] for row in tape.fetch.rows) == rows * a_row
    block = kind.branches[1].block
    assert isinstance(block, Moe)
    assert sum(one.width * one.size / one.rows for one in paged_tensors(block)) == a_row
    assert [row[2] for row in tape.stow.rows] == [row[2] for row in tape.fetch.rows]


def test_copies_move_rows_that_came_and_may_run_beside_exchanges() -> None:
    tape = layer(QWEN3, STASH)
    for part in (tape.forward, tape.backward):
        moved = [row[5] for row in part.rows if row[:3] == (Op.COMPUTE, 0, Kernel.COPY)
                 and row[4] & 7 == Module.SHARED_EXPERTS]
        assert sum(moved) == 2 * 32768 * (2048 + 64 + 2 * 2 * 768 + 4 + 768 + 24)
        assert sum(row[0] == Op.MARK and row[2] == STASH_BORDER for row in part.rows) == 1


def test_forward_alone_pages_nothing() -> None:
    tape = layer(QWEN3, STASH, no_grad=True)
    assert not tape.stow.rows
    assert not tape.fetch.rows
