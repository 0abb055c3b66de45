"""Automodel's tensors and records against what nemo-automodel itself registers and keeps."""

from __future__ import annotations

import pytest

from simcore.errors import NotYet
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.automodel.lora import adapters
from simcore.models.blocks import (
    Attention,
    Branch,
    Embedding,
    FinalNorm,
    Head,
    LayerKind,
    Loss,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
)
from simcore.operators.automodel.experts import received_rows
from simcore.operators.automodel.implementation import record, tensors
from simcore.operators.automodel.options import RELEASE_0_7_0, AutomodelOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Kernel, Op, Param, Section

PLAIN = AutomodelOptions()
H, V = 2688, 131072


def _layer(name: str, block: Mixer) -> LayerKind:
    return LayerKind(name, "nemotron_h", H, (Branch("norm", "mixer", block),))


MAMBA = _layer("mamba", Mamba2(H, 64, 64, 8, 128, 4, 128))
MOE = _layer("moe", Moe(H, 128, 6, 1856, 3712))
ATTENTION = _layer("attention", Attention(H, 32, 2, 128))
EMBEDDING, NORM, HEAD, LOSS = (
    LayerKind(name, "nemotron_h", H, block=block)
    for name, block in (("embedding", Embedding(V, H)), ("final_norm", FinalNorm(H)), ("head", Head(V, H)),
                        ("loss", Loss(V, upcast=True))))

# `named_parameters()` and `named_buffers()` of NemotronHForCausalLM, nemo-automodel 0.7.0, pattern ME*, prefix dropped.
REGISTERED = {
    "mamba": [
        ("norm.weight", (2688,)),
        ("mixer.in_proj.weight", (10304, 2688)),
        ("mixer.conv1d.weight", (6144, 1, 4)),
        ("mixer.conv1d.bias", (6144,)),
        ("mixer._fp32_params.dt_bias", (64,)),
        ("mixer._fp32_params.A_log", (64,)),
        ("mixer._fp32_params.D", (64,)),
        ("mixer.norm.weight", (4096,)),
        ("mixer.out_proj.weight", (2688, 4096)),
    ],
    "moe": [
        ("norm.weight", (2688,)),
        ("mixer.gate.weight", (128, 2688)),
        ("mixer.experts.gate_and_up_projs", (128, 2688, 1856)),
        ("mixer.experts.down_projs", (128, 1856, 2688)),
        ("mixer.shared_experts.up_proj.weight", (3712, 2688)),
        ("mixer.shared_experts.down_proj.weight", (2688, 3712)),
    ],
    "attention": [
        ("norm.weight", (2688,)),
        ("mixer.q_proj.weight", (4096, 2688)),
        ("mixer.k_proj.weight", (256, 2688)),
        ("mixer.v_proj.weight", (256, 2688)),
        ("mixer.o_proj.weight", (2688, 4096)),
    ],
    "embedding": [("model.embed_tokens.weight", (131072, 2688))],
    "final_norm": [("model.norm.weight", (2688,))],
    "head": [("lm_head.weight", (131072, 2688))],
    "loss": [],
}
BUFFERS = {"moe": [("mixer.gate.e_score_correction_bias", (128,), "fp32")]}


def test_tensors_are_those_that_automodel_registers() -> None:
    for kind in (MAMBA, MOE, ATTENTION, EMBEDDING, NORM, HEAD, LOSS):
        specs = tensors(kind)
        assert [(t.name, t.shape) for t in specs if not t.is_buffer] == REGISTERED[kind.name]
        assert [(t.name, t.shape, t.stored) for t in specs if t.is_buffer] == BUFFERS.get(kind.name, [])
        assert all(t.copies == 1 for t in specs)


def test_components_of_nano() -> None:
    # The model's own counts, research/frameworks.md section 1.
    expected = {"mamba": 38_742_208, "routed_experts": 1_277_165_568, "shared_experts": 19_955_712, "router": 344_064,
                "attention": 23_396_352, "embedding": 352_321_536, "lm_head": 352_321_536}
    found: dict[str, int] = {}
    for kind in (MAMBA, MOE, ATTENTION, EMBEDDING, HEAD):
        for t in tensors(kind):
            if not t.is_buffer and t.component != "norms":
                found[t.component] = found.get(t.component, 0) + t.numel
    assert found == expected


def test_what_insists_on_fp32() -> None:
    assert [t.name for t in tensors(MAMBA) if t.stored] == [
        "mixer._fp32_params.dt_bias", "mixer._fp32_params.A_log", "mixer._fp32_params.D"]
    assert {t.component for t in tensors(MAMBA)} == {"norms", "mamba"}


def test_llama_registers_its_norms_last() -> None:
    branches = (Branch("input_layernorm", "self_attn", Attention(64, 4, 2, 16, rotary=True)),
                Branch("post_attention_layernorm", "mlp", Mlp(64, 128)))
    specs = tensors(LayerKind("decoder", "llama", 64, branches))
    assert [(t.name, t.shape) for t in specs] == [  # nemo-automodel 0.7.0, LlamaForCausalLM
        ("self_attn.q_proj.weight", (64, 64)),
        ("self_attn.k_proj.weight", (32, 64)),
        ("self_attn.v_proj.weight", (32, 64)),
        ("self_attn.o_proj.weight", (64, 64)),
        ("mlp.gate_proj.weight", (128, 64)),
        ("mlp.up_proj.weight", (128, 64)),
        ("mlp.down_proj.weight", (64, 128)),
        ("input_layernorm.weight", (64,)),
        ("post_attention_layernorm.weight", (64,)),
    ]


# ---- records ----------------------------------------------------------------------------------------------------
RECIPE = {rank: LoraChoice(rank, exclude_modules=("*.out_proj",)) for rank in (8, 32)}
WITH_EXPERTS = {rank: LoraChoice(rank, ("*_proj", "*experts")) for rank in (8, 32)}
TOKENS = 8192


def _params(kind: LayerKind, lora: LoraChoice | None, ep: int) -> dict[str, Param]:
    specs = tensors(kind)
    extra = adapters(kind, specs, lora) if lora else ()
    found = {}
    for t in (*(s for s in specs if not s.is_buffer), *extra):
        shape = (t.shape[0] // ep, *t.shape[1:]) if t.dims[0] == "experts" else t.shape
        found[t.name] = Param(t.name, shape, t.stored or "bf16", lora is None or t in extra)
    return found


def _record(kind: LayerKind, tokens: int = TOKENS, lora: LoraChoice | None = None, ep: int = 8,
            loss: str = "masked_fp32", checkpoint: str = "none", options: AutomodelOptions = PLAIN, cp: int = 1,
            first: bool = False, packed: tuple[int, int] = (0, 0),
            ) -> tuple[RecordedLayer, dict[tuple[str, str, str], int]]:
    run = LayerWorkload(1, tokens, "bf16", _params(kind, lora, ep), loss=loss, checkpoint=checkpoint, ep=ep,
                        options=options,
              rows_per_token=6 << 16, cp=cp, first=first, sequences=packed[0], attended=packed[1])
    comms: dict[tuple[str, str, str], int] = {}
    return record(kind, run, {}, comms), comms


def _walk(section: Section, live: int = 0) -> tuple[int, int]:
    """Bytes alive at the end, and the most there ever were."""
    peak = live
    for op, _, _, amount, _, _ in section.rows:
        live += amount if op in (Op.ALLOC, Op.FREE) else 0
        peak = max(peak, live)
    return live, peak


def _kept(kind: LayerKind, **choices: object) -> int:
    """Bytes a token that a layer keeps: two sequence lengths, because some bytes are there whatever the length.

    The output counts in place of the input, which the layer before has made and which has the same size.
    """
    halves = [_walk(_record(kind, tokens, **choices)[0].forward)[0] for tokens in (TOKENS // 2, TOKENS)]  # type: ignore[arg-type]
    return round((halves[1] - halves[0]) / (TOKENS // 2))


# research/activations.md table 1.1, Automodel rows: EP 8, DeepEP, balanced.
@pytest.mark.parametrize(("kind", "lora", "expected"), [
    (MAMBA, None, 39_588),
    (MOE, None, 114_778),
    (ATTENTION, None, 28_292),
    (MAMBA, RECIPE[8], 39_588),
    (MOE, RECIPE[8], 42_074),
    (ATTENTION, RECIPE[8], 28_292),
    (MAMBA, RECIPE[32], 39_588),
    (MOE, RECIPE[32], 42_074),
    (ATTENTION, RECIPE[32], 28_292),
    (MOE, WITH_EXPERTS[32], 97_370),
    (MOE, WITH_EXPERTS[8], 96_794),
])
def test_kept_bytes_per_token(kind: LayerKind, lora: LoraChoice | None, expected: int) -> None:
    assert _kept(kind, lora=lora) == expected


# Same table, row activation_checkpointing: 2h, in MoE layers also 4E + 12k.
@pytest.mark.parametrize("lora", [None, RECIPE[8], WITH_EXPERTS[8]])
@pytest.mark.parametrize(("kind", "expected"), [(MAMBA, 5_376), (MOE, 5_960), (ATTENTION, 5_376)])
def test_checkpointed_blocks_keep_the_input_and_the_routing(kind: LayerKind, expected: int,
                                                            lora: LoraChoice | None) -> None:
    assert _kept(kind, lora=lora, checkpoint="full") == expected


def test_what_0_7_0_keeps_instead() -> None:
    # No reciprocal root (models/common/utils.py); relu^2 and its input of the shared expert, because the fused LoRA MLP
    # is not installed on meta tensors (_peft/lora_mlp.py); the dispatch of a checkpointed block (moe/parallelizer.py).
    assert _kept(MAMBA, options=RELEASE_0_7_0) == 39_584
    assert _kept(MOE, options=RELEASE_0_7_0) == 114_774
    assert _kept(MOE, lora=RECIPE[8], options=RELEASE_0_7_0) == 42_074 - 4 + 2 * 3712
    assert 6_300 < _kept(MOE, checkpoint="full", options=RELEASE_0_7_0) < 6_400


def test_without_expert_parallelism_only_mamba_and_mlp_are_checkpointed() -> None:
    dense = {"ep": 1, "options": AutomodelOptions(dispatcher="torch")}
    assert _kept(MAMBA, checkpoint="full", **dense) == 5_376
    assert _kept(ATTENTION, checkpoint="full", **dense) == 28_292
    assert _kept(MOE, checkpoint="full", **dense) == _kept(MOE, **dense)


def test_the_router_keeps_a_fp32_copy_of_its_weight() -> None:
    # 4 h E bytes whatever the length: F.linear saves the cast weight for its input's gradient (moe/layers.py, Gate).
    live = _walk(_record(MOE)[0].forward)[0]
    assert live - _kept(MOE) * TOKENS == pytest.approx(4 * 128 * 2688, abs=TOKENS)


def test_mamba_peaks_are_the_measured_ones() -> None:
    # mamba_ssm's wrappers with stubbed kernels: 43,040 above the input, 124,163 above what is saved and the gradient.
    layer = _record(MAMBA)[0]
    kept, forward = _walk(layer.forward)
    norm_and_projection = 5_376 + 4 + 20_608
    assert forward / TOKENS - norm_and_projection == pytest.approx(43_040, abs=1)
    assert (_walk(layer.backward, kept)[1] - kept) / TOKENS == pytest.approx(124_163, abs=1)


# research/activations.md 3.8: bytes per token and vocabulary entry; 0.7.0 drops the logits before backward.
@pytest.mark.parametrize(("loss", "options", "after_forward", "forward", "backward"), [
    ("masked_fp32", PLAIN, 6, 10, 14),
    ("masked", PLAIN, 4, 4, 8),
    ("te_inplace", PLAIN, 2, 2, 2),
    ("masked_fp32", RELEASE_0_7_0, 4, 10, 12),
    ("masked", RELEASE_0_7_0, 2, 4, 6),
    ("causal", RELEASE_0_7_0, 2, 4, 6),
])
def test_loss_heads(loss: str, options: AutomodelOptions, after_forward: int, forward: int,
                    backward: int) -> None:
    layer, unit = _record(LOSS, loss=loss, options=options)[0], TOKENS * V
    live, peak = _walk(layer.forward, 2 * unit)
    assert peak / unit == pytest.approx(forward, abs=1e-3)
    live = _walk(layer.after, live)[0]
    assert live / unit == pytest.approx(after_forward, abs=1e-3)
    live, peak = _walk(layer.backward, _walk(layer.seed, live)[0])
    assert peak / unit == pytest.approx(backward, abs=1e-3)
    # What remains is the gradient of the logits, after the step's end not even held logits.
    assert _walk(layer.late, live)[0] == 2 * unit


def test_linear_losses_make_no_logits() -> None:
    for loss in ("cut", "chunked"):
        layer = _record(HEAD, loss=loss, lora=RECIPE[8])[0]
        kept, peak = _walk(layer.forward)
        assert kept <= 4 * TOKENS + 4
        assert peak <= 512 * V * 6 + 4 * TOKENS + 4
        assert not layer.grads  # the head's adapters are bypassed
        assert len(_record(HEAD, loss=loss)[0].grads) == 1


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(NotYet, match="masked_fp32"):
        _record(LOSS, loss="liger")


@pytest.mark.parametrize("options", [PLAIN, RELEASE_0_7_0, AutomodelOptions(dispatcher="torch", experts_unit=True)])
@pytest.mark.parametrize("checkpoint", ["none", "full"])
@pytest.mark.parametrize("lora", [None, RECIPE[8], WITH_EXPERTS[8]])
@pytest.mark.parametrize("kind", [MAMBA, MOE, ATTENTION, NORM])
def test_backward_leaves_only_gradients(kind: LayerKind, lora: LoraChoice | None, checkpoint: str,
                                        options: AutomodelOptions) -> None:
    layer, _ = _record(kind, lora=lora, checkpoint=checkpoint, options=options)
    live = 0
    for section in (layer.forward, layer.after, layer.late, layer.backward):
        live = _walk(section, live)[0]
    # The output and the input's gradient come, the input and the output's gradient go, all of the same size.
    assert live == sum(num_bytes for _, _, num_bytes in layer.grads)
    wanted = {n for n, p in _params(kind, lora, 8).items() if p.trainable and not _dead(n)}
    assert {p.name for p, _, _ in layer.grads} == wanted


def _dead(name: str) -> bool:
    return "out_proj.lora" in name  # the fused kernel takes the weight, the adapter is never run


def test_frozen_mamba_still_computes_the_output_projections_gradient() -> None:
    frozen = _record(MAMBA, lora=RECIPE[8])[0]
    assert _gemm(frozen.backward) > _gemm(frozen.forward)


def _gemm(section: Section) -> int:
    return sum(row[3] for row in section.rows if row[0] == Op.COMPUTE and row[2] in (Kernel.GEMM, Kernel.GROUPED_GEMM))


def test_flops_are_counted_as_they_run() -> None:
    # research/time.md section 1, per token.
    assert _gemm(_record(MAMBA)[0].forward) == TOKENS * (55_394_304 + 22_020_096)
    assert _gemm(_record(MOE)[0].forward) == TOKENS * (688_128 + 119_734_272 + 39_911_424)
    assert _gemm(_record(ATTENTION)[0].forward) == TOKENS * 46_792_704
    assert _gemm(_record(MOE)[0].backward) == 2 * _gemm(_record(MOE)[0].forward)
    scan = sum(row[3] for row in _record(MAMBA)[0].forward.rows if row[0] == Op.COMPUTE and row[2] == Kernel.MAMBA_SCAN)
    assert scan == pytest.approx(TOKENS * 3_416_064, rel=1e-3)


def test_packed_sequences_cost_a_scan_their_numbers_and_see_themselves_alone() -> None:
    assert _kept(MAMBA, packed=(4, 1024)) == 39_588 + 4
    assert _kept(ATTENTION, packed=(4, 1024)) == 28_292
    whole, packed = (sum(row[3] for row in _record(ATTENTION, packed=lengths)[0].forward.rows
                         if row[0] == Op.COMPUTE and row[2] == Kernel.ATTENTION) for lengths in ((0, 0), (4, 1024)))
    assert whole == packed * TOKENS // 1024


def _sent(layer: RecordedLayer, comms: dict[tuple[str, str, str], int]) -> list[tuple[str, str, int]]:
    names = {number: key for key, number in comms.items()}
    return [(*names[row[2]][:2], row[3]) for section in (layer.forward, layer.backward) for row in section.rows
            if row[0] == Op.COLLECTIVE]


def test_deepep_sends_a_token_once_to_each_rank() -> None:
    arrived = received_rows(TOKENS, MOE.branches[0].block, 8)  # type: ignore[arg-type]
    assert arrived / TOKENS == pytest.approx(4.471, abs=1e-3)  # research/activations.md 3.5
    assert _sent(*_record(MOE)) == [("all_to_all", "ep", arrived * 2 * H)] * 4


def test_the_torch_dispatcher_gathers_and_reduces_all_tokens() -> None:
    sent = _sent(*_record(MOE, options=AutomodelOptions(dispatcher="torch")))
    everyone = 8 * TOKENS
    assert sent == [
        ("all_gather", "ep", everyone * 2 * H), ("all_gather", "ep", everyone * 4 * 6),
        ("all_gather", "ep", everyone * 8 * 6), ("all_reduce", "ep", everyone * 4 * H),
        ("all_reduce", "ep", everyone * 4 * H), ("all_reduce", "ep", everyone * 4 * 6),
        ("all_reduce", "ep", everyone * 2 * H),
    ]
    assert _sent(*_record(MOE, ep=1)) == []


def test_experts_as_a_unit_mark_their_borders() -> None:
    unit = AutomodelOptions(experts_unit=True)
    layer, _ = _record(MOE, options=unit)
    assert _marks(layer.forward) == [2, 3]
    assert _marks(layer.backward) == [4, 5]
    layer, _ = _record(MOE, options=unit, checkpoint="full")
    assert _marks(layer.forward) == [2, 3]
    assert _marks(layer.backward) == [4, 0, 2, 1, 5]


def _marks(section: Section) -> list[int]:
    return [row[2] for row in section.rows if row[0] == Op.MARK]


def test_te_linear_layers_keep_the_low_rank_output() -> None:
    te = AutomodelOptions(linear="te")
    assert _kept(ATTENTION, lora=RECIPE[8], options=te) == 28_292 + 4 * 2 * 8


def test_context_parallel_mamba_runs_its_norm_as_a_module() -> None:
    # The norm keeps its input and a root, the output projection keeps its own: the Megatron form of the mixer.
    layer, comms = _record(MAMBA, cp=2)
    assert [s[0] for s in _sent(layer, comms)] == ["all_to_all"] * 4
    assert _kept(MAMBA, cp=2) == 39_588 - 32 + 2 * 2 * 4096 + 4


def test_llama_holds_the_stems_output_until_the_end() -> None:
    branches = (Branch("input_layernorm", "self_attn", Attention(64, 4, 2, 16, rotary=True)),
                Branch("post_attention_layernorm", "mlp", Mlp(64, 128)))
    kind = LayerKind("decoder", "llama", 64, branches)
    # input, root and output of both norms; q, k, v; attention output; log-sum-exp; gate, up, SiLU and product
    assert _kept(kind) == 2 * (2 * 64 + 4 + 2 * 64) + 2 * (64 + 2 * 32) + 2 * 64 + 4 * 4 + 8 * 128
    layer, _ = _record(kind, lora=LoraChoice(4), first=True, checkpoint="full")
    assert not layer.after.rows
    assert not layer.late.rows
