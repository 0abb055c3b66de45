"""Self-attention of Megatron-Core, fused and not, and the dense MLP."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from checkout import ROOT
from operators.megatron.kinds import (
    ATTENTION,
    DROPS,
    GEMMA,
    GPT,
    GPT_NORM,
    GPT_STEM,
    LLAMA,
    MAMBA,
    OSS,
    PLAIN,
    QWEN2,
    QWEN3,
    V3,
    T,
    check_closed,
    kept_in,
    live_bytes,
    moved_by,
    run_of,
)
from simcore.errors import NotYet
from simcore.models.blocks import Attention, Branch, LayerKind, Mlp
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import ContextParallelComm, MegatronOptions
from simcore.program.tile import STREAM
from simcore.recording.kernel_shape import shapes_in
from simcore.recording.rows import Row
from simcore.recording.tape import Kernel, Op


def test_dropout_keeps_a_byte_an_element_of_what_is_added() -> None:
    assert kept_in(DROPS, run_of(DROPS)) - kept_in(GPT, run_of(GPT)) == 2 * 1024 * T
    half = {"tp": 2, "sequence_parallel": True}
    assert kept_in(DROPS, run_of(DROPS, **half)) - kept_in(GPT, run_of(GPT, **half)) == 1024 * T  # type: ignore[arg-type]
    stem = replace(GPT_STEM, dropout=True)
    sums = [live_bytes([record(kind, run_of(kind), {}, {}).forward])[0] for kind in (stem, GPT_STEM)]
    assert sums[0] - sums[1] == 1024 * T


@pytest.mark.parametrize(("kind", "tp", "softmax", "square"), [
    (GPT, 1, True, 2), (DROPS, 1, True, 2 + 1 + 2), (DROPS, 2, True, 5), (DROPS, 1, False, 4 + 1 + 2)])
def test_unfused_attention_keeps_its_square(kind: LayerKind, tp: int, softmax: bool, square: int) -> None:
    """Softmax, and with dropout the mask and what is left of it; no statistics."""
    unfused = MegatronOptions(attention_backend="unfused", masked_softmax_fusion=softmax)
    kept = [kept_in(kind, run_of(kind, tokens=512, tp=tp, options=options)) for options in (unfused, PLAIN)]
    assert kept[0] - kept[1] == 16 // tp * (square * 512 * 512 - 4 * 512)


def test_cores_own_attention_makes_no_input_for_the_scores() -> None:
    """It lies in the global buffer; TransformerEngine makes one each time."""
    named = []
    for more in (False, True):
        slots: dict[tuple[str, str], int] = {}
        options = MegatronOptions(attention_backend="unfused", core_attention=more)
        record(GPT, run_of(GPT, tokens=512, options=options), slots, {})
        named.append("scores_buffer" in {name for name, _ in slots})
    assert named == [True, False]


def test_flash_attention_keeps_its_output_twice() -> None:
    """Sequence by sequence, and as it goes on: the same with one sequence."""
    flash = MegatronOptions(attention_backend="flash")
    for batch, copies in ((1, 0), (2, 1)):
        kept = [kept_in(GPT, replace(run_of(GPT, options=options), batch=batch, seq=T // batch))
                for options in (flash, PLAIN)]
        assert kept[0] - kept[1] == copies * 2 * 1024 * T


def test_a_window_costs_fewer_products() -> None:
    attention, experts = OSS.branches
    assert isinstance(attention.block, Attention)
    whole = replace(OSS, branches=(replace(attention, block=replace(attention.block, window=0)), experts))
    flops = [sum(row[3] for row in record(kind, run_of(kind, top_k=4), {}, {}).forward.rows
                 if row[0] == Op.COMPUTE and row[2] == Kernel.ATTENTION) for kind in (OSS, whole)]
    assert flops[1] == flops[0] * T // (2 * 128) == T * T * 2 * 64 * 64


def test_sinks_need_a_kernel_that_has_them() -> None:
    with pytest.raises(NotYet, match="attention sinks in unfused attention"):
        record(OSS, run_of(OSS, top_k=4, options=MegatronOptions(attention_backend="unfused")), {}, {})


@pytest.mark.parametrize(("cp", "kept"), [(1, 4 * 64), (4, 4 * 64 // 4 + 2 * 64 * 64 * T)])
def test_sinks_are_kept_in_fp32_for_the_heads_of_a_rank(cp: int, kept: int) -> None:
    """TE 2.18 `dot_product_attention.py:1697`, `context_parallel.py:4356`; over cp the output of 64 heads is copied."""
    attention, experts = OSS.branches
    assert isinstance(attention.block, Attention)
    plain = replace(OSS, branches=(replace(attention, block=replace(attention.block, sinks=False)), experts))
    options = MegatronOptions(cp_comm_type="a2a")
    with_sinks = kept_in(OSS, run_of(OSS, top_k=4, cp=cp, options=options))
    assert with_sinks - kept_in(plain, run_of(plain, top_k=4, options=options)) == kept


@pytest.mark.parametrize("options", [MegatronOptions(cp_comm_type="a2a"), MegatronOptions(
    cp_comm_type="a2a", fp8_recipe="tensorwise", fp8_dot_product_attention=True)])
def test_ranks_that_swap_heads_gather_the_gradients_of_their_sinks(options: MegatronOptions) -> None:
    kind = replace(OSS, fp8=options.fp8_dot_product_attention)
    comms: dict[tuple[str, str, str], int] = {}
    tape = record(kind, run_of(kind, top_k=4, cp=4, options=options), {}, comms)
    check_closed(kind, run_of(kind, top_k=4, cp=4), tape)
    rows = [r for r in tape.backward.rows if r[0] == Op.COLLECTIVE and r[2] == comms["all_gather", "cp", "fp32"]]
    assert [r[3] for r in rows] == [4 * 64]
    assert sum(r[3] for r in tape.forward.rows if r[0] == Op.COMPUTE and r[2] in (
        Kernel.ATTENTION, Kernel.FP8_ATTENTION)) == 2 * T * 128 * 2 * 64 * 64


BOTH = MegatronOptions(cp_comm_type="a2a+p2p", hierarchical_context_parallel_sizes=(2, 2))
AGAIN = replace(BOTH, sends_output_again=True)


@pytest.mark.parametrize(("cp", "options", "copies"), [
    (2, MegatronOptions(cp_comm_type="a2a"), 1), (1, MegatronOptions(cp_comm_type="a2a"), 0), (2, PLAIN, 0),
    (4, BOTH, 1), (4, AGAIN, 0), (1, BOTH, 0)])
def test_ranks_that_swap_heads_keep_the_output_twice(cp: int, options: MegatronOptions, copies: int) -> None:
    """Copies are of LLAMA's 4096 columns, bf16."""
    kept = [kept_in(LLAMA, run_of(LLAMA, cp=cp, options=given)) for given in (options, PLAIN)]
    assert kept[0] - kept[1] == copies * 2 * 4096 * T


def test_ranks_that_swap_heads_send_each_tensor_once() -> None:
    """Query, key, value and output of 4096, 1024, 1024 and 4096 columns; a ring passes keys and values on step by step.

    In backward keys and values go on in all steps but the last, and their gradients in all but the first.
    """
    sent = {}
    kinds: tuple[ContextParallelComm, ...] = ("a2a", "p2p")
    for kind in kinds:
        comms: dict[tuple[str, str, str], int] = {}
        tape = record(LLAMA, run_of(LLAMA, cp=4, options=MegatronOptions(cp_comm_type=kind)), {}, comms)
        names = {row: name for (name, _, _), row in comms.items()}
        sent[kind] = [[(names[r[2]], r[3]) for r in part.rows if r[0] == Op.COLLECTIVE]
                      for part in (tape.forward, tape.backward)]
    query, key = 2 * T * 4096, 2 * T * 1024
    assert sent["a2a"][0] == [("all_to_all", size) for size in (query, key, key, query)]
    assert sent["a2a"][1] == [("all_to_all", size) for size in (query, query, key, key)]
    assert sent["p2p"] == [[("send_recv", 2 * key)] * 3, [("send_recv", n * 2 * key) for n in (1, 2, 2, 1)]]


def rows_of(options: MegatronOptions, cp: int) -> list[list[tuple[str, str, int]]]:
    """Messages of LLAMA's attention as (collective, axis, bytes), by pass."""
    comms: dict[tuple[str, str, str], int] = {}
    tape = record(LLAMA, run_of(LLAMA, cp=cp, options=options), {}, comms)
    names = {row: name[:2] for name, row in comms.items()}
    return [[(*names[r[2]], r[3]) for r in part.rows if r[0] == Op.COLLECTIVE]
            for part in (tape.forward, tape.backward)]


def test_neighbours_exchange_heads_and_the_others_pass_keys_on() -> None:
    """TE 2.8 `context_parallel.py`:1191, :1675, :2020 and :2471: nine exchanges and two steps each way; main: eight."""
    query, key = 2 * T * 4096, 2 * T * 1024
    ring, back = [("send_recv", "cp%2", 2 * key)], [("send_recv", "cp%2", n * 2 * key) for n in (1, 1)]
    swapped = [[("all_to_all", "cp/2", size) for size in sizes] for sizes in ((query, key, key), (query,))]
    assert rows_of(BOTH, 4) == [swapped[0] + ring + swapped[1], swapped[1] + back + swapped[0]]
    assert rows_of(AGAIN, 4) == [swapped[0] + ring + swapped[1], 2 * swapped[1] + back + swapped[0]]


@pytest.mark.parametrize(("sizes", "kind"), [((4, 1), "a2a"), ((1, 4), "p2p")])
def test_groups_of_one_rank_leave_one_way_to_share(sizes: tuple[int, int], kind: ContextParallelComm) -> None:
    options = replace(BOTH, hierarchical_context_parallel_sizes=sizes)
    assert rows_of(options, 4) == rows_of(MegatronOptions(cp_comm_type=kind), 4)


def test_all_copies_around_an_exchange_cost_the_host() -> None:
    """Two a tensor: the first and the last take time of the device, of four bytes a byte that is exchanged."""
    tape = record(LLAMA, run_of(LLAMA, cp=4, options=MegatronOptions(cp_comm_type="a2a")), {}, {})
    at = [n for n, row in enumerate(tape.forward.rows) if row[0] == Op.COLLECTIVE]
    first, last = tape.forward.rows[at[0] - 1], tape.forward.rows[at[2] + 1]
    query, key = 2 * T * 4096, 2 * T * 1024
    assert (first[2], first[5], last[2], last[5]) == (Kernel.COPY, 2 * query, Kernel.ELEMENTWISE, 2 * key)
    assert shapes_in(np.array([first[STREAM], last[STREAM]])).tolist() == [1, 5]


def ring_of(options: MegatronOptions, cp: int) -> tuple[list[list[Row]], dict[str, int]]:
    """Kernels of LLAMA's attention from its first one on, by pass, and bytes born in forward by name."""
    run, slots = run_of(LLAMA, cp=cp, options=options), dict[tuple[str, str], int]()
    tape = record(replace(LLAMA, fp8=options.fp8_dot_product_attention), run, slots, {})
    kinds = (Kernel.ATTENTION, Kernel.FP8_ATTENTION)
    parts = [[row for row in part.rows if row[0] == Op.COMPUTE] for part in (tape.forward, tape.backward)]
    spans = [[n for n, row in enumerate(rows) if row[2] in kinds] for rows in parts]
    around = [rows[span[0]:span[-1] + 1 + 2 * cp] for rows, span in zip(parts, spans, strict=True)]
    born = {name: sum(row[3] for row in tape.forward.rows if row[0] == Op.ALLOC and row[2] == slot)
            for (name, _), slot in slots.items()}
    return around, born


def test_a_ring_computes_as_much_as_ranks_that_swap_heads_and_merges_its_steps() -> None:
    """4096, 1024 and 1024 columns of query, key and value over 32 heads, bf16; outputs of later steps are half."""
    query, keys, rows = 2 * T * 4096, 2 * 2 * T * 1024, 4 * T * 32
    (forward, backward), born = ring_of(PLAIN, 4)
    (whole, whole_back), _ = ring_of(MegatronOptions(cp_comm_type="a2a"), 4)
    for mine, theirs in ((forward, whole), (backward, whole_back)):
        flops = [row[3] for row in mine if row[2] == Kernel.ATTENTION]
        assert len(flops) == 4
        assert set(flops) == {sum(row[3] for row in theirs if row[2] == Kernel.ATTENTION) // 4}
    moved = [[row[5] for row in part if row[2] == Kernel.ELEMENTWISE] for part in (forward, backward)]
    assert [row[5] for row in forward if row[2] == Kernel.ATTENTION] == [2 * query + keys, *[query + keys] * 3]
    assert moved[0][:8] == [2 * rows, *[3 * rows // 2] * 3, 2 * query, *[3 * query // 2] * 3]
    assert moved[1][:8] == [query, 2 * keys, *[3 * query // 2, 3 * keys] * 2, 5 * query // 2, 5 * keys // 2]
    assert (born["ring_keys"], born["ring_out"]) == (4 * keys, 5 * query // 2)


def test_a_ring_in_8_bits_sums_in_fp32() -> None:
    """A step's output is widened from 16 bits before it is merged: a read of 2 and a write of 4 bytes a number."""
    options = MegatronOptions(fp8_recipe="tensorwise", fp8_dot_product_attention=True)
    (forward, _), _ = ring_of(options, 2)
    out = 2 * T * 4096
    kernels = [row[5] for row in forward if row[2] == Kernel.ELEMENTWISE]
    assert kernels[:6] == [3 * out, 2 * 4 * T * 32, 3 * out // 2, 3 * 4 * T * 32 // 2, 4 * out, 3 * out]


def test_swiglu_keeps_its_input_in_8_bits() -> None:
    """Two times 14336 columns, a byte each in place of two."""
    kept = [kept_in(LLAMA, run_of(LLAMA, options=options))
            for options in (MegatronOptions(activation_func_fp8_input_store=True), PLAIN)]
    assert kept[1] - kept[0] == 2 * 14336 * T


def test_a_gated_dense_layer_keeps_the_closed_form() -> None:
    # activations.md section 4: attention + dense gated MLP, h 4096, qkv 6144, q 4096, 32 heads, ffn 14336.
    attention = 2 * 4096 * 2 + 4 + 2 * 6144 + 2 * 4096 + 4 * 32
    mlp = 2 * 4096 * 2 + 4 + 6 * 14336
    assert kept_in(LLAMA, run_of(LLAMA)) == (attention + mlp) * T


def test_gpt_oss_rotates_without_fusion() -> None:
    """TE's kernel has no factor of YaRN's: 12 and 14 passes of 72 heads where there were 2."""
    passes, options = (Kernel.ELEMENTWISE,), MegatronOptions(apply_rope_fusion=False)
    apart, fused = (moved_by(LLAMA, passes, options=made) for made in (options, PLAIN))
    width = (32 + 8) * 128 * 2
    assert (apart[0] - fused[0], apart[1] - fused[1]) == (10 * width, 12 * width)
    assert moved_by(OSS, passes) == moved_by(OSS, passes, options=options)


def test_rotation_operator_by_operator_keeps_cosines_and_sines_of_query_and_key() -> None:
    """The products with them keep them (core 0.16.1 `rope_utils.py`): of positions, whatever the batch and the tp."""
    for kind, rotated in ((LLAMA, 128), (replace(GATED, branches=(replace(GATED.branches[0], block=Attention(
            2048, 16, 2, 256, rotary=True, rotated=64)),)), 64)):
        for tp, batch in ((1, 1), (2, 1), (1, 2)):
            fused, apart = (kept_in(kind, replace(run_of(kind, tp=tp, options=MegatronOptions(apply_rope_fusion=on)),
                                                  batch=batch)) for on in (True, False))
            assert apart - fused == 2 * 2 * 2 * rotated * T, (rotated, tp, batch)


def test_packed_sequences_see_themselves_alone() -> None:
    rows = record(V3, run_of(V3, sequences=4, attended=T // 8), {}, {}).forward.rows
    assert sum(r[3] for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.ATTENTION) == T * T // 8 * 128 * (192 + 128)


def test_packed_sequences_cost_a_scan_their_numbers_and_flash_attention_a_block_each() -> None:
    """`seq_idx`, int32, kept by each scan; 128 rows of accumulated dq and of its sums for each sequence."""
    packed: dict[str, Any] = {"sequences": 4, "attended": T // 4}
    assert kept_in(MAMBA, run_of(MAMBA, **packed)) - kept_in(MAMBA, run_of(MAMBA)) == 4 * T
    assert kept_in(ATTENTION, run_of(ATTENTION, **packed)) == kept_in(ATTENTION, run_of(ATTENTION))
    fused, flash = MegatronOptions(attention_backend="fused"), MegatronOptions(attention_backend="flash")
    for options, more in ((fused, 0), (flash, 4 * 128 * 4 * (32 * 128 + 32))):
        work = [max(r[3] for r in record(ATTENTION, run, {}, {}).backward.rows if r[0] == Op.ALLOC)
                for run in (run_of(ATTENTION, options=options, **packed), run_of(ATTENTION, options=options))]
        assert work[0] - work[1] == more


def test_a_gpt_layer_keeps_the_closed_form() -> None:
    """megatron_goldens.md section 3 without dropout: two norms of 8 statistics, q, k, v where they lie, GELU fused."""
    attention = 2 * 1024 * 2 + 8 + 2 * 3 * 1024 + 2 * 1024 + 4 * 16
    assert kept_in(GPT, run_of(GPT)) == (attention + 2 * 1024 * 2 + 8 + 2 * 4096 + 2 * 4096) * T
    assert kept_in(GPT_NORM, run_of(GPT_NORM)) == (2 * 1024 + 8) * T


def test_learned_positions_are_split_after_they_are_added() -> None:
    """Not a reduce-scatter but an all-reduce, then each rank's part; the gradient of the table is dense."""
    comms: dict[tuple[str, str, str], int] = {}
    slots: dict[tuple[str, str], int] = {}
    tape = record(GPT_STEM, run_of(GPT_STEM, tp=2, sequence_parallel=True), slots, comms)
    names = {row: key[0] for key, row in comms.items()}
    sent = [[names[r[2]] for r in s.rows if r[0] == Op.COLLECTIVE] for s in (tape.forward, tape.backward)]
    assert sent == [["all_reduce"], ["all_gather"]]
    made = slots["embedding.position_embeddings.weight.grad", "backward_temp"]
    assert [r[3] for r in tape.backward.rows if r[0] == Op.ALLOC and r[2] == made] == [2 * 2048 * 1024]


def test_gradients_of_three_views_are_not_concatenated() -> None:
    """Query, key and value of as many heads lie side by side: one gradient of 3 x 1024 columns."""
    slots: dict[tuple[str, str], int] = {}
    tape = record(GPT, run_of(GPT), slots, {})
    made = slots["grad_qkv", "backward_temp"]
    assert [r[3] for r in tape.backward.rows if r[0] == Op.ALLOC and r[2] == made] == [2 * 3 * 1024 * T]


def test_unfused_swiglu_keeps_two_halves_more() -> None:
    """Dense: the SiLU and up + 0, 2f bytes a token each, more than the fused kernel."""
    fused, apart = (kept_in(QWEN2, run_of(QWEN2, options=MegatronOptions(bias_activation_fusion=on)))
                    for on in (True, False))
    assert apart - fused == 2 * 2 * 18944 * T


def test_biases_of_qkv_keep_nothing_and_get_a_gradient() -> None:
    """Attention as without: 28 heads, 4 groups of 128. The bias's gradient is made and added to main_grad."""
    kept = 2 * 3584 * 2 + 4 + 2 * 4608 + 2 * 3584 + 4 * 28 + 2 * 3584 * 2 + 4 + 6 * 18944
    assert kept_in(QWEN2, run_of(QWEN2)) == kept * T
    slots: dict[tuple[str, str], int] = {}
    tape = record(QWEN2, run_of(QWEN2), slots, {})
    made = slots["self_attention.linear_qkv.bias.grad", "backward_temp"]
    assert [r[3] for r in tape.backward.rows if r[0] == Op.ALLOC and r[2] == made] == [2 * 4608]


SAVED = json.loads((ROOT / "tests/truth/models/mlp-saved-core-0.16.1.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", SAVED["saved"])
def test_an_mlp_keeps_what_megatrons_own_saves(case: str) -> None:
    """Beside the norm, which is its own here: its input, its output in place of the MLP's input, two statistics."""
    rows, hidden, ffn = SAVED["shape"]
    gated = case.startswith("swiglu")
    block = Mlp(hidden, ffn, gated=gated, gelu=not gated, bias="biases" in case)
    kind = LayerKind("mlp", "gpt2", hidden, (Branch("ln_2", "mlp", block, layer_norm=True),))
    options = MegatronOptions(bias_activation_fusion="fused" in case)
    norm = (2 * hidden + 8) * rows
    assert kept_in(kind, run_of(kind, tokens=rows, options=options)) == sum(SAVED["saved"][case]) + norm


def qk_normed(*, rms: bool = False) -> LayerKind:
    """GPT with norms of query and key."""
    first, second = GPT.branches
    assert isinstance(first.block, Attention)
    return replace(GPT, branches=(replace(first, block=replace(first.block, qk_norm=True), layer_norm=not rms), second))


def test_norms_of_query_and_key_keep_copies_and_statistics() -> None:
    """q and k twice, v contiguous: 5 of 1024 columns in place of the 3 of one tensor; mean and rsigma of 2 x 16 heads.

    An RMSNorm has no mean, nor has that of the layer's input.
    """
    assert kept_in(qk_normed(), run_of(qk_normed())) - kept_in(GPT, run_of(GPT)) == (2 * 2 * 1024 + 2 * 8 * 16) * T
    rms = qk_normed(rms=True)
    assert kept_in(qk_normed(), run_of(qk_normed())) - kept_in(rms, run_of(rms)) == (2 * 4 * 16 + 4) * T


@pytest.mark.parametrize("groups", [16, 4])
def test_a_normed_query_is_not_copied_again(groups: int) -> None:
    kind = qk_normed()
    first, second = kind.branches
    assert isinstance(first.block, Attention)
    kind = replace(kind, branches=(replace(first, block=replace(first.block, num_kv_heads=groups)), second))
    slots: dict[tuple[str, str], int] = {}
    record(kind, run_of(kind), slots, {})
    assert "query" not in {name for name, _ in slots}


@pytest.mark.parametrize(("core", "columns"), [(False, 2), (True, 4)])
def test_unfused_attention_copies_values_in_transformer_engine_alone(core: bool, columns: int) -> None:
    """Megatron's own attention reads them where they lie, so the tensor of all three stays."""
    options = MegatronOptions(attention_backend="unfused", core_attention=core)
    kept = [kept_in(kind, run_of(kind, tokens=512, options=options)) for kind in (qk_normed(), GPT)]
    assert kept[0] - kept[1] == (2 * columns * 1024 + 2 * 8 * 16) * 512


GATED = LayerKind("gated", "qwen3_next", 2048, (
    Branch("input_layernorm", "self_attn", Attention(2048, 16, 2, 256, rotary=True, qk_norm=True, rotated=64,
                                                     gated=True)),))


def gateless() -> LayerKind:
    (branch,) = GATED.branches
    assert isinstance(branch.block, Attention)
    return replace(GATED, branches=(replace(branch, block=replace(branch.block, gated=False)),))


def test_a_gate_of_two_groups_is_a_copy_and_of_one_group_a_view() -> None:
    """Kept besides: the gate and the gated output, 4096 columns each; with one group a rank all of the projection.

    16 heads of 256, 2 groups. At tp 2 the projection is 2 x 2048 columns of query and gate and 2 x 256 of key and value
    wide (`truth/probe_delta.py`, check_gate).
    """
    kept = [kept_in(GATED, run_of(GATED, tp=tp)) - kept_in(gateless(), run_of(gateless(), tp=tp)) for tp in (1, 2)]
    assert kept == [2 * 2 * 4096 * T, 2 * (2 * 2048 + 2 * 256 + 2048) * T]


def test_dimensions_that_are_not_rotated_are_copied_once() -> None:
    def moved(rotated: int) -> int:
        kind = replace(GATED, branches=(replace(GATED.branches[0], block=Attention(
            2048, 16, 2, 256, rotary=True, rotated=rotated)),))
        rows = record(kind, run_of(kind, options=MegatronOptions(apply_rope_fusion=False)), {}, {}).forward.rows
        return sum(row[5] for row in rows if row[0] == Op.COMPUTE and row[2] == Kernel.ELEMENTWISE)

    # Of query and key, 18 heads of 256: 10 of 12 passes are over the rotated quarter alone.
    assert moved(0) - moved(64) == 10 * (256 - 64) * 18 * 2 * T


def in_front(kind: LayerKind) -> LayerKind:
    """`kind` without norms behind its blocks."""
    return replace(kind, branches=tuple(replace(branch, behind="") for branch in kind.branches))


@pytest.mark.parametrize("tp", [1, 2])
def test_norms_behind_linears_keep_what_these_put_out(tp: int) -> None:
    """Each its input, split over the sequence, and rsigma."""
    both, before = (kept_in(kind, run_of(kind, tp=tp, sequence_parallel=tp > 1)) for kind in (GEMMA, in_front(GEMMA)))
    assert both - before == 2 * (2 * 1152 + 4) * T // tp


def test_an_adapters_part_is_added_behind_the_norm() -> None:
    """Nothing needs the sum for a gradient, so the norm alone keeps what the linear put out."""
    both, before = (kept_in(kind, run_of(kind, lora=8)) for kind in (GEMMA, in_front(GEMMA)))
    assert both - before == 2 * (2 * 1152 + 4) * T


def test_gated_gelu_is_never_fused() -> None:
    silu = replace(GEMMA, branches=(GEMMA.branches[0], replace(GEMMA.branches[1], block=Mlp(1152, 6912))))
    apart = run_of(silu, options=MegatronOptions(bias_activation_fusion=False))
    assert kept_in(GEMMA, run_of(GEMMA)) == kept_in(silu, apart) > kept_in(silu, run_of(silu))


def test_a_window_needs_a_kernel() -> None:
    with pytest.raises(NotYet, match="attention within a window in unfused attention"):
        record(GEMMA, run_of(GEMMA, options=MegatronOptions(attention_backend="unfused")), {}, {})


def test_a_norm_over_all_heads_has_a_statistic_a_token() -> None:
    """OLMoE's: copies of query and key as by heads, rsigma of each once a token, not once a head."""
    head = QWEN3.branches[0].block
    assert isinstance(head, Attention)
    whole = replace(QWEN3, branches=(replace(QWEN3.branches[0], block=replace(head, whole_norms=True)),
                                     QWEN3.branches[1]))
    by_heads, together = (kept_in(kind, run_of(kind)) for kind in (QWEN3, whole))
    assert by_heads - together == 4 * (32 + 4 - 2) * T


def test_scores_below_a_cap_keep_the_tensor_that_values_lie_in() -> None:
    """FlexAttention copies no values; in backward one sum a row is all that it makes beside gradients."""
    block = LLAMA.branches[0].block
    assert isinstance(block, Attention)
    capped = replace(LLAMA, branches=(replace(LLAMA.branches[0], block=replace(block, capped=True)),
                                      *LLAMA.branches[1:]))
    q, kv = block.q_size, block.kv_size
    assert kept_in(capped, run_of(capped)) - kept_in(LLAMA, run_of(LLAMA)) == 2 * T * (q + 2 * kv) - 2 * T * kv
    for run in (run_of(capped), run_of(capped, tp=2)):
        check_closed(capped, run, record(capped, run, {}, {}))
    slots: dict[tuple[str, str], int] = {}
    made = record(capped, run_of(capped), slots, {})
    names = {number: name for (name, _), number in slots.items()}
    rows = [names[row[2]] for row in made.backward.rows if row[0] == Op.ALLOC]
    at = rows.index("attention_delta")
    assert rows[at:at + 4] == ["attention_delta", "grad_query", "grad_value", "grad_key"]
    assert "attention_workspace" not in rows
    dropped = replace(block, capped=True, dropout=True)
    with pytest.raises(NotYet, match="scores below a cap with dropout"):
        record(replace(capped, branches=(replace(LLAMA.branches[0], block=dropped),)), run_of(capped), {}, {})


@pytest.mark.parametrize(("gated", "qk_norm", "rotary"), [
    (False, False, True), (False, False, False), (True, True, True), (False, True, True)])
def test_more_ranks_than_query_groups_gather_what_their_linears_make(*, gated: bool, qk_norm: bool,
                                                                     rotary: bool) -> None:
    """core 0.16.1 `attention.py:1398`: all columns are gathered; in backward a sum of all is scattered."""
    block = LLAMA.branches[0].block
    assert isinstance(block, Attention)
    few = replace(block, num_kv_heads=2, gated=gated, qk_norm=qk_norm, rotary=rotary)
    kind = replace(LLAMA, branches=(replace(LLAMA.branches[0], block=few), *LLAMA.branches[1:]))
    whole = 2 * T * ((1 + gated) * few.q_size + 2 * few.kv_size)
    for tp, count in ((2, 0), (4, 1)):
        comms: dict[tuple[str, str, str], int] = {}
        slots: dict[tuple[str, str], int] = {}
        run = run_of(kind, tp=tp)
        tape = record(kind, run, slots, comms)
        check_closed(kind, run, tape)
        names = {number: name for (name, _, _), number in comms.items()}
        for section, name in ((tape.forward, "all_gather"), (tape.backward, "reduce_scatter")):
            sent = [row[3] for row in section.rows if row[0] == Op.COLLECTIVE and names[row[2]] == name]
            assert sent == [whole] * count, (tp, name)
        owners = {number: name for (name, _), number in slots.items()}
        born = [owners[row[2]] for row in tape.forward.rows if row[0] == Op.ALLOC]
        assert born.count("qkv.gathered") == count
