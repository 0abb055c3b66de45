"""Outputs that are discarded and computed again."""

from __future__ import annotations

import pytest

from operators.megatron.kinds import LLAMA, MOE, OSS, PLAIN, V3, T, check_closed, kept_in, run_of
from simcore.models.blocks import LayerKind
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.tape import RECOMPUTE_END, Kernel, Op


@pytest.mark.parametrize(("kind", "checkpoint", "columns"), [
    (V3, "mla_up_proj", 128 * (192 + 192 + 128)), (V3, "layernorm", 7168), (MOE, "moe_act", 6 * 1856),
    (OSS, "moe_act", 4 * 2880)])
def test_from_core_0_17_on_what_is_made_again_is_not_copied(kind: LayerKind, checkpoint: str, columns: int) -> None:
    """The emptied storage points to the replay's bytes: one kernel and one tensor fewer for each output."""
    runs = [run_of(kind, checkpoint=checkpoint, options=options)
            for options in (PLAIN, MegatronOptions(shares_recomputed=True))]
    moved, born = [], []
    for run in runs:
        tape = record(kind, run, {}, {})
        check_closed(kind, run, tape)
        rows = tape.backward.rows
        moved.append(sum(r[5] for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.COPY))
        born.append(sum(r[3] for r in rows if r[0] == Op.ALLOC))
    assert moved[0] - moved[1] == 2 * 2 * columns * T
    assert born[0] - born[1] == 2 * columns * T
    assert kept_in(kind, runs[0]) == kept_in(kind, runs[1])


@pytest.mark.parametrize(("kind", "checkpoint"), [(LLAMA, "full"), (LLAMA, "mlp"), (MOE, "moe")])
def test_what_a_replay_makes_stays_until_its_backward_is_over(kind: LayerKind, checkpoint: str) -> None:
    """`outputs` of CheckpointFunction.backward: its output dies after the last kernel of the region's backward."""
    rows = record(kind, run_of(kind, checkpoint=checkpoint), {}, {}).backward.rows
    end = next(i for i, r in enumerate(rows) if r[0] == Op.MARK and r[2] == RECOMPUTE_END)
    born = [r for r in rows[:end] if r[0] == Op.ALLOC and r[3] == 2 * kind.hidden * T]
    last = born[-1][2]
    freed = next(i for i, r in enumerate(rows) if i > end and r[0] == Op.FREE and r[2] == last)
    assert sum(r[0] == Op.COMPUTE for r in rows[end:freed]) > 3
