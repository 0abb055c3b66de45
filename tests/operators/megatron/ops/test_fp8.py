"""Linears in fp8: what layers keep, in bytes a token, worked out from TransformerEngine's source; and what dies.

A Llama layer keeps in bf16 (hidden h, 2 bytes an element): the inputs of both norms 2h each, query, key, value and
attention's output, the input of SwiGLU 2 x 2 x ffn; fp32 rsigma twice and the softmax's statistics. In fp8 it keeps the
outputs of both norms h each, and the input of fc2 ffn. linear_proj's input is attention's output, which is there.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from every import expect_of_every
from operators.megatron.kinds import (
    ATTENTION,
    GPT,
    GPT_MOE,
    LLAMA,
    MAMBA,
    MOE,
    OSS,
    PLAIN,
    QWEN3,
    V2,
    V3,
    T,
    check_closed,
    kept_in,
    run_of,
)
from simcore.models.blocks import LayerKind
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import Dispatcher, FlexBackend, MegatronOptions
from simcore.recording.kernel_shape import MODULE_BITS
from simcore.recording.layer import LayerWorkload
from simcore.recording.number_formats import RECIPES
from simcore.recording.rows import Kernel, Op

EVERY = [replace(kind, fp8=True) for kind in (MAMBA, MOE, ATTENTION, LLAMA, QWEN3, V2, V3, GPT, GPT_MOE)]
LLAMA8, MOE8, V3_8 = (replace(kind, fp8=True) for kind in (LLAMA, MOE, V3))
H, FFN = 4096, 14336
BF16 = 2 * H + 4 + 2 * H + 2 * 1024 + 2 * 1024 + 2 * H + 4 * 32 + 2 * H + 4 + 4 * FFN
"""Bytes that a Llama layer keeps and no linear keeps."""


def run8(kind: LayerKind, recipe: str = "tensorwise", *, transposes: bool = True, lasting: bool = True,
         options: MegatronOptions = PLAIN, **given: object) -> LayerWorkload:
    options = replace(options, fp8_recipe=recipe, fp8_transposes=transposes, keeps_fp8_weights=lasting)
    return run_of(kind, options=options, **given)  # type: ignore[arg-type]


WORKLOADS: list[dict[str, object]] = [
    {}, {"tp": 2, "etp": 1, "sequence_parallel": True}, {"lasting": False}, {"checkpoint": "full"},
    {"checkpoint": "layernorm"}, {"checkpoint": "core_attn,mlp"}, {"frozen": True}, {"lora": 8},
    {"lora": 8, "tp": 2, "sequence_parallel": True, "lasting": False}]


@pytest.mark.parametrize("recipe", RECIPES)
def test_all_that_is_born_dies(recipe: str) -> None:
    def closed(case: tuple[LayerKind, bool, dict[str, object]]) -> None:
        kind, transposes, given = case
        run = run8(kind, recipe, transposes=transposes, **given)  # type: ignore[arg-type]
        check_closed(kind, run, record(kind, run, {}, {}))

    cases = product(EVERY, (True, False), WORKLOADS)
    expect_of_every(((f"{kind.name} {transposes} {given}", (kind, transposes, given))
                     for kind, transposes, given in cases), closed)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind.name in ("moe", "qwen3", "v2")], ids=lambda k: k.name)
def test_all_that_is_discarded_dies_too(kind: LayerKind, recipe: str) -> None:
    run = run8(kind, recipe, checkpoint="moe_act,layernorm", tp=2, sequence_parallel=True)
    check_closed(kind, run, record(kind, run, {}, {}))


@pytest.mark.parametrize(("recipe", "transposes", "scale_of_a_value"), [
    ("tensorwise", True, 0.0), ("tensorwise", False, 0.0), ("blockwise", True, 4 / 128), ("mxfp8", False, 1 / 32)])
def test_linears_keep_a_byte_an_element_and_scales(recipe: str, transposes: bool, scale_of_a_value: float) -> None:
    kept = (H + H + FFN) * (1 + scale_of_a_value)
    one_scale = 3 * 4 * (scale_of_a_value == 0)
    assert kept_in(LLAMA8, run8(LLAMA8, recipe, transposes=transposes)) == (BF16 + kept) * T + one_scale


def test_delayed_scaling_keeps_the_input_of_linear_proj_twice() -> None:
    """Its quantiser would see another maximum in backward, so core does not ask it to keep the original."""
    more = kept_in(LLAMA8, run8(LLAMA8, "delayed")) - kept_in(LLAMA8, run8(LLAMA8))
    assert more == H * T + 4


def test_sequence_parallel_keeps_local_rows() -> None:
    half = run8(LLAMA8, tp=2, sequence_parallel=True)
    assert kept_in(LLAMA8, half) == (BF16 + H + H + FFN) // 2 * T + 3 * 4
    blocks = run8(LLAMA8, "blockwise", tp=2, sequence_parallel=True)
    assert kept_in(LLAMA8, blocks) == (BF16 + (H + H + FFN) * 33 // 32) // 2 * T


def test_weights_of_each_forward_are_kept_twice() -> None:
    weights = (4096 + 2048) * 4096 + 4096 * 4096 + 28672 * 4096 + 4096 * 14336
    more = kept_in(LLAMA8, run8(LLAMA8, lasting=False)) - kept_in(LLAMA8, run8(LLAMA8))
    assert more == 2 * weights + 4 * 2 * 4
    one = kept_in(LLAMA8, run8(LLAMA8, lasting=False, transposes=False)) - kept_in(LLAMA8, run8(LLAMA8))
    assert one == weights + 4 * 4


def test_experts_keep_their_padded_rows_in_fp8() -> None:
    """Nano: 128 experts over ep 8, 6 of them a token: 3,072 rows an expert, which are a multiple of 16.

    Both grouped linears and both of the shared expert's keep a byte for what they kept two for; each expert has its own
    scale. The padded copy of the rows is freed with its quantisation, the one in bf16 is no longer kept.
    """
    wide, narrow = 6 * 2688, 6 * 1856
    less = kept_in(MOE, run_of(MOE, ep=8)) - kept_in(MOE8, run8(MOE8, ep=8))
    shared = 3712 - 2688  # fc2's input halves; fc1's was the norm's output, kept by the router anyway
    assert less == (wide + narrow + shared) * T - 4 * (2 * 16 + 2)


def test_a_router_that_pads_leaves_nothing_to_copy() -> None:
    """Else the rows, their probabilities and the output are copied, and so are their gradients."""
    pads = MegatronOptions(moe_router_padding_for_quantization=True)
    kind = replace(GPT_MOE, fp8=True)
    runs = [run8(kind, options=more, tokens=1000, top_k=2) for more in (PLAIN, pads)]
    names: list[dict[tuple[str, str], int]] = [{}, {}]
    for run, slots in zip(runs, names, strict=True):
        check_closed(kind, run, record(kind, run, slots, {}))
    copied = [{name for name, _ in slots if "padded" in name} for slots in names]
    assert copied[0] >= {"padded", "padded_probs", "unpadded", "grad_padded"}
    assert copied[1] == set()


@pytest.mark.parametrize(("backend", "copies"), [("deepep", True), ("hybridep", False)])
def test_hybridep_puts_rows_where_they_are_padded(backend: FlexBackend, copies: bool) -> None:
    """DeepEP's rows are copied by the experts once more."""
    slots: dict[tuple[str, str], int] = {}
    flex = MegatronOptions(dispatcher="flex", moe_flex_dispatcher_backend=backend)
    run = run8(MOE8, "mxfp8", transposes=False, options=flex, ep=8, tokens=1000, top_k=2)
    check_closed(MOE8, run, record(MOE8, run, slots, {}))
    assert any("padded" in name for name, _ in slots) is copies


def test_experts_in_one_operation_cast_and_activate_in_their_products() -> None:
    """Nano, relu^2: both of the activation's kernels and both casts between the products are gone; memory is as before.

    Of a row of 1856: 2 x 2 and 3 x 2 bytes of the activation and its gradient, twice 2 + 2 x 33/32 of the casts.
    """
    fuser = MegatronOptions(use_transformer_engine_op_fuser=True)
    runs = [run8(MOE8, "mxfp8", transposes=False, options=more, ep=8) for more in (PLAIN, fuser)]
    moved, num_kernels = [], []
    for run in runs:
        tape = record(MOE8, run, {}, {})
        check_closed(MOE8, run, tape)
        rows = [r for s in (tape.forward, tape.backward) for r in s.rows if r[:3:2] == (Op.COMPUTE, Kernel.ELEMENTWISE)]
        moved.append(sum(r[5] for r in rows))
        num_kernels.append(len(rows))
    assert num_kernels[0] - num_kernels[1] == 4
    assert moved[0] - moved[1] == pytest.approx(6 * T * 1856 * (4 + 6 + 2 * (2 + 33 / 16)), rel=1e-3)
    assert kept_in(MOE8, runs[0]) == kept_in(MOE8, runs[1])


def test_experts_in_one_operation_add_the_second_bias_in_the_product() -> None:
    """GPT-OSS: nothing is left of it in forward; backward reads the gradient once for both sums."""
    fuser = MegatronOptions(use_transformer_engine_op_fuser=True)
    kind = replace(OSS, fp8=True)
    run = run8(kind, "mxfp8", transposes=False, options=fuser, ep=8, top_k=4)
    slots: dict[tuple[str, str], int] = {}
    tape = record(kind, run, slots, {})
    check_closed(kind, run, tape)
    assert not any("with_bias" in name or "product" in name for name, _ in slots)
    rows = [r for r in tape.backward.rows if r[0] == Op.COMPUTE and r[2] == Kernel.ELEMENTWISE and r[3]]
    assert rows[0][5] == 2 * 2880 * 4 * T  # behind a copy of rows, which adds nothing


@pytest.mark.parametrize(("recipe", "kernels", "moved"), [
    ("tensorwise", 2, 2 + 2 + 1 + 1), ("delayed", 1, 2 + 1 + 1), ("mxfp8", 1, 2 + 33 / 32 + 33 / 32)])
def test_one_kernel_casts_along_rows_and_columns(recipe: str, kernels: int, moved: float) -> None:
    """The input of fc2, which SwiGLU's own kernel made; scales of the tensor at hand ask for its maximum first."""
    run = run8(LLAMA8, recipe)
    rows = [r for r in record(LLAMA8, run, {}, {}).forward.rows
            if r[0] == Op.COMPUTE and r[2] == Kernel.ELEMENTWISE and r[3] == FFN * T and r[5] != 6 * FFN * T]
    assert len(rows) == kernels
    assert sum(r[5] for r in rows) == pytest.approx(moved * FFN * T, rel=1e-6)


@pytest.mark.parametrize(("recipe", "kernels", "launches"), [
    ("mxfp8", 1, 16), ("tensorwise", 2, 16), ("blockwise", 1, 16), ("delayed", 1, 1)])
def test_rows_of_each_expert_are_quantised_by_kernels_of_their_own(recipe: str, kernels: int, launches: int) -> None:
    """Nano over ep 8 has 16 experts a rank: launches for the input of fc2, in operators of torch."""
    rows = record(MOE8, run8(MOE8, recipe, ep=8), {}, {}).forward.rows
    casts = [r for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.ELEMENTWISE and r[3] == 6 * T * 1856
             and r[4] >> MODULE_BITS]
    assert [r[4] >> MODULE_BITS for r in casts] == [launches] * kernels


@pytest.mark.parametrize(("dispatcher", "sent", "each"), [("alltoall", 8 * 128, 256), ("flex", 1000, 256)])
def test_padded_rows_are_sent_too(dispatcher: Dispatcher, sent: int, each: int) -> None:
    """8 experts over ep 2: 500 tokens, 2 a token, are 125 rows for each expert, 250 of both senders."""
    more = MegatronOptions(moe_router_padding_for_quantization=True, dispatcher=dispatcher)
    kind, slots = replace(GPT_MOE, fp8=True), dict[tuple[str, str], int]()
    run = run8(kind, options=more, tokens=500, top_k=2, ep=2)
    tape = record(kind, run, slots, {})
    names = {number: name for (name, _), number in slots.items()}
    sizes = {names[row[2]]: row[3] for row in tape.forward.rows if row[0] == Op.ALLOC}
    assert sizes["mlp.experts.linear_fc1"] == 4 * each * 1024 * 2
    assert sizes["mlp.experts.linear_fc2.input.fp8_columns"] == 4 * each * 1024 + 4 * 4
    assert sizes.get("permuted", 0) == (sent * 512 * 2 if dispatcher == "alltoall" else 0)


def test_a_discarded_input_is_not_kept_in_fp8_either() -> None:
    act = run8(MOE8, ep=8, checkpoint="moe_act")
    assert kept_in(MOE8, run8(MOE8, ep=8)) - kept_in(MOE8, act) == 6 * 1856 * T + 4 * 16


def test_latent_attention_keeps_fp8_of_what_goes_down_and_up() -> None:
    down = 2 * 7168  # both projections down quantise the same norm's output, each for itself
    less = (kept_in(V3, run_of(V3)) - kept_in(V3_8, run8(V3_8))) / T
    assert less == pytest.approx(2 * 7168 - down + 1536 + 512 + 7168 + 18432, abs=0.1)


def made_in_backward(run: LayerWorkload) -> dict[str, list[int]]:
    """Bytes of what a Llama layer's backward allocates, by name, in order."""
    slots: dict[tuple[str, str], int] = {}
    rows = record(LLAMA8, run, slots, {}).backward.rows
    names = {number: name for (name, _), number in slots.items()}
    found: dict[str, list[int]] = {}
    for op, _, slot, amount, _, _ in rows:
        if op == Op.ALLOC:
            found.setdefault(names[slot], []).append(amount)
    return found


def test_backward_quantises_the_gradient_for_both_products() -> None:
    """On Hopper along rows and along columns; on Blackwell one copy serves both."""
    hopper, blackwell = (made_in_backward(run8(LLAMA8, transposes=transposes)) for transposes in (True, False))
    for linear, columns in (("mlp.linear_fc1", 2 * FFN), ("mlp.linear_fc2", H), ("self_attention.linear_qkv", 6144)):
        assert hopper[f"grad_{linear}.fp8"] == hopper[f"grad_{linear}.fp8_columns"] == [T * columns + 4]
        assert f"grad_{linear}.fp8_columns" not in blackwell
    assert hopper["self_attention.linear_proj.input.fp8_columns"] == [T * H + 4]  # the kept bf16 input, late


def test_gathered_inputs_are_transposed_and_gathered_blocks_are_not() -> None:
    whole, blocks = (made_in_backward(run8(LLAMA8, recipe, tp=2, sequence_parallel=True))
                     for recipe in ("tensorwise", "blockwise"))
    assert whole["ln_out_total.fp8"] == whole["ln_out_total.fp8_columns"] == [T * H + 4] * 2
    assert "ln_out_total.fp8" not in blocks
    assert blocks["ln_out_total.fp8_columns"] == [T * H * 33 // 32] * 2
    assert whole["grad_mlp.linear_fc2_local.fp8"] == [T // 2 * H + 4]


def test_frozen_linears_keep_nothing_of_their_inputs() -> None:
    assert kept_in(LLAMA8, run8(LLAMA8, frozen=True)) == BF16 * T
    made = made_in_backward(run8(LLAMA8, frozen=True))
    assert "grad_mlp.linear_fc2.fp8_columns" not in made
    assert made["grad_mlp.linear_fc1.fp8_columns"] == [T * 2 * FFN + 4]  # of a LayerNormLinear all the same


@pytest.mark.parametrize(("tp", "rows"), [(1, T), (2, T // 2)])
def test_adapters_read_bf16_and_leave_fp8_rows_behind(tp: int, rows: int) -> None:
    """Rank 8 on all four linears: bf16 norms' outputs, gathered, and fc2's input, and eight numbers of each.

    linear_proj's input is attention's output. Local rows of both norms' outputs lie there in fp8 too.
    """
    frozen, adapted = (kept_in(LLAMA8, run8(LLAMA8, frozen=not lora, lora=lora, tp=tp, sequence_parallel=tp > 1))
                       for lora in (0, 8))
    seen = 2 * (2 * H * T) + 2 * FFN // tp * T
    low = 2 * 8 * 4 * T
    assert adapted - frozen == seen + low + 2 * (H * rows + 4)


OVERLAP = MegatronOptions(tp_comm_overlap=True)


@pytest.mark.parametrize("transposes", [True, False])
def test_user_buffers_hold_what_is_gathered(transposes: bool) -> None:
    """Rows of gathered tensors lie in them, columns on Hopper do not; so does the input gradient before its sum."""
    plain, buffered = (run8(LLAMA8, transposes=transposes, options=more, tp=2, sequence_parallel=True)
                       for more in (PLAIN, OVERLAP))
    assert kept_in(LLAMA8, buffered) == kept_in(LLAMA8, plain)
    before, after = made_in_backward(plain), made_in_backward(buffered)
    gone = {"ln_out_total.fp8", "grad_mlp.linear_fc2.fp8", "grad_self_attention.linear_proj.fp8", "grad_ln_out"}
    assert set(before) - set(after) == gone
    assert after["grad_scattered"] == before["grad_scattered"] == [T // 2 * H * 2] * 2
    assert ("ln_out_total.fp8_columns" in after) == transposes


@pytest.mark.parametrize("kind", [LLAMA, LLAMA8, GPT, replace(GPT, fp8=True)], ids=lambda k: f"{k.name}-{k.fp8}")
@pytest.mark.parametrize("recipe", ["tensorwise", "delayed", "mxfp8"])
def test_user_buffers_leave_nothing_behind(kind: LayerKind, recipe: str) -> None:
    made = []
    for more in (PLAIN, OVERLAP):
        run = run8(kind, recipe, options=more, tp=2, sequence_parallel=True)
        tape = record(kind, run, {}, {})
        check_closed(kind, run, tape)
        made.append(sum(row[3] for one in (tape.forward, tape.backward) for row in one.rows if row[0] == Op.ALLOC))
    assert made[1] < 0.95 * made[0]


def test_products_are_those_of_8_bits_but_for_attention() -> None:
    tape = record(LLAMA8, run8(LLAMA8), {}, {})
    kernels = [row[2] for section in (tape.forward, tape.backward) for row in section.rows if row[0] == Op.COMPUTE]
    assert kernels.count(Kernel.FP8_GEMM) == 4 * 3
    assert kernels.count(Kernel.GEMM) == 0
    assert kernels.count(Kernel.ATTENTION) == 2


@pytest.mark.parametrize(("recipe", "width"), [("tensorwise", 1), ("mxfp8", 1 + 1 / 32)])
def test_products_read_operands_of_8_bits_and_write_16(recipe: str, width: float) -> None:
    recorded = record(LLAMA8, run8(LLAMA8, recipe), {}, {})
    moved = [row[5] for row in recorded.forward.rows if row[0] == Op.COMPUTE and row[2] == Kernel.FP8_GEMM]
    qkv, proj, fc1, fc2 = ((H + 2048, H), (H, H), (2 * FFN, H), (H, FFN))
    assert moved == [round(width * (T * k + n * k)) + 2 * T * n for n, k in (qkv, proj, fc1, fc2)]


# ---- nvfp4 -----------------------------------------------------------------------------------------------------------
def test_linears_in_fp4_keep_half_a_byte_an_element_and_scales() -> None:
    kept = (H + H + FFN) * (1 / 2 + 1 / 16)
    assert kept_in(LLAMA8, run8(LLAMA8, "nvfp4", transposes=False)) == (BF16 + kept) * T + 3 * 4


def _passes(recipe: str) -> list[tuple[int, int]]:
    """Casts of a layer's first linear in forward: (kernel, bytes)."""
    recorded = record(LLAMA8, run8(LLAMA8, recipe, transposes=False), {}, {})
    rows = [(row[2], row[5]) for row in recorded.forward.rows if row[0] == Op.COMPUTE]
    return rows[:[kernel for kernel, _ in rows].index(Kernel.FP4_GEMM if recipe == "nvfp4" else Kernel.FP8_GEMM)]


def test_a_tensor_in_fp4_is_read_for_its_maxima_then_cast() -> None:
    wide, copy = 2 * H * T, (H * T // 2 + H * T // 16 + 4)
    assert sorted(_passes("nvfp4")) == sorted([
        (Kernel.ELEMENTWISE, wide), (Kernel.ELEMENTWISE, wide + 2 * copy), (Kernel.NORM, 2 * wide)])
    assert len(_passes("mxfp8")) == 2


def test_where_rows_do_not_fit_the_transform_has_kernels_of_its_own() -> None:
    """24 tokens are no multiple of 64: the transform is written in bf16 and read again."""
    run = replace(run8(LLAMA8, "nvfp4", transposes=False), batch=1, seq=24)
    rows = [row for row in record(LLAMA8, run, {}, {}).forward.rows if row[0] == Op.COMPUTE]
    casts = [row[5] for row in rows[:[row[2] for row in rows].index(Kernel.FP4_GEMM)] if row[2] == Kernel.ELEMENTWISE]
    assert casts[:3] == [2 * H * 24, 4 * H * 24, 2 * H * 24]


def test_all_three_products_of_a_linear_are_in_fp4() -> None:
    tape = record(LLAMA8, run8(LLAMA8, "nvfp4", transposes=False), {}, {})
    kernels = [row[2] for section in (tape.forward, tape.backward) for row in section.rows if row[0] == Op.COMPUTE]
    assert (kernels.count(Kernel.FP4_GEMM), kernels.count(Kernel.FP8_GEMM), kernels.count(Kernel.GEMM)) == (12, 0, 0)
    experts = record(MOE8, run8(MOE8, "nvfp4", transposes=False, ep=8), {}, {})
    kernels = [row[2] for row in experts.forward.rows if row[0] == Op.COMPUTE]
    assert kernels.count(Kernel.FP4_GROUPED_GEMM) == kernels.count(Kernel.FP4_GEMM) == 2


def test_routers_stay_wide() -> None:
    tape = record(MOE8, run8(MOE8, ep=8), {}, {})
    kernels = [row[2] for row in tape.forward.rows if row[0] == Op.COMPUTE]
    assert kernels.count(Kernel.GEMM) == 1
    assert kernels.count(Kernel.FP8_GROUPED_GEMM) == kernels.count(Kernel.FP8_GEMM) == 2


def test_attention_in_fp8_casts_what_it_reads() -> None:
    """Queries of 4096 columns, keys and values of 1024, along both sides; in backward the output's gradient."""
    run = run8(LLAMA8, "mxfp8", transposes=False, options=MegatronOptions(fp8_dot_product_attention=True))
    tape = record(LLAMA8, run, {}, {})
    for part, columns in ((tape.forward, 4096 + 2 * 1024), (tape.backward, 4096)):
        rows = [r for r in part.rows if r[0] == Op.COMPUTE]
        at = next(i for i, r in enumerate(rows) if r[2] == Kernel.FP8_ATTENTION)
        assert rows[at - 1][5] == pytest.approx(columns * T * (2 + 2 * 33 / 32))
        assert not any(r[2] == Kernel.ATTENTION for r in rows)


@pytest.mark.parametrize(("recipe", "kept"), [("delayed", 2 * H + 2 * 1024), ("tensorwise", 3 * H + 2 * 1024)])
def test_attention_of_one_scale_a_tensor_keeps_bytes(recipe: str, kept: int) -> None:
    """Query, key and value of 6144 columns in all; the output in 8 bits, or where now's maximum scales it in 16."""
    eight = MegatronOptions(fp8_dot_product_attention=True)
    runs = [run8(LLAMA8, recipe, transposes=False, options=options) for options in (eight, PLAIN)]
    sizes = [kept_in(LLAMA8, run) for run in runs]
    assert sizes[1] - sizes[0] == pytest.approx((2 * (2 * H + 2 * 1024) - kept) * T, abs=16)  # scales
    check_closed(LLAMA8, runs[0], record(LLAMA8, runs[0], {}, {}))


def test_gradients_of_attention_come_in_8_bits_under_delayed_scaling() -> None:
    for recipe, narrow in (("delayed", 1), ("tensorwise", 0)):
        slots: dict[tuple[str, str], int] = {}
        record(LLAMA8, run8(LLAMA8, recipe, options=MegatronOptions(fp8_dot_product_attention=True)), slots, {})
        assert sum(name == "grad_qkv_fp8" for name, _ in slots) == narrow


@pytest.mark.parametrize(("recipe", "saved"), [
    # A cast that the activation does: 2 bytes are read and one written, of fc2's input, and of fc1's gradient (2 FFN).
    ("delayed", 3 * FFN + 3 * 2 * FFN), ("mxfp8", (2 + 2 * 33 / 32) * 3 * FFN), ("blockwise", 0),
    ("tensorwise", 2 * FFN + 2 * 2 * FFN), ("nvfp4", 0)])
def test_operations_in_place_of_a_dense_mlp_save_casts(recipe: str, saved: float) -> None:
    """Delayed scaling and mxfp8 save the whole cast, scaling by the maximum saves its reading, others nothing."""
    moved = []
    for options in (PLAIN, MegatronOptions(fuses_dense_mlp=True)):
        tape = record(LLAMA8, run8(LLAMA8, recipe, transposes=False, options=options), {}, {})
        moved.append(sum(r[5] for part in (tape.forward, tape.backward) for r in part.rows
                         if r[0] == Op.COMPUTE and r[2] == Kernel.ELEMENTWISE))
    assert moved[0] - moved[1] == pytest.approx(saved * T, abs=64)


def test_a_norm_casts_as_it_writes() -> None:
    """Beside its own pass of two tensors: nothing under delayed scaling, one cast and no maximum under tensorwise."""
    for recipe, casts in (("delayed", 0), ("tensorwise", 1), ("mxfp8", 1)):
        tape = record(LLAMA8, run8(LLAMA8, recipe, transposes=False), {}, {})
        rows = [r[2] for r in tape.forward.rows if r[0] == Op.COMPUTE]
        before = rows[:rows.index(Kernel.FP8_GEMM)]
        assert before.count(Kernel.ELEMENTWISE) == casts, recipe


def test_older_layers_transpose_frozen_weights_in_backward() -> None:
    """A byte an element is read and written for each of four linears: nothing of it is kept."""
    weights = {H * (H + 2 * 1024), H * H, H * 2 * FFN, FFN * H}
    for options, expected in ((MegatronOptions(transposes_weights_again=True), weights), (PLAIN, set())):
        slots: dict[tuple[str, str], int] = {}
        run = run8(LLAMA8, "delayed", lora=8, options=options)
        tape = record(LLAMA8, run, slots, {})
        made = {slot for (name, _), slot in slots.items() if name.endswith("weight_transposed")}
        assert {r[3] for r in tape.backward.rows if r[0] == Op.ALLOC and r[2] in made} == expected
        check_closed(LLAMA8, run, tape)


def test_filling_rows_up_is_no_permutation() -> None:
    """A dispatcher's permutation keeps the host busy with maps and counts; a copy of rows does not."""
    def permutations(kind: LayerKind, run: LayerWorkload) -> int:
        tape = record(kind, run, {}, {})
        return sum(row[0] == Op.COMPUTE and row[2] == Kernel.PERMUTE for part in (tape.forward, tape.backward)
                   for row in part.rows)

    assert permutations(MOE8, run8(MOE8, ep=8)) == permutations(MOE, run_of(MOE, ep=8)) > 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_quantiser_is_issued_like_an_operator_and_not_like_a_module(recipe: str) -> None:
    rows = [row for row in record(LLAMA8, run8(LLAMA8, recipe), {}, {}).backward.rows if row[0] == Op.COMPUTE]
    casts = [row for row in rows if row[2] == Kernel.ELEMENTWISE and row[4] >> MODULE_BITS == 1]
    passes = 2 if recipe in ("tensorwise", "nvfp4") else 1
    sums = 2 + 2  # of the residual stream's gradients; of the norms' gradients and what was there
    assert len(casts) == (4 + (recipe != "delayed")) * passes + sums  # gradients, and the bf16 input of linear_proj


# ---- linears with recipes of their own -------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: str(kind.name))
@pytest.mark.parametrize("given", [{}, {"tp": 2, "etp": 1, "sequence_parallel": True}, {"checkpoint": "layernorm"},
                                   {"frozen": True}, {"lora": 8}], ids=str)
def test_all_that_linears_of_several_recipes_make_dies(kind: LayerKind, given: dict[str, object]) -> None:
    recipes = MegatronOptions(quant_recipe="*.linear_qkv=bf16;*fc1=mxfp8;*in_proj=bf16;*out_proj=mxfp8")
    run = run8(kind, "nvfp4", transposes=False, options=recipes, **given)  # type: ignore[arg-type]
    check_closed(kind, run, record(kind, run, {}, {}))


def test_a_linear_may_have_a_recipe_of_its_own() -> None:
    run = run8(LLAMA8, "nvfp4", transposes=False, options=MegatronOptions(
        quant_recipe="*.linear_qkv=bf16;*.linear_fc1=mxfp8"))
    tape = record(LLAMA8, run, {}, {})
    kernels = [row[2] for part in (tape.forward, tape.backward) for row in part.rows if row[0] == Op.COMPUTE]
    assert [kernels.count(kernel) for kernel in (Kernel.GEMM, Kernel.FP8_GEMM, Kernel.FP4_GEMM)] == [3, 3, 6]
    other = run8(LLAMA8, "nvfp4", transposes=False, options=MegatronOptions(quant_recipe="mtp.*=bf16"))
    assert kept_in(LLAMA8, other) == kept_in(LLAMA8, run8(LLAMA8, "nvfp4", transposes=False))
