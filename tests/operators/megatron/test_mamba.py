"""Mamba-2 of Megatron-Core."""

from __future__ import annotations

import pytest

from operators.megatron.kinds import MAMBA, T, kept_in, live_bytes, run_of
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.tape import Kernel, Op


@pytest.mark.parametrize(("cp", "copies"), [(2, 0), (4, 2), (8, 6)])
def test_ranks_of_one_mamba_group_each_get_its_b_and_c(cp: int, copies: int) -> None:
    """Two groups a tp rank: with more cp ranks B and C of 128 go to several; that wider tensor is kept, bf16."""
    kept = [kept_in(MAMBA, run_of(MAMBA, tp=4, cp=ranks)) for ranks in (cp, 2)]
    assert kept[0] - kept[1] == 2 * copies * 128 * 2 * T
    slots: dict[tuple[str, str], int] = {}
    rows = record(MAMBA, run_of(MAMBA, tp=4, cp=cp), slots, {}).forward.rows
    width = (2 * 4096 + 2 * 8 * 128 + 64) // 4 + 2 * copies * 128
    for name in ("zxbcdt_parts", "zxbcdt_joined", "zxbcdt_exchanged"):
        made = slots[name, "activation"]
        assert [r[3] for r in rows if r[0] == Op.ALLOC and r[2] == made] == [2 * width * T]


def test_mamba_scan_peaks_as_measured() -> None:
    # truth/activations_reference.json, "transient_peaks": mamba_ssm's own wrappers run with stubbed kernels,
    # 8192 tokens: 41,728 and 107,747 B a token for scan and gated norm. Besides here: what in_proj keeps.
    tape = record(MAMBA, run_of(MAMBA), {}, {})
    before = 2 * 5_376 + 4 + 20_608 - 5_376  # ln_out, rsigma, zxbcdt; the input is another layer's
    _, top = live_bytes((tape.forward,))
    assert top == (before + 41_728) * T
    _, top = live_bytes((tape.backward,), skip=(0,))
    freed = 8_192 + 8_192 + 32 - 8_192  # gated norm's kept tensors are gone, the gradient of its input is there
    assert top + freed * T == pytest.approx(107_747 * T, rel=1e-3)


def test_backward_of_the_scan_costs_what_the_page_counts() -> None:
    rows = record(MAMBA, run_of(MAMBA), {}, {}).backward.rows
    assert sum(r[3] for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.MAMBA_SCAN) == 9_175_040 * T


def test_user_buffers_hold_what_the_mixer_gathers() -> None:
    """The names of its buffers are those of an MLP (ssm/mamba_mixer.py: fc1, fc2).

    in_proj's gathered input and its input gradient before the sum lie in them, and what out_proj gathers in backward.
    """
    def made(*, overlaps: bool) -> set[str]:
        slots: dict[tuple[str, str], int] = {}
        options = MegatronOptions(tp_comm_overlap=overlaps)
        record(MAMBA, run_of(MAMBA, tp=2, sequence_parallel=True, options=options), slots, {})
        return {name for name, _ in slots}

    assert made(overlaps=False) - made(overlaps=True) == {
        "ln_out_total", "mixer.in_proj.ln_out_total", "grad_ln_out", "grad_total"}


@pytest.mark.parametrize("cp", [2, 4])
def test_a_packs_order_is_an_index_and_its_rows_are_put_back_by_rank(cp: int) -> None:
    """Kept: two int32 indices and the sequence numbers, of the tokens of all ranks.

    Backward of the scatter has the rest, one rank's rows and two tensors of full size (torch 2.13 run on a CPU:
    IndexPutBackward0 makes the rest and the rows, SliceBackward0 full size, which add up in place).
    """
    plain, packed = (run_of(MAMBA, tp=4, cp=cp, sequences=count) for count in (0, 1))
    assert kept_in(MAMBA, packed) - kept_in(MAMBA, plain) == 3 * 4 * T * cp
    slots: dict[tuple[str, str], int] = {}
    rows = record(MAMBA, packed, slots, {}).backward.rows
    names = [slots[f"grad_zxbcdt_{part}", "backward_temp"] for part in ("rest", "found", "whole")]
    made = [[r[3] for r in rows if r[0] == Op.ALLOC and r[2] == name] for name in names]
    width = made[2][0]
    assert [len(one) for one in made] == [cp - 1, cp, cp]
    assert {*made[0], *made[2]} == {width}
    assert {*made[1]} == {width // cp}
    live = highest = 0
    for row in rows:
        if row[0] in (Op.ALLOC, Op.FREE) and row[2] in names:
            live += row[3]
            highest = max(highest, live)
    assert (live, highest) == (0, 3 * width + width // cp if cp > 2 else 2 * width + width // cp)
