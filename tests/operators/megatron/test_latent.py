"""Latent attention of Megatron-Core."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from operators.megatron.kinds import PLAIN, V2, V3, T, kept_in, latent_kept, moved_by, run_of
from simcore.models.blocks import Branch, LatentAttention, LayerKind, Mlp
from simcore.operators.megatron.implementation import record, tensors
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import RECOMPUTE_BEGIN, RECOMPUTE_END, Kernel, Op, Param


def test_latent_attention_keeps_the_closed_form() -> None:
    mlp = 2 * 7168 * 2 + 4 + 6 * 18432
    assert kept_in(V3, run_of(V3)) == (latent_kept(7168, 128, 1536) + mlp) * T
    router = 8 * 6 + 2 * 4 * 64 + 5 * 64 + 4 * (2 * 64 + 1)  # the softmax before the choice is of all experts
    experts = 6 * (2 * 2048 + 6 * 1408 + 4 + 2 * 4) + 6 * 2816
    assert kept_in(V2, run_of(V2, ep=8)) == (latent_kept(2048, 16, 0) + 2 * 2048 * 2 + 4 + router + experts) * T


@pytest.mark.parametrize(("checkpoint", "less"), [
    # q, k and v; what the norms and projections on the way up keep of q (1536) and of the latent vector (512, twice);
    # the region keeps a view of it instead, and with it all 576 that the projection down made
    ("mla_up_proj", 2 * 128 * (192 + 192 + 128) + (2 * 1536 + 4) + (4 * 512 + 4) - 2 * 576),
    ("layernorm", 2 * 7168 + 4),
    ("mla_up_proj,layernorm", 2 * 128 * (192 + 192 + 128) + (2 * 1536 + 4) + (4 * 512 + 4) - 2 * 576 + 2 * 7168 + 4)])
def test_latent_attention_discards_what_is_made_again(checkpoint: str, less: int) -> None:
    assert kept_in(V3, run_of(V3)) - kept_in(V3, run_of(V3, checkpoint=checkpoint)) == less * T


def test_the_way_up_is_made_again_before_attentions_backward() -> None:
    """`_recompute` is a hook on the core's output: copies of q, k and v lie beside what the replay made."""
    tape = record(V3, run_of(V3, checkpoint="mla_up_proj"), {}, {})
    rows = tape.backward.rows
    begin, end = (next(i for i, r in enumerate(rows) if r[0] == Op.MARK and r[2] == mark)
                  for mark in (RECOMPUTE_BEGIN, RECOMPUTE_END))
    attended = next(i for i, r in enumerate(rows) if r[0] == Op.COMPUTE and r[2] == Kernel.ATTENTION)
    assert begin < end < attended
    born = [r[3] for r in rows[begin:attended] if r[0] == Op.ALLOC]
    for columns in (192 * 128, 192 * 128, 128 * 128):
        assert born.count(2 * columns * T) >= 2, "the replay's own and the copy in the emptied storage"


def test_a_fused_rotation_writes_over_the_query_and_splits_key_and_value_in_one_kernel() -> None:
    """Sizes of 128 heads: 64 rotated columns of the query; 128 + 128 columns become 192 and 128."""
    passes = Kernel.ELEMENTWISE, Kernel.COPY
    fused, apart = (moved_by(V3, passes, options=options)
                    for options in (MegatronOptions(apply_rope_fusion=True), PLAIN))
    query, copied = 128 * 64 * 2, 128 * 192 * 2
    rotated = 64 * 2
    values = 128 * (128 + 128 + 192 + 128) * 2
    assert apart[0] - fused[0] == (14 - 2) * query + 14 * rotated + 4 * copied + 2 * 128 * 128 * 2 - values
    assert apart[1] - fused[1] == (21 - 2) * query + (21 - 1) * rotated + 2 * copied + 4 * 128 * 128 * 2 - values
    kept = [kept_in(V3, run_of(V3, options=options)) for options in (MegatronOptions(apply_rope_fusion=True), PLAIN)]
    assert kept[0] == kept[1]


def _latent_gpt(q_rank: int = 192) -> LayerKind:
    mixer = LatentAttention(512, 8, q_rank, 64, 16, 8, 16, inner_norms=False, bias=True, dropout=True)
    mlp = Mlp(512, 2048, gated=False, gelu=True, bias=True)
    return LayerKind("gpt", "gpt2", 512, (Branch("ln_1", "attn", mixer, layer_norm=True),
                                          Branch("ln_2", "mlp", mlp, layer_norm=True)), dropout=True)


@pytest.mark.parametrize("q_rank", [0, 192])
def test_latent_attention_without_inner_norms_keeps_the_closed_form(q_rank: int) -> None:
    """Megatron's flags without qk_layernorm: TE Linears keep their input once, no statistics; masks are a byte."""
    kind = _latent_gpt(q_rank)
    norms, mlp, masks = 2 * (2 * 2 * 512 + 8), 2 * 2 * 2048, 2 * 512
    attention = 2 * q_rank + 2 * 64 + 2 * 8 * (24 + 24 + 16 + 16) + 4 * 8  # q is made of the norm's output
    assert kept_in(kind, run_of(kind)) == (norms + mlp + masks + attention) * T


def test_latent_attention_without_inner_norms_registers_no_norm_on_the_way_up() -> None:
    """gpt_layer_specs.py: column_parallel_linear; of MLA's linears the output projection alone has a bias."""
    names = [spec.name.removeprefix("self_attention.") for spec in tensors(_latent_gpt())]
    assert names[:9] == ["input_layernorm.weight", "input_layernorm.bias", "linear_proj.weight", "linear_proj.bias",
                         "linear_q_down_proj.weight", "linear_q_up_proj.weight", "linear_kv_down_proj.weight",
                         "linear_kv_up_proj.weight", "mlp.linear_fc1.layer_norm_weight"]


def test_latent_attention_discards_a_layer_norm() -> None:
    """Its input is kept alone: neither what it makes (1 KiB a token) nor the mean and rsigma (8)."""
    kind = _latent_gpt()
    less = kept_in(kind, run_of(kind)) - kept_in(kind, run_of(kind, checkpoint="layernorm"))
    assert less == (2 * 512 + 8) * T


def test_latent_attention_counts_both_head_sizes() -> None:
    """Scores over 192, values over 128, half of the square: s^2 (192 + 128) a head."""
    rows = record(V3, run_of(V3), {}, {}).forward.rows
    assert sum(r[3] for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.ATTENTION) == T * T * 128 * (192 + 128)


@pytest.mark.parametrize("sequence", [False, True])
def test_an_adapter_of_a_projection_down_is_cut_over_tp_and_gathers_its_output(*, sequence: bool) -> None:
    """As two of core 0.16.1's linears with gather_output did on two processes: rank 8, 2048 columns, 576 of them made.

    Both keep their input; without sequence parallelism the gradient of the adapter's input is summed too.
    """
    at = "self_attention.linear_kv_down_proj.adapter"
    plain = run_of(V2, frozen=True, tp=2, sequence_parallel=sequence)
    more = {f"{at}.linear_{end}.weight": shape for end, shape in (("in", (4, 2048)), ("out", (288, 8)))}
    run = replace(plain, params={**plain.params, **{
        name: Param(name, shape, "bf16", True, "", grad_exists=True) for name, shape in more.items()}})
    rows = T // 2 if sequence else T
    sent = [_sent_in_bf16(part) for part in (run, plain)]
    assert sent[0][0] - sent[1][0] == Counter({("all_gather", 2 * 8 * rows): 1, ("all_gather", 2 * 576 * rows): 1})
    assert sent[0][1] - sent[1][1] == Counter({("all_reduce", 2 * 8 * rows): 1, **(
        {} if sequence else {("all_reduce", 2 * 2048 * rows): 1})})
    assert kept_in(V2, run) - kept_in(V2, plain) == 2 * (2048 + 8) * rows


def _sent_in_bf16(run: LayerWorkload) -> list[Counter[tuple[str, int]]]:
    """Collectives over tp in forward and in backward, with their bytes."""
    comms: dict[tuple[str, str, str], int] = {}
    tape = record(V2, run, {}, comms)
    names = {row: name for (name, axis, dtype), row in comms.items() if (axis, dtype) == ("tp", "bf16")}
    return [Counter((names[r[2]], r[3]) for r in part.rows if r[0] == Op.COLLECTIVE and r[2] in names)
            for part in (tape.forward, tape.backward)]
