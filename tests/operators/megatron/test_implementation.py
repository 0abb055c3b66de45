"""Megatron-Core's tensors against what it registers; its records against published and measured bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from checkout import ROOT
from simcore.errors import NotYet
from simcore.frameworks.megatron.lora import adapters
from simcore.models.blocks import (
    Attention,
    Branch,
    Embedding,
    FinalNorm,
    Head,
    LatentAttention,
    LayerKind,
    Loss,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Mtp,
)
from simcore.models.lora import LoraChoice
from simcore.operators.megatron.dispatch_flex import distinct_ranks
from simcore.operators.megatron.implementation import idle_gradients, record, tensors
from simcore.operators.megatron.ops.options import ContextParallelComm, Dispatcher, MegatronOptions
from simcore.recording.kernel_shape import shapes_in
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import HOST_STOPS, Module
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, RECOMPUTE_BEGIN, RECOMPUTE_END, Kernel, Op, Param, Section

PLAIN = MegatronOptions()
H, V, T = 2688, 131072, 8192


def _layer(name: str, block: Mixer, family: str = "nemotron_h") -> LayerKind:
    return LayerKind(name, family, block.hidden, (Branch("norm", "mixer", block),))


MAMBA = _layer("mamba", Mamba2(H, 64, 64, 8, 128, 4, 128))
MOE = _layer("moe", Moe(H, 128, 6, 1856, 3712))
LATENT = _layer("latent", Moe(4096, 512, 22, 2688, 5376, latent=1024))
ATTENTION = _layer("attention", Attention(H, 32, 2, 128))
MLP = _layer("mlp", Mlp(H, 1856, gated=False))
LLAMA = LayerKind("layer", "llama", 4096, (
    Branch("input_layernorm", "self_attn", Attention(4096, 32, 8, 128, rotary=True)),
    Branch("post_attention_layernorm", "mlp", Mlp(4096, 14336))))
QWEN2 = LayerKind("qwen2", "qwen2", 3584, (
    Branch("input_layernorm", "self_attn", Attention(3584, 28, 4, 128, rotary=True, bias="qkv")),
    Branch("post_attention_layernorm", "mlp", Mlp(3584, 18944))))
QWEN3 = LayerKind("qwen3", "qwen3_moe", 2048, (
    Branch("input_layernorm", "self_attn", Attention(2048, 32, 4, 128, rotary=True, qk_norm=True)),
    Branch("post_attention_layernorm", "mlp", Moe(2048, 128, 8, 768, 0, gated=True, router="softmax"))))
V2 = LayerKind("v2", "deepseek_v2", 2048, (
    Branch("input_layernorm", "self_attn", LatentAttention(2048, 16, 0, 512, 128, 64, 128)),
    Branch("post_attention_layernorm", "mlp", Moe(2048, 64, 6, 1408, 2816, gated=True, router="softmax",
                                                  normalised=False))))
V3 = LayerKind("v3", "deepseek_v3", 7168, (
    Branch("input_layernorm", "self_attn", LatentAttention(7168, 128, 1536, 512, 128, 64, 128)),
    Branch("post_attention_layernorm", "mlp", Mlp(7168, 18432))))
GPT = LayerKind("gpt", "gpt2", 1024, (
    Branch("ln_1", "attn", Attention(1024, 16, 16, 64, bias="all"), layer_norm=True),
    Branch("ln_2", "mlp", Mlp(1024, 4096, gated=False, gelu=True, bias=True), layer_norm=True)))
GPT_MOE = LayerKind("gpt_moe", "gpt2", 512, (
    Branch("ln_1", "attn", Attention(512, 8, 8, 64), layer_norm=True),
    Branch("ln_2", "mlp", Moe(512, 8, 2, 1024, 0, router="softmax", gelu=True), layer_norm=True)))
OSS = LayerKind("oss", "gpt_oss", 2880, (
    Branch("input_layernorm", "self_attn", Attention(2880, 64, 8, 64, rotary=True, bias="all", sinks=True, window=128)),
    Branch("post_attention_layernorm", "mlp", Moe(2880, 32, 4, 2880, 0, gated=True, router="topk_softmax", bias=True))))
GPT_STEM = LayerKind("stem", "gpt2", 1024, block=Embedding(50304, 1024, positions=2048))
GPT_NORM = LayerKind("layer_norm", "gpt2", 1024, block=FinalNorm(1024, layer_norm=True))
EMBEDDING, NORM, HEAD, LOSS = (LayerKind(name, "nemotron_h", H, block=block) for name, block in (
    ("embedding", Embedding(V, H)), ("final_norm", FinalNorm(H)), ("head", Head(V, H)), ("loss", Loss(V))))
NANO = ((EMBEDDING, 1), (MAMBA, 23), (MOE, 23), (ATTENTION, 6), (NORM, 1), (HEAD, 1))

# `named_parameters()` at tp 1 (megatron-core 0.16.1; norm weights of fused linears where TE has them). `#n`: copies.
REGISTERED = {
    "mamba": ["mixer.dt_bias 64", "mixer.A_log 64", "mixer.D 64", "mixer.in_proj.layer_norm_weight 2688",
              "mixer.in_proj.weight 10304x2688", "mixer.conv1d.weight 6144x1x4", "mixer.conv1d.bias 6144",
              "mixer.norm.weight 4096", "mixer.out_proj.weight 2688x4096"],
    "moe": ["pre_mlp_layernorm.weight 2688", "mlp.router.weight 128x2688",
            "mlp.experts.linear_fc1.weight 1856x2688 #128", "mlp.experts.linear_fc2.weight 2688x1856 #128",
            "mlp.shared_experts.linear_fc1.weight 3712x2688", "mlp.shared_experts.linear_fc2.weight 2688x3712"],
    "latent": ["pre_mlp_layernorm.weight 4096", "mlp.router.weight 512x4096", "mlp.fc1_latent_proj.weight 1024x4096",
               "mlp.fc2_latent_proj.weight 4096x1024", "mlp.experts.linear_fc1.weight 2688x1024 #512",
               "mlp.experts.linear_fc2.weight 1024x2688 #512", "mlp.shared_experts.linear_fc1.weight 5376x4096",
               "mlp.shared_experts.linear_fc2.weight 4096x5376"],
    "attention": ["self_attention.linear_proj.weight 2688x4096", "self_attention.linear_qkv.layer_norm_weight 2688",
                  "self_attention.linear_qkv.weight 4608x2688"],
    "mlp": ["mlp.linear_fc1.layer_norm_weight 2688", "mlp.linear_fc1.weight 1856x2688",
            "mlp.linear_fc2.weight 2688x1856"],
    "layer": ["self_attention.linear_proj.weight 4096x4096", "self_attention.linear_qkv.layer_norm_weight 4096",
              "self_attention.linear_qkv.weight 6144x4096", "mlp.linear_fc1.layer_norm_weight 4096",
              "mlp.linear_fc1.weight 28672x4096", "mlp.linear_fc2.weight 4096x14336"],
    "qwen2": ["self_attention.linear_proj.weight 3584x3584", "self_attention.linear_qkv.layer_norm_weight 3584",
              "self_attention.linear_qkv.weight 4608x3584", "self_attention.linear_qkv.bias 4608",
              "mlp.linear_fc1.layer_norm_weight 3584", "mlp.linear_fc1.weight 37888x3584",
              "mlp.linear_fc2.weight 3584x18944"],
    "qwen3": ["self_attention.linear_proj.weight 2048x4096", "self_attention.linear_qkv.layer_norm_weight 2048",
              "self_attention.linear_qkv.weight 5120x2048", "self_attention.q_layernorm.weight 128",
              "self_attention.k_layernorm.weight 128", "pre_mlp_layernorm.weight 2048", "mlp.router.weight 128x2048",
              "mlp.experts.linear_fc1.weight 1536x2048 #128", "mlp.experts.linear_fc2.weight 2048x768 #128"],
    "v2": ["input_layernorm.weight 2048", "self_attention.linear_proj.weight 2048x2048",
           "self_attention.linear_q_proj.weight 3072x2048", "self_attention.linear_kv_down_proj.weight 576x2048",
           "self_attention.linear_kv_up_proj.layer_norm_weight 512", "self_attention.linear_kv_up_proj.weight 4096x512",
           "pre_mlp_layernorm.weight 2048", "mlp.router.weight 64x2048",
           "mlp.experts.linear_fc1.weight 2816x2048 #64", "mlp.experts.linear_fc2.weight 2048x1408 #64",
           "mlp.shared_experts.linear_fc1.weight 5632x2048", "mlp.shared_experts.linear_fc2.weight 2048x2816"],
    "v3": ["input_layernorm.weight 7168", "self_attention.linear_proj.weight 7168x16384",
           "self_attention.linear_q_down_proj.weight 1536x7168",
           "self_attention.linear_q_up_proj.layer_norm_weight 1536",
           "self_attention.linear_q_up_proj.weight 24576x1536", "self_attention.linear_kv_down_proj.weight 576x7168",
           "self_attention.linear_kv_up_proj.layer_norm_weight 512",
           "self_attention.linear_kv_up_proj.weight 32768x512", "mlp.linear_fc1.layer_norm_weight 7168",
           "mlp.linear_fc1.weight 36864x7168", "mlp.linear_fc2.weight 7168x18432"],
    "gpt": ["self_attention.linear_proj.weight 1024x1024", "self_attention.linear_proj.bias 1024",
            "self_attention.linear_qkv.layer_norm_weight 1024", "self_attention.linear_qkv.layer_norm_bias 1024",
            "self_attention.linear_qkv.weight 3072x1024", "self_attention.linear_qkv.bias 3072",
            "mlp.linear_fc1.layer_norm_weight 1024", "mlp.linear_fc1.layer_norm_bias 1024",
            "mlp.linear_fc1.weight 4096x1024", "mlp.linear_fc1.bias 4096", "mlp.linear_fc2.weight 1024x4096",
            "mlp.linear_fc2.bias 1024"],
    "gpt_moe": ["self_attention.linear_proj.weight 512x512", "self_attention.linear_qkv.layer_norm_weight 512",
                "self_attention.linear_qkv.layer_norm_bias 512", "self_attention.linear_qkv.weight 1536x512",
                "pre_mlp_layernorm.weight 512", "pre_mlp_layernorm.bias 512", "mlp.router.weight 8x512",
                "mlp.experts.linear_fc1.weight 1024x512 #8", "mlp.experts.linear_fc2.weight 512x1024 #8"],
    "stem": ["embedding.word_embeddings.weight 50304x1024", "embedding.position_embeddings.weight 2048x1024"],
    "layer_norm": ["decoder.final_layernorm.weight 1024", "decoder.final_layernorm.bias 1024"],
    "embedding": ["embedding.word_embeddings.weight 131072x2688"],
    "final_norm": ["decoder.final_norm.weight 2688"],
    "head": ["output_layer.weight 131072x2688"],
    "loss": [],
}


def _spelled(kind: LayerKind) -> list[str]:
    return [f"{s.name} {'x'.join(map(str, s.shape))}{f' #{s.copies}' if s.copies > 1 else ''}"
            for s in tensors(kind) if not s.is_buffer]


@pytest.mark.parametrize("kind", [MAMBA, MOE, LATENT, ATTENTION, MLP, LLAMA, QWEN2, QWEN3, V2, V3, GPT, GPT_MOE,
                                  GPT_STEM, GPT_NORM,
                                  EMBEDDING, NORM, HEAD, LOSS], ids=lambda k: k.name)
def test_tensors_are_those_that_megatron_registers(kind: LayerKind) -> None:
    assert _spelled(kind) == REGISTERED[kind.name]


def test_router_buffers_are_no_parameters() -> None:
    assert [(s.name, s.stored) for s in tensors(MOE) if s.is_buffer] == [
        ("mlp.router.local_tokens_per_expert", "fp32"), ("mlp.router.expert_bias", "fp32")]


def test_parameters_of_nano_sum_to_the_published_total() -> None:
    # 31,577,937,344: research/frameworks.md section 1, counted in three code bases.
    assert sum(n * s.numel * s.copies for kind, n in NANO for s in tensors(kind) if not s.is_buffer) == 31_577_937_344


_LIVE = """
import json, sys
sys.path.insert(0, {truth!r})
from oracle import megatron, te_stub
names = []
ask = megatron.MambaModel.named_parameters
def note(self, *a, **k):
    found = list(ask(self, *a, **k))
    names[:] = names or [n for n, _ in found]
    return iter(found)
megatron.MambaModel.named_parameters = note
megatron.measure({{"world": 1, "rank": 0}})
print("NAMES " + json.dumps(names))
"""


@pytest.mark.slow
def test_names_and_order_are_the_installed_packages_own() -> None:
    truth = ROOT / "tests/truth"
    asked = subprocess.run([sys.executable, "-c", _LIVE.format(truth=str(truth))], capture_output=True, text=True,
                           timeout=300, check=False)
    line = next((x for x in asked.stdout.splitlines() if x.startswith("NAMES ")), None)
    if line is None:
        pytest.skip("megatron-core is not installed here")
    found = [n.split("layers.")[1].split(".", 1) for n in json.loads(line[6:]) if ".layers." in n]
    for kind, index in ((MAMBA, "0"), (MOE, "1"), (ATTENTION, "5")):
        names = [n for i, n in found if i == index]
        expanded = [f"{s.name}{i if s.copies > 1 else ''}" for s in tensors(kind) if not s.is_buffer
                    for i in range(s.copies)]
        # The stand-in for TE registers `weight` first; TE itself `layer_norm_weight`.
        assert sorted(names) == sorted(expanded)
        assert [n for n in names if "layer_norm" not in n] == [n for n in expanded if "layer_norm" not in n]


# ---- records ---------------------------------------------------------------------------------------------------------
_TP = ("vocab", "heads", "shared_ffn", "ffn", "mamba_in", "mamba_conv", "mamba_heads", "mamba_inner",
       "tp_rank", "tp_in", "tp_out")


def _run(kind: LayerKind, *, lora: int = 0, frozen: bool = False, tokens: int = T, top_k: int = 6,
         **options: object) -> LayerWorkload:
    tp, etp, ep = (int(str(options.get(n, 1))) for n in ("tp", "etp", "ep"))
    params = {}
    specs = tensors(kind)
    extra = adapters(kind, specs, LoraChoice(lora)) if lora else ()
    for spec in (*specs, *extra):
        shape = [n // (tp if d in _TP else etp if d == "expert_ffn" else 1)
                 for n, d in zip(spec.shape, spec.dims, strict=True)]
        if spec.copies > 1:
            shape = [spec.copies // ep, *shape]
        trains = spec in extra or not (lora or frozen)
        params[spec.name] = Param(spec.name, tuple(shape), "bf16", trains, "", grad_exists=True)
    options.setdefault("loss", "megatron")
    return LayerWorkload(1, tokens, "bf16", params, rows_per_token=top_k << 16, **options)  # type: ignore[arg-type]


def _bytes(sections: Iterable[Section], skip: tuple[int, ...] = ()) -> tuple[int, int]:
    """Balance and highest balance of the rows, the tensors that cross the layer's border apart."""
    now = peak = 0
    for section in sections:
        for op, _, slot, amount, _, _ in section.rows:
            if op in (Op.ALLOC, Op.FREE) and slot not in skip:
                now += amount
                peak = max(peak, now)
    return now, peak


def _kept(kind: LayerKind, run: LayerWorkload) -> int:
    """Bytes that the layer keeps for backward, its input among them, its output not."""
    tape = record(kind, run, {}, {})
    rows = [r for s in (tape.forward, tape.after) for r in s.rows]
    own = sum(r[3] for r in rows if r[0] in (Op.ALLOC, Op.FREE) and r[2] != HIDDEN)
    dropped = sum(r[3] for r in rows if r[0] == Op.FREE and r[2] == HIDDEN)
    width = 2 * (kind.block.vocab // run.tp if isinstance(kind.block, Loss) else kind.hidden)
    local = run.tokens // (run.tp if run.sequence_parallel and not isinstance(kind.block, Loss) else 1)
    return own + local * width + dropped


def _closes(kind: LayerKind, run: LayerWorkload, tape: RecordedLayer) -> None:
    """All that is born dies, but for the output and the input's gradient, which the neighbours free."""
    sections = (tape.forward, tape.after, tape.late, tape.seed, tape.backward)
    balance: dict[tuple[int, int], int] = {}
    for op, offset, slot, amount, _, _ in (r for s in sections for r in s.rows):
        if op in (Op.ALLOC, Op.FREE):
            balance[offset, slot] = balance.get((offset, slot), 0) + amount
    borders = {key: value for key, value in balance.items() if value}
    output, given = {(0, HIDDEN)}, {(1, GRAD_HIDDEN)}
    stem = kind in (EMBEDDING, GPT_STEM)
    inward = set() if stem else {(-1, HIDDEN)}
    back = {(0, GRAD_HIDDEN)} if not stem and run.input_requires_grad else set()
    has_graph = bool(back) or any(p.trainable for p in run.params.values())
    expected = inward | back | (set() if kind is LOSS else output | (given if has_graph else set()))
    assert set(borders) == expected
    assert tape.grads == ()


DROPS = LayerKind("gpt_drops", "gpt2", 1024, (
    Branch("ln_1", "attn", Attention(1024, 16, 16, 64, bias="all", dropout=True), layer_norm=True),
    GPT.branches[1]), dropout=True)
EVERY = [MAMBA, MOE, LATENT, ATTENTION, MLP, LLAMA, QWEN2, QWEN3, V2, V3, GPT, GPT_MOE, DROPS, GPT_STEM, GPT_NORM,
         EMBEDDING, NORM, HEAD, LOSS]


@pytest.mark.parametrize("kind", EVERY, ids=lambda k: k.name)
@pytest.mark.parametrize("options", [
    {}, {"lora": 32}, {"frozen": True}, {"checkpoint": "full"}, {"checkpoint": "moe,layernorm"},
    {"checkpoint": "moe_act"}, {"checkpoint": "shared_experts,core_attn,mlp"},
    {"tp": 2, "sequence_parallel": True, "ep": 8},
    {"tp": 2, "sequence_parallel": True, "etp": 2, "ep": 4, "lora": 32}, {"tp": 2}, {"cp": 2, "ep": 8},
    {"ep": 8, "options": MegatronOptions(dispatcher="flex")},
    {"ep": 8, "options": MegatronOptions(bias_activation_fusion=False, moe_router_dtype="bf16")},
    {"tp": 2, "sequence_parallel": True, "etp": 2, "options": MegatronOptions(moe_router_dtype="bf16")},
    {"checkpoint": "moe", "options": MegatronOptions(bias_activation_fusion=False)},
    {"checkpoint": "mla_up_proj"}, {"checkpoint": "mla_up_proj,layernorm,core_attn,mlp", "tp": 2,
                                    "sequence_parallel": True, "ep": 8},
    {"checkpoint": "mla_up_proj,layernorm,moe", "frozen": True},
    {"tp": 2, "ep": 8, "options": MegatronOptions(apply_rope_fusion=True)},
    {"checkpoint": "mla_up_proj", "options": MegatronOptions(apply_rope_fusion=True)},
    {"tp": 2, "options": MegatronOptions(attention_backend="unfused", gradient_accumulation_fusion=False)},
    {"options": MegatronOptions(attention_backend="unfused", masked_softmax_fusion=False)},
    {"checkpoint": "core_attn", "options": MegatronOptions(attention_backend="flash")},
    {"ep": 4, "options": MegatronOptions(dispatcher="allgather")},
    {"tp": 2, "sequence_parallel": True, "etp": 2, "options": MegatronOptions(dispatcher="allgather")},
    {"ep": 2, "options": MegatronOptions(moe_permute_fusion=False, deterministic_mode=True)},
    {"lora": 8, "checkpoint": "moe_act,layernorm"}, {"lora": 8, "input_requires_grad": False, "first": True},
], ids=str)
def test_all_that_is_born_dies(kind: LayerKind, options: dict[str, object]) -> None:
    for loss in ("megatron", "megatron_unfused", "te", "te_inplace") if kind is LOSS else ("megatron",):
        run = _run(kind, tokens=512, loss=loss, **options)  # type: ignore[arg-type]
        _closes(kind, run, record(kind, run, {}, {}))


# research/activations.md table 1.1, rows "Megatron alltoall"; attention and Mamba of "frozen" from section 1.2.
@pytest.mark.parametrize(("kind", "options", "per_token"), [
    (MAMBA, {}, 55_972), (MOE, {}, 105_248), (ATTENTION, {}, 28_292), (NORM, {}, 5_380),
    (MAMBA, {"lora": 32}, 56_100), (MOE, {"lora": 32}, 106_144), (ATTENTION, {"lora": 32}, 28_420),
    (MAMBA, {"lora": 8}, 56_004), (ATTENTION, {"lora": 8}, 28_324),
    (MAMBA, {"frozen": True}, 42_404), (ATTENTION, {"frozen": True}, 22_916),
    (MOE, {"checkpoint": "moe_act"}, 82_976),
    (MOE, {"checkpoint": "shared_experts"}, 105_248 - 4 * 3712),
    (MAMBA, {"checkpoint": "full"}, 5_376), (ATTENTION, {"checkpoint": "full"}, 5_376),
    (MAMBA, {"checkpoint": "moe,layernorm"}, 55_972),
], ids=str)
def test_kept_bytes_are_the_closed_forms(kind: LayerKind, options: dict[str, object], per_token: int) -> None:
    assert _kept(kind, _run(kind, ep=8, **options)) == per_token * T  # type: ignore[arg-type]


@pytest.mark.parametrize(("dispatcher", "ep"), [("alltoall", 64), ("flex", 64), ("allgather", 1)])
@pytest.mark.parametrize("frozen", [False, True])
def test_latent_experts_keep_latent_rows_and_the_sum_that_goes_up(dispatcher: Dispatcher, ep: int, *,
                                                                      frozen: bool) -> None:
    """Beside a layer whose experts see all 4,096 columns: each of the 22 rows of a token is 1,024 wide.

    The projection down reads what router and shared expert keep anyway; the one up keeps a token's sum, if it trains.
    Frozen experts keep none of their rows either.
    """
    options, wide = MegatronOptions(dispatcher=dispatcher), _layer("latent", Moe(4096, 512, 22, 2688, 5376))
    kept = [_kept(kind, _run(kind, top_k=22, ep=ep, options=options, frozen=frozen)) for kind in (LATENT, wide)]
    assert kept[0] - kept[1] == (0 if frozen else 2 * (1024 - 22 * (4096 - 1024)) * T)


def test_latent_rows_are_what_is_sent() -> None:
    """22 rows of 1,024 columns for each token, forward and back, and as many probabilities in fp32."""
    run, comms = _run(LATENT, top_k=22, ep=64), dict[tuple[str, str, str], int]()
    tape = record(LATENT, run, {}, comms)
    sent = [row[3] for part in (tape.forward, tape.backward) for row in part.rows if row[0] == Op.COLLECTIVE]
    rows = 22 * 1024 * 2 * T
    counts = 8 * 512 * 64
    assert sent == [counts, *2 * [rows, 22 * 4 * T, rows]]
    flops = [row[3] for row in tape.forward.rows if row[0] == Op.COMPUTE and row[2] == Kernel.GEMM]
    shared, router, projection = 2 * T * 4096 * 5376, 2 * T * 4096 * 512, 2 * T * 4096 * 1024
    assert flops == [shared, shared, router, projection, projection]


def _modules(section: Section, op: Op = Op.COMPUTE) -> dict[Module, set[int]]:
    """Kernels, or collectives between them, of each module."""
    found: dict[Module, set[int]] = {}
    for row in section.rows:
        if row[0] == op:
            found.setdefault(Module(row[4] & 7 if op is Op.COMPUTE else row[5]), set()).add(row[2])
    return found


@pytest.mark.parametrize("checkpoint", ["none", "full", "moe_act"])
def test_kernels_know_their_module(checkpoint: str) -> None:
    """What a CUDA graph may hold: forward, replays and backward are alike."""
    tape = record(MOE, _run(MOE, checkpoint=checkpoint, ep=8), {}, {})
    for found in (_modules(tape.forward), _modules(tape.backward)):
        assert set(found) == {Module.MOE_ROUTER, Module.SHARED_EXPERTS, Module.MOE_PREPROCESS, Module.MOE}
        assert found[Module.MOE_PREPROCESS] == {Kernel.PERMUTE}
        assert [m for m, kernels in found.items() if Kernel.GROUPED_GEMM in kernels] == [Module.MOE]
        assert Kernel.NORM in found[Module.MOE_ROUTER]
        assert Kernel.GEMM in found[Module.SHARED_EXPERTS]
    assert set(_modules(tape.forward, Op.COLLECTIVE)) == {Module.MOE, Module.MOE_PREPROCESS}  # its counts
    both = record(LLAMA, _run(LLAMA, tp=2, checkpoint=checkpoint), {}, {})
    for section in (both.forward, both.backward):
        assert set(_modules(section)) == set(_modules(section, Op.COLLECTIVE)) == {Module.ATTN, Module.MLP}
    assert set(_modules(record(MAMBA, _run(MAMBA), {}, {}).forward)) == {Module.MAMBA}


def test_a_recomputed_moe_layer_keeps_its_input_and_what_the_dispatcher_holds() -> None:
    # The page says 5,380: it counts rsigma, which a norm that runs without a graph does not keep, and forgets that
    # probabilities, routing map (5E) and row map (4(2E+1)) are attributes of the dispatcher (token_dispatcher.py).
    held = 5 * 128 + 4 * (2 * 128 + 1)
    assert _kept(MOE, _run(MOE, ep=8, checkpoint="moe,layernorm")) == (5_376 + held) * T
    assert _kept(MOE, _run(MOE, ep=8, checkpoint="full")) == (5_376 + held) * T


def test_deepep_keeps_what_the_page_estimates() -> None:
    # activations.md table 1.1, rows "Megatron deepep"; metadata 20 % at best.
    flex = MegatronOptions(dispatcher="flex")
    assert _kept(MOE, _run(MOE, ep=8, options=flex)) / T == pytest.approx(104_542, rel=1e-4)
    assert _kept(MOE, _run(MOE, ep=8, lora=32, options=flex)) / T == pytest.approx(105_438, rel=1e-4)
    assert _kept(MOE, _run(MOE, ep=8, frozen=True, options=flex)) / T == pytest.approx(42_590, rel=1e-4)


def test_dropout_keeps_a_byte_an_element_of_what_is_added() -> None:
    assert _kept(DROPS, _run(DROPS)) - _kept(GPT, _run(GPT)) == 2 * 1024 * T
    half = {"tp": 2, "sequence_parallel": True}
    assert _kept(DROPS, _run(DROPS, **half)) - _kept(GPT, _run(GPT, **half)) == 1024 * T  # type: ignore[arg-type]
    stem = replace(GPT_STEM, dropout=True)
    sums = [_bytes([record(kind, _run(kind), {}, {}).forward])[0] for kind in (stem, GPT_STEM)]
    assert sums[0] - sums[1] == 1024 * T


@pytest.mark.parametrize(("kind", "tp", "softmax", "square"), [
    (GPT, 1, True, 2), (DROPS, 1, True, 2 + 1 + 2), (DROPS, 2, True, 5), (DROPS, 1, False, 4 + 1 + 2)])
def test_unfused_attention_keeps_its_square(kind: LayerKind, tp: int, softmax: bool, square: int) -> None:
    """Softmax, and with dropout the mask and what is left of it; no statistics."""
    unfused = MegatronOptions(attention_backend="unfused", masked_softmax_fusion=softmax)
    kept = [_kept(kind, _run(kind, tokens=512, tp=tp, options=options)) for options in (unfused, PLAIN)]
    assert kept[0] - kept[1] == 16 // tp * (square * 512 * 512 - 4 * 512)


def test_cores_own_attention_makes_no_input_for_the_scores() -> None:
    """It lies in the global buffer; TransformerEngine makes one each time."""
    named = []
    for more in (False, True):
        slots: dict[tuple[str, str], int] = {}
        options = MegatronOptions(attention_backend="unfused", core_attention=more)
        record(GPT, _run(GPT, tokens=512, options=options), slots, {})
        named.append("scores_buffer" in {name for name, _ in slots})
    assert named == [True, False]


def test_flash_attention_keeps_its_output_twice() -> None:
    """Sequence by sequence, and as it goes on: the same with one sequence."""
    flash = MegatronOptions(attention_backend="flash")
    for batch, copies in ((1, 0), (2, 1)):
        kept = [_kept(GPT, replace(_run(GPT, options=options), batch=batch, seq=T // batch))
                for options in (flash, PLAIN)]
        assert kept[0] - kept[1] == copies * 2 * 1024 * T


def test_squared_relu_may_be_apart_from_the_probabilities() -> None:
    """Its output is kept besides fc1's: two bytes a row and expert column."""
    kept = [_kept(MOE, _run(MOE, ep=8, options=options)) for options in (
        MegatronOptions(use_fused_weighted_squared_relu=False), PLAIN)]
    assert kept[0] - kept[1] == 6 * T * 2 * 1856


@pytest.mark.parametrize("checkpoint", ["none", "moe_act"])
def test_experts_with_biases_keep_what_the_clamp_made(checkpoint: str) -> None:
    """Both halves of fc1's output again, unless the activation is made again; no scores for a balance loss."""
    attention, experts = OSS.branches
    block = Moe(2880, 32, 4, 2880, 0, gated=True, router="softmax")
    plain = replace(OSS, branches=(attention, replace(experts, block=block)))
    kept = [_kept(kind, _run(kind, top_k=4, ep=4, checkpoint=checkpoint)) for kind in (OSS, plain)]
    assert kept[0] - kept[1] == (4 * 2 * 2 * 2880 if checkpoint == "none" else 0) * T - 4 * 32 * T


@pytest.mark.parametrize("options", [
    {}, {"ep": 8}, {"tp": 2, "sequence_parallel": True, "etp": 2}, {"checkpoint": "moe_act"}, {"lora": 8},
    {"checkpoint": "core_attn"}, {"frozen": True}])
def test_all_that_biased_experts_bear_dies(options: dict[str, Any]) -> None:
    run = _run(OSS, top_k=4, **options)
    _closes(OSS, run, record(OSS, run, {}, {}))


def test_a_window_costs_fewer_products() -> None:
    attention, experts = OSS.branches
    assert isinstance(attention.block, Attention)
    whole = replace(OSS, branches=(replace(attention, block=replace(attention.block, window=0)), experts))
    flops = [sum(row[3] for row in record(kind, _run(kind, top_k=4), {}, {}).forward.rows
                 if row[0] == Op.COMPUTE and row[2] == Kernel.ATTENTION) for kind in (OSS, whole)]
    assert flops[1] == flops[0] * T // (2 * 128) == T * T * 2 * 64 * 64


def test_sinks_need_a_kernel_that_has_them() -> None:
    for options in ({"cp": 2}, {"options": MegatronOptions(attention_backend="unfused")}):
        with pytest.raises(NotYet, match="attention sinks in unfused attention"):
            record(OSS, _run(OSS, top_k=4, **options), {}, {})


_GATHERED = MegatronOptions(dispatcher="allgather", moe_router_dtype="bf16")


def test_experts_with_gelu_keep_what_both_factors_read() -> None:
    """Input, fc1's output, GELU's output, and the product: the rows of one rank by two experts a token."""
    def kept(ffn: int) -> int:
        block = Moe(512, 8, 2, ffn, 0, router="softmax", gelu=True)
        kind = replace(GPT_MOE, branches=(GPT_MOE.branches[0], replace(GPT_MOE.branches[1], block=block)))
        return _kept(kind, _run(kind, top_k=2, ep=4))

    assert kept(2048) - kept(1024) == 2 * T * 1024 * 3 * 2


@pytest.mark.parametrize(("options", "rows"), [
    ({"ep": 4}, 2), ({"tp": 2, "sequence_parallel": True, "etp": 2}, 2), ({"tp": 2, "sequence_parallel": True}, 1)])
def test_the_all_gather_dispatcher_keeps_places_and_maps(options: dict[str, object], rows: int) -> None:
    """Beside the all-to-all's experts: a place a row; the map, its turned copy and that of probabilities (bf16)."""
    run = _run(GPT_MOE, top_k=2, options=_GATHERED, **options)  # type: ignore[arg-type]
    block = GPT_MOE.branches[1].block
    assert isinstance(block, Moe)
    local, ranks = T // int(str(options.get("tp", 1))), run.ep * run.etp
    attention = LayerKind("attention_alone", "gpt2", 512, GPT_MOE.branches[:1])
    experts = rows * T * (2 * 512 + 3 * 2 * 1024 // run.etp + 2 + 8)
    router = local * (2 * 2 * 512 + 8 + 8 * 2 + 4 * 2 + 2 * 8 + 8 + 4 * 8)
    maps = local * ranks * (8 // run.ep) * (1 + 1 + 2)
    plain = {name: value for name, value in options.items() if name != "etp"}
    found = _kept(GPT_MOE, run) - _kept(attention, _run(attention, **plain))  # type: ignore[arg-type]
    assert found == pytest.approx(experts + router + maps, rel=0.01)


def test_deterministic_sums_keep_their_rows() -> None:
    """`index_add_` saves its source where `scatter_add_` does not; TE's fused permutation needs neither."""
    changes = ((_GATHERED, 2 * T * 512 * 2), (MegatronOptions(moe_permute_fusion=False), 2 * T * 512 * 2), (PLAIN, 0))
    for plain, change in changes:
        kept = [_kept(GPT_MOE, _run(GPT_MOE, top_k=2, ep=4, options=options))
                for options in (replace(plain, deterministic_mode=True), plain)]
        assert kept[0] - kept[1] == change


@pytest.mark.parametrize(("cp", "kind", "copies"), [(2, "a2a", 1), (2, "a2a+p2p", 1), (1, "a2a", 0), (2, "p2p", 0)])
def test_ranks_that_swap_heads_keep_the_output_twice(cp: int, kind: ContextParallelComm, copies: int) -> None:
    """Of LLAMA's 4096 columns, bf16."""
    kept = [_kept(LLAMA, _run(LLAMA, cp=cp, options=options))
            for options in (MegatronOptions(cp_comm_type=kind), PLAIN)]
    assert kept[0] - kept[1] == copies * 2 * 4096 * T


@pytest.mark.parametrize(("cp", "copies"), [(2, 0), (4, 2), (8, 6)])
def test_ranks_of_one_mamba_group_each_get_its_b_and_c(cp: int, copies: int) -> None:
    """Two groups a tp rank: with more cp ranks B and C of 128 go to several; that wider tensor is kept, bf16."""
    kept = [_kept(MAMBA, _run(MAMBA, tp=4, cp=ranks)) for ranks in (cp, 2)]
    assert kept[0] - kept[1] == 2 * copies * 128 * 2 * T
    slots: dict[tuple[str, str], int] = {}
    rows = record(MAMBA, _run(MAMBA, tp=4, cp=cp), slots, {}).forward.rows
    width = (2 * 4096 + 2 * 8 * 128 + 64) // 4 + 2 * copies * 128
    for name in ("zxbcdt_parts", "zxbcdt_joined", "zxbcdt_exchanged"):
        made = slots[name, "activation"]
        assert [r[3] for r in rows if r[0] == Op.ALLOC and r[2] == made] == [2 * width * T]


def test_weight_gradients_that_no_gemm_adds_up_are_made() -> None:
    apart = _run(GPT, options=MegatronOptions(gradient_accumulation_fusion=False))
    assert idle_gradients(GPT, apart) == frozenset() != idle_gradients(GPT, _run(GPT))
    born: dict[tuple[str, str], int] = {}
    tape = record(GPT, apart, born, {})
    slots = {slot for op, _, slot, *_ in tape.backward.rows if op == Op.ALLOC}
    made = {name for (name, _), slot in born.items() if slot in slots}
    assert {f"{name}.weight.grad" for name in ("mlp.linear_fc1", "mlp.linear_fc2", "self_attention.linear_qkv",
                                               "self_attention.linear_proj")} <= made


def test_a_gated_dense_layer_keeps_the_closed_form() -> None:
    # activations.md section 4: attention + dense gated MLP, h 4096, qkv 6144, q 4096, 32 heads, ffn 14336.
    attention = 2 * 4096 * 2 + 4 + 2 * 6144 + 2 * 4096 + 4 * 32
    mlp = 2 * 4096 * 2 + 4 + 6 * 14336
    assert _kept(LLAMA, _run(LLAMA)) == (attention + mlp) * T


# Qwen3-30B-A3B, bytes a token: attention of 32 heads and 4 groups of 128; norms of heads keep copies of q and k.
_QKV, _Q = 2 * 5120, 2 * 4096
_QWEN3_ATTENTION = 2 * 2048 * 2 + 4 + _QKV + _Q + 4 * 32 + (_Q + 2 * 512) + 4 * (32 + 4)


def _qwen3_moe(fused: bool, dtype: int) -> int:
    """`dtype`: bytes of logits and probabilities. Held besides what the router keeps: probabilities and both maps."""
    router = 8 * 8 + 4 * 8 + 4 * 128 + dtype * 128 + 128 + 4 * (2 * 128 + 1)
    row = 2 * 2048 + 4 * 768 + 2 * 768 + dtype + 2 * 4  # dispatched, fc1, activation, probability, two maps of sorting
    return 2 * 2048 * 2 + 4 + router + 8 * (row + (0 if fused else 3 * 2 * 768))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_softmax_routed_experts_keep_the_closed_form(fused: bool, dtype: str) -> None:
    """activations.md section 4 for gated experts; without fusion the SiLU, up + 0 and the unweighted product too.

    Router and unfused activation are what core 0.16.1's own functions save on a CPU (saved-tensor hooks).
    """
    options = MegatronOptions(bias_activation_fusion=fused, moe_router_dtype=dtype)
    run = _run(QWEN3, ep=8, top_k=8, options=options)
    assert _kept(QWEN3, run) == (_QWEN3_ATTENTION + _qwen3_moe(fused, {"fp32": 4, "bf16": 2}[dtype])) * T


def _latent_kept(h: int, heads: int, q_rank: int) -> int:
    """By the source: norm, projections down (512 made contiguous), q and k of 192, v of 128 a head, the output."""
    query = q_rank and 2 * (2 * q_rank) + 4
    return 2 * (2 * h) + 4 + query + 2 * 512 + 4 + 2 * 512 + 2 * heads * (192 + 192 + 128 + 128) + 4 * heads


def test_latent_attention_keeps_the_closed_form() -> None:
    mlp = 2 * 7168 * 2 + 4 + 6 * 18432
    assert _kept(V3, _run(V3)) == (_latent_kept(7168, 128, 1536) + mlp) * T
    router = 8 * 6 + 2 * 4 * 64 + 5 * 64 + 4 * (2 * 64 + 1)  # the softmax before the choice is of all experts
    experts = 6 * (2 * 2048 + 6 * 1408 + 4 + 2 * 4) + 6 * 2816
    assert _kept(V2, _run(V2, ep=8)) == (_latent_kept(2048, 16, 0) + 2 * 2048 * 2 + 4 + router + experts) * T


@pytest.mark.parametrize(("checkpoint", "less"), [
    # q, k and v; what the norms and projections on the way up keep of q (1536) and of the latent vector (512, twice);
    # the region keeps a view of it instead, and with it all 576 that the projection down made
    ("mla_up_proj", 2 * 128 * (192 + 192 + 128) + (2 * 1536 + 4) + (4 * 512 + 4) - 2 * 576),
    ("layernorm", 2 * 7168 + 4),
    ("mla_up_proj,layernorm", 2 * 128 * (192 + 192 + 128) + (2 * 1536 + 4) + (4 * 512 + 4) - 2 * 576 + 2 * 7168 + 4)])
def test_latent_attention_discards_what_is_made_again(checkpoint: str, less: int) -> None:
    assert _kept(V3, _run(V3)) - _kept(V3, _run(V3, checkpoint=checkpoint)) == less * T


def test_the_way_up_is_made_again_before_attentions_backward() -> None:
    """`_recompute` is a hook on the core's output: copies of q, k and v lie beside what the replay made."""
    tape = record(V3, _run(V3, checkpoint="mla_up_proj"), {}, {})
    rows = tape.backward.rows
    begin, end = (next(i for i, r in enumerate(rows) if r[0] == Op.MARK and r[2] == mark)
                  for mark in (RECOMPUTE_BEGIN, RECOMPUTE_END))
    attended = next(i for i, r in enumerate(rows) if r[0] == Op.COMPUTE and r[2] == Kernel.ATTENTION)
    assert begin < end < attended
    born = [r[3] for r in rows[begin:attended] if r[0] == Op.ALLOC]
    for columns in (192 * 128, 192 * 128, 128 * 128):
        assert born.count(2 * columns * T) >= 2, "the replay's own and the copy in the emptied storage"


def _moved(kind: LayerKind, kernels: tuple[Kernel, ...], **options: Any) -> tuple[int, int]:
    """Bytes a token that kernels of these classes move in forward and in backward."""
    tape = record(kind, _run(kind, top_k=4, **options), {}, {})
    forward, backward = (sum(r[5] for r in part.rows if r[0] == Op.COMPUTE and r[2] in kernels) // T
                         for part in (tape.forward, tape.backward))
    return forward, backward


def test_a_fused_rotation_writes_over_the_query_and_splits_key_and_value_in_one_kernel() -> None:
    """Of 128 heads: 64 rotated columns of the query; 128 + 128 columns become 192 and 128."""
    passes = Kernel.ELEMENTWISE, Kernel.COPY
    fused, apart = (_moved(V3, passes, options=options) for options in (MegatronOptions(apply_rope_fusion=True), PLAIN))
    query, copied = 128 * 64 * 2, 128 * 192 * 2
    rotated = 64 * 2
    values = 128 * (128 + 128 + 192 + 128) * 2
    assert apart[0] - fused[0] == (14 - 2) * query + 14 * rotated + 4 * copied + 2 * 128 * 128 * 2 - values
    assert apart[1] - fused[1] == (21 - 2) * query + (21 - 1) * rotated + 2 * copied + 4 * 128 * 128 * 2 - values
    kept = [_kept(V3, _run(V3, options=options)) for options in (MegatronOptions(apply_rope_fusion=True), PLAIN)]
    assert kept[0] == kept[1]


def test_gpt_oss_rotates_without_fusion() -> None:
    """TE's kernel has no factor of YaRN's: 12 and 14 passes of 72 heads where there were 2."""
    passes, options = (Kernel.ELEMENTWISE,), MegatronOptions(apply_rope_fusion=False)
    apart, fused = (_moved(LLAMA, passes, options=made) for made in (options, PLAIN))
    width = (32 + 8) * 128 * 2
    assert (apart[0] - fused[0], apart[1] - fused[1]) == (10 * width, 12 * width)
    assert _moved(OSS, passes) == _moved(OSS, passes, options=options)


@pytest.mark.parametrize(("checkpoint", "again"), [("none", 0), ("moe_act", 1)])
def test_quick_geglu_stops_the_host_each_time_that_it_runs(checkpoint: str, again: int) -> None:
    """Besides the rows of each expert, which every layer of experts waits for."""
    stops = [[sum(r[0] == Op.WAIT and r[5] == HOST_STOPS for r in part.rows) for part in (tape.forward, tape.backward)]
             for tape in (record(kind, _run(kind, top_k=4, checkpoint=checkpoint), {}, {}) for kind in (OSS, QWEN3))]
    assert stops == [[2, again], [1, 0]]


def test_the_second_bias_is_added_expert_by_expert() -> None:
    """Backward in fp32: 6 passes of products, sums and the first cast; rows' own gradient cast, and put together."""
    given = 4 * 2880
    rows = record(OSS, _run(OSS, top_k=4), {}, {}).backward.rows
    moved = [r[5] // T for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.ELEMENTWISE]
    assert given * (6 * 4 + 2 * (4 + 2) + 2 * 2) in moved


@pytest.mark.parametrize(("kind", "checkpoint", "columns"), [
    (V3, "mla_up_proj", 128 * (192 + 192 + 128)), (V3, "layernorm", 7168), (MOE, "moe_act", 6 * 1856),
    (OSS, "moe_act", 4 * 2880)])
def test_from_core_0_17_on_what_is_made_again_is_not_copied(kind: LayerKind, checkpoint: str, columns: int) -> None:
    """The emptied storage points to the replay's bytes: one kernel and one tensor fewer for each output."""
    runs = [_run(kind, checkpoint=checkpoint, options=options)
            for options in (PLAIN, MegatronOptions(shares_recomputed=True))]
    moved, born = [], []
    for run in runs:
        tape = record(kind, run, {}, {})
        _closes(kind, run, tape)
        rows = tape.backward.rows
        moved.append(sum(r[5] for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.COPY))
        born.append(sum(r[3] for r in rows if r[0] == Op.ALLOC))
    assert moved[0] - moved[1] == 2 * 2 * columns * T
    assert born[0] - born[1] == 2 * columns * T
    assert _kept(kind, runs[0]) == _kept(kind, runs[1])


@pytest.mark.parametrize(("kind", "checkpoint"), [(LLAMA, "full"), (LLAMA, "mlp"), (MOE, "moe")])
def test_what_a_replay_makes_stays_until_its_backward_is_over(kind: LayerKind, checkpoint: str) -> None:
    """`outputs` of CheckpointFunction.backward: its output dies after the last kernel of the region's backward."""
    rows = record(kind, _run(kind, checkpoint=checkpoint), {}, {}).backward.rows
    end = next(i for i, r in enumerate(rows) if r[0] == Op.MARK and r[2] == RECOMPUTE_END)
    born = [r for r in rows[:end] if r[0] == Op.ALLOC and r[3] == 2 * kind.hidden * T]
    last = born[-1][2]
    freed = next(i for i, r in enumerate(rows) if i > end and r[0] == Op.FREE and r[2] == last)
    assert sum(r[0] == Op.COMPUTE for r in rows[end:freed]) > 3


@pytest.mark.parametrize(("ep", "ranks"), [(8, 3.629), (32, 6.597), (64, 7.359)])
def test_tokens_go_to_ranks_of_the_groups_that_were_chosen(ep: int, ranks: float) -> None:
    """8 of 256 experts in 4 of 8 groups; drawn 20,000 times: 3.63, 6.60, 7.35. Without groups 5.30 of 8."""
    grouped = Moe(7168, 256, 8, 2048, 2048, num_groups=8, chosen_groups=4)
    assert distinct_ranks(grouped, ep) == pytest.approx(ranks, abs=1e-3)
    assert distinct_ranks(Moe(7168, 256, 8, 2048, 2048), 8) == pytest.approx(8 * (1 - (7 / 8) ** 8), abs=0.1)


def test_a_rank_that_holds_several_groups_is_missed_by_none_of_a_tokens_experts() -> None:
    assert distinct_ranks(Moe(8, 64, 8, 8, 0, num_groups=8, chosen_groups=8), 2) == pytest.approx(
        distinct_ranks(Moe(8, 64, 8, 8, 0), 2))
    assert distinct_ranks(Moe(8, 64, 8, 8, 0, num_groups=8, chosen_groups=1), 2) == pytest.approx(1)


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
    assert _kept(kind, _run(kind)) == (norms + mlp + masks + attention) * T


def test_latent_attention_without_inner_norms_registers_no_norm_on_the_way_up() -> None:
    """gpt_layer_specs.py: column_parallel_linear; of MLA's linears the output projection alone has a bias."""
    names = [spec.name.removeprefix("self_attention.") for spec in tensors(_latent_gpt())]
    assert names[:9] == ["input_layernorm.weight", "input_layernorm.bias", "linear_proj.weight", "linear_proj.bias",
                         "linear_q_down_proj.weight", "linear_q_up_proj.weight", "linear_kv_down_proj.weight",
                         "linear_kv_up_proj.weight", "mlp.linear_fc1.layer_norm_weight"]


def test_latent_attention_discards_a_layer_norm() -> None:
    """Its input is kept alone: neither what it makes (1 KiB a token) nor the mean and rsigma (8)."""
    kind = _latent_gpt()
    less = _kept(kind, _run(kind)) - _kept(kind, _run(kind, checkpoint="layernorm"))
    assert less == (2 * 512 + 8) * T


MTP = LayerKind("mtp", "deepseek_v3", 7168, V3.branches, Mtp(7168, 129280))
SHARED_HEAD = LayerKind("head", "deepseek_v3", 7168, block=Head(129280, 7168, shared=True))


@pytest.mark.parametrize("sp", [1, 4])
def test_multi_token_prediction_keeps_the_closed_form(sp: int) -> None:
    """By the source: inputs of three norms and of the projection (both halves), and what a layer keeps.

    The projected stream is gathered over tp and cut: what the layer keeps as its input is a view of all of it.
    """
    run = _run(MTP, tp=sp, sequence_parallel=sp > 1)
    inner = _kept(V3, _run(V3, tp=sp, sequence_parallel=sp > 1)) + (sp - 1) * 2 * 7168 * T // sp
    norms, projection = 3 * (2 * 7168 + 4), 2 * 2 * 7168
    assert _kept(MTP, run) == inner + (norms + projection) * T // sp
    joined = [r[3] for r in record(MTP, run, {}, {}).forward.rows if r[0] == Op.ALLOC and r[2] == HIDDEN]
    assert joined == [2 * 2 * 7168 * T // sp], "both outputs in one tensor"


@pytest.mark.parametrize("loss", ["megatron", "te"])
@pytest.mark.parametrize("sp", [1, 4])
def test_a_shared_head_keeps_the_other_loss(loss: str, sp: int) -> None:
    """The module's logits live until its caller is over; of its loss stay the mask and what is scaled, fp32 each."""
    tape = record(SHARED_HEAD, _run(SHARED_HEAD, tp=sp, sequence_parallel=sp > 1, loss=loss), {}, {})
    logits = 2 * 129280 // sp * T
    of_loss = 2 * logits + {"megatron": (1 + 8) * T, "te": 0}[loss] + 2 * 4 * T
    kept = [r for r in tape.forward.rows if r[0] in (Op.ALLOC, Op.FREE) and r[2] != HIDDEN]
    assert sum(r[3] for r in kept) == of_loss + logits
    assert [r[3] for r in tape.after.rows] == [-logits]
    crossed = [(r[1], r[3]) for s in (tape.forward, tape.after, tape.backward) for r in s.rows
               if r[0] in (Op.ALLOC, Op.FREE) and r[2] == HIDDEN]
    assert crossed == [(0, logits), (-1, -2 * 2 * 7168 * T // sp)]


def test_a_shared_head_adds_its_weight_gradients() -> None:
    """Autograd's sum of both, even of TE's idle tensors; one that waits where a GEMM does not add it to main_grad."""
    weight = 2 * 7168 * 129280
    for fused, born in ((True, 1), (False, 3)):
        run = _run(SHARED_HEAD, options=MegatronOptions(gradient_accumulation_fusion=fused))
        rows = record(SHARED_HEAD, run, {}, {}).backward.rows
        assert [r[3] for r in rows if r[0] == Op.ALLOC].count(weight) == born
        assert _bytes([record(SHARED_HEAD, run, {}, {}).backward], (HIDDEN, GRAD_HIDDEN))[0] < 0


def test_multi_token_prediction_recomputes_all_but_embedding_and_head() -> None:
    """`_checkpointed_forward` keeps its two inputs, the embedding and the decoder's output, as the norms do."""
    full, none = (_kept(MTP, _run(MTP, checkpoint=how)) for how in ("full", "none"))
    assert none - full == _kept(V3, _run(V3)) + (3 * 4 + 2 * 2 * 7168 + 2 * 7168) * T


def test_an_overlapped_exchange_keeps_the_shared_experts_output() -> None:
    """fine_grained_callables.py: `node.detach(shared_expert_output)`, an edge between two nodes; 2 bytes an element."""
    cut = MegatronOptions(overlap_moe_expert_parallel_comm=True)
    for kind in (MOE, V2):
        assert _kept(kind, _run(kind, ep=8, options=cut)) - _kept(kind, _run(kind, ep=8)) == 2 * kind.hidden * T
    assert _kept(QWEN3, _run(QWEN3, ep=8, options=cut)) == _kept(QWEN3, _run(QWEN3, ep=8)), "no shared expert"


def test_a_gate_of_the_shared_expert_keeps_both_factors() -> None:
    """`moe/shared_experts.py`: a score a token in bf16, and the expert's output, which nothing else keeps."""
    attention, moe = V2.branches
    assert isinstance(moe.block, Moe)
    gated = replace(V2, branches=(attention, replace(moe, block=replace(moe.block, shared_gate=True))))
    assert _kept(gated, _run(gated)) - _kept(V2, _run(V2)) == (2 * 2048 + 2) * T
    assert "mlp.shared_experts.gate_weight 1x2048" in _spelled(gated)


def test_a_hybrids_module_may_predict_several_tokens() -> None:
    """By the source: each further token keeps as much as one more run of the layers, three norms and projection."""
    one, two = (LayerKind("mtp", "nemotron_h", H, (*ATTENTION.branches, *MOE.branches), Mtp(H, 1024, depths=depths))
                for depths in (1, 2))
    layers = sum(_kept(kind, _run(kind)) for kind in (ATTENTION, MOE))
    layers -= (4 + 1) * 128 * T  # the dispatcher holds one map, and fp32 probabilities: those of the last run
    norms, projection = 3 * (2 * H + 4), 2 * 2 * H
    assert _kept(two, _run(two)) - _kept(one, _run(one)) == layers + (norms + projection) * T
    joined = [r[3] for r in record(two, _run(two), {}, {}).forward.rows
              if r[0] == Op.ALLOC and r[2] == HIDDEN and r[1] == 0]
    assert joined == [3 * 2 * H * T], "the decoder's output and both further ones"


@pytest.mark.parametrize("loss", ["megatron", "te"])
def test_a_hybrids_output_layer_runs_for_every_token(loss: str) -> None:
    """Each further token keeps its loss, its logits go with process_mtp_loss; gradients of the weight are one sum."""
    vocab = 1024
    one, two = (LayerKind("head", "nemotron_h", H, block=Head(vocab, H, shared=further)) for further in (1, 2))
    of_loss = (4 * vocab + {"megatron": 1 + 8, "te": 0}[loss] + 2 * 4) * T  # and the mask, and the scaled loss
    assert _kept(two, _run(two, loss=loss)) - _kept(one, _run(one, loss=loss)) == of_loss
    for kind in (one, two):
        slots: dict[tuple[str, str], int] = {}
        tape = record(kind, _run(kind, loss=loss), slots, {})
        assert not [r for r in tape.after.rows if r[0] == Op.FREE and r[3] == -2 * vocab * T]
        sums = slots["mtp.grad_sum", "backward_temp"]
        assert [r[3] for r in tape.backward.rows if r[0] in (Op.ALLOC, Op.FREE) and r[2] == sums] == [
            2 * vocab * H, -2 * vocab * H]


def test_gradients_of_two_further_lookups_wait_as_one() -> None:
    """The first waits for the model's own; the second is added to it, and lies beside it for a moment."""
    kind = LayerKind("mtp", "nemotron_h", H, ATTENTION.branches, Mtp(H, 1024, depths=2))
    run = _run(kind, loss="te")
    table = "embedding.word_embeddings.weight"
    shared = {**run.params, table: replace(run.params[table], tied=True)}
    slots: dict[tuple[str, str], int] = {}
    rows = record(kind, replace(run, params=shared), slots, {}).backward.rows
    waiting, beside = slots["tied.grad", "backward_temp"], slots[f"mtp.{table}.grad", "backward_temp"]
    assert [(r[0], r[3]) for r in rows if r[2] == waiting and r[0] in (Op.ALLOC, Op.FREE)] == [
        (Op.ALLOC, 2 * 1024 * H)]
    assert [r[3] for r in rows if r[2] == beside and r[0] in (Op.ALLOC, Op.FREE)] == [2 * 1024 * H, -2 * 1024 * H]


def test_latent_attention_counts_both_head_sizes() -> None:
    """Scores over 192, values over 128, half of the square: s^2 (192 + 128) a head."""
    rows = record(V3, _run(V3), {}, {}).forward.rows
    assert sum(r[3] for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.ATTENTION) == T * T * 128 * (192 + 128)


def test_packed_sequences_see_themselves_alone() -> None:
    rows = record(V3, _run(V3, sequences=4, attended=T // 8), {}, {}).forward.rows
    assert sum(r[3] for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.ATTENTION) == T * T // 8 * 128 * (192 + 128)


def test_packed_sequences_cost_a_scan_their_numbers_and_flash_attention_a_block_each() -> None:
    """`seq_idx`, int32, kept by each scan; 128 rows of accumulated dq and of its sums for each sequence."""
    packed: dict[str, Any] = {"sequences": 4, "attended": T // 4}
    assert _kept(MAMBA, _run(MAMBA, **packed)) - _kept(MAMBA, _run(MAMBA)) == 4 * T
    assert _kept(ATTENTION, _run(ATTENTION, **packed)) == _kept(ATTENTION, _run(ATTENTION))
    fused, flash = MegatronOptions(attention_backend="fused"), MegatronOptions(attention_backend="flash")
    for options, more in ((fused, 0), (flash, 4 * 128 * 4 * (32 * 128 + 32))):
        work = [max(r[3] for r in record(ATTENTION, run, {}, {}).backward.rows if r[0] == Op.ALLOC)
                for run in (_run(ATTENTION, options=options, **packed), _run(ATTENTION, options=options))]
        assert work[0] - work[1] == more


def test_a_gpt_layer_keeps_the_closed_form() -> None:
    """megatron_goldens.md section 3 without dropout: two norms of 8 statistics, q, k, v where they lie, GELU fused."""
    attention = 2 * 1024 * 2 + 8 + 2 * 3 * 1024 + 2 * 1024 + 4 * 16
    assert _kept(GPT, _run(GPT)) == (attention + 2 * 1024 * 2 + 8 + 2 * 4096 + 2 * 4096) * T
    assert _kept(GPT_NORM, _run(GPT_NORM)) == (2 * 1024 + 8) * T


def test_learned_positions_are_split_after_they_are_added() -> None:
    """Not a reduce-scatter but an all-reduce, then each rank's part; the gradient of the table is dense."""
    comms: dict[tuple[str, str, str], int] = {}
    slots: dict[tuple[str, str], int] = {}
    tape = record(GPT_STEM, _run(GPT_STEM, tp=2, sequence_parallel=True), slots, comms)
    names = {row: key[0] for key, row in comms.items()}
    sent = [[names[r[2]] for r in s.rows if r[0] == Op.COLLECTIVE] for s in (tape.forward, tape.backward)]
    assert sent == [["all_reduce"], ["all_gather"]]
    made = slots["embedding.position_embeddings.weight.grad", "backward_temp"]
    assert [r[3] for r in tape.backward.rows if r[0] == Op.ALLOC and r[2] == made] == [2 * 2048 * 1024]


def test_gradients_of_three_views_are_not_concatenated() -> None:
    """Query, key and value of as many heads lie side by side: one gradient of 3 x 1024 columns."""
    slots: dict[tuple[str, str], int] = {}
    tape = record(GPT, _run(GPT), slots, {})
    made = slots["grad_qkv", "backward_temp"]
    assert [r[3] for r in tape.backward.rows if r[0] == Op.ALLOC and r[2] == made] == [2 * 3 * 1024 * T]


def test_unfused_swiglu_keeps_two_halves_more() -> None:
    """Dense: the SiLU and up + 0, 2f bytes a token each, more than the fused kernel."""
    fused, apart = (_kept(QWEN2, _run(QWEN2, options=MegatronOptions(bias_activation_fusion=on)))
                    for on in (True, False))
    assert apart - fused == 2 * 2 * 18944 * T


def test_biases_of_qkv_keep_nothing_and_get_a_gradient() -> None:
    """Attention as without: 28 heads, 4 groups of 128. The bias's gradient is made and added to main_grad."""
    kept = 2 * 3584 * 2 + 4 + 2 * 4608 + 2 * 3584 + 4 * 28 + 2 * 3584 * 2 + 4 + 6 * 18944
    assert _kept(QWEN2, _run(QWEN2)) == kept * T
    slots: dict[tuple[str, str], int] = {}
    tape = record(QWEN2, _run(QWEN2), slots, {})
    made = slots["self_attention.linear_qkv.bias.grad", "backward_temp"]
    assert [r[3] for r in tape.backward.rows if r[0] == Op.ALLOC and r[2] == made] == [2 * 4608]


@pytest.mark.parametrize(("kind", "options", "dropped"), [
    (GPT_MOE, PLAIN, 2 * (2 * 1024 + 2 * 1024)),
    (QWEN3, MegatronOptions(bias_activation_fusion=False), 8 * 4 * 2 * 768)])
def test_an_unfused_activation_is_made_again_too(kind: LayerKind, options: MegatronOptions,
                                                 dropped: int) -> None:
    """Of a row GELU's output and its product with the probability; of SwiGLU its two halves, theirs, and that too.

    Two rows a token, and eight.
    """
    kept = [_kept(kind, _run(kind, options=options, checkpoint=again)) for again in ("none", "moe_act")]
    assert kept[0] - kept[1] == dropped * T
    run = _run(kind, options=options, checkpoint="moe_act", tokens=512)
    _closes(kind, run, record(kind, run, {}, {}))


def test_flex_sends_probabilities_in_fp32_whatever_the_routers_format() -> None:
    """DeepEP's and HybridEP's own demand: one cast each way, and no more is kept."""
    def casts(dtype: str) -> list[str]:
        slots: dict[tuple[str, str], int] = {}
        run = _run(QWEN3, ep=8, options=MegatronOptions(dispatcher="flex", moe_router_dtype=dtype))
        _closes(QWEN3, run, record(QWEN3, run, slots, {}))
        return sorted(name for name, _ in slots if "to_fp32" in name)
    assert (casts("fp32"), casts("bf16")) == ([], ["grad_to_fp32", "to_fp32"])


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_and_sequence_parallelism_split_what_is_kept(tp: int) -> None:
    # activations.md section 4 with /tp; rsigma is one number for a *local* row, so it is split too.
    run = {"tp": tp, "sequence_parallel": True, "ep": 8}
    assert _kept(MAMBA, _run(MAMBA, **run)) == 55_972 * T // tp  # type: ignore[arg-type]
    assert _kept(MOE, _run(MOE, **run)) == 105_248 * T // tp  # type: ignore[arg-type]


def test_loss_heads_keep_and_peak_as_measured() -> None:
    # research/nano_runs.md section 3, one head, in units of bytes per token and vocabulary entry.
    for loss, kept, forward, backward in (("megatron", 4, 6, 10), ("megatron_unfused", 4, 6, 6), ("te", 4, 6, 6),
                                          ("te_inplace", 2, 2, 2)):
        run = _run(LOSS, loss=loss)
        tape = record(LOSS, run, {}, {})
        unit, logits = T * V, 2 * T * V
        small = 64 * T  # masks, targets and losses: a few bytes a token
        assert _kept(LOSS, run) == pytest.approx(kept * unit, abs=small)
        _, top = _bytes((tape.forward,))
        assert logits + top == pytest.approx(forward * unit, abs=small)
        _, top = _bytes((tape.seed, tape.backward))
        assert _kept(LOSS, run) + top == pytest.approx(backward * unit, abs=small)


def test_logits_in_fp32_become_their_own_gradient() -> None:
    """Without fusion `float()` copies nothing, and all is done in place (core `tensor_parallel/cross_entropy.py`)."""
    tape = record(LOSS, replace(_run(LOSS, loss="megatron_unfused"), compute="fp32"), {}, {})
    unit, small = T * V, 64 * T
    assert _bytes((tape.forward,))[1] <= small
    kept, _ = _bytes((tape.forward, tape.after))
    assert kept <= small
    births = [row[3] for row in tape.backward.rows if row[0] == Op.ALLOC and row[3] > small]
    deaths = [-row[3] for row in tape.backward.rows if row[0] == Op.FREE and -row[3] > small]
    assert births == deaths == [4 * unit]


@pytest.mark.parametrize(("fuses", "opens_first"), [(True, True), (False, False)])
def test_a_bucket_is_made_when_the_product_or_the_hook_wants_it(fuses: bool, opens_first: bool) -> None:
    """Megatron-FSDP: the output layer's bucket, before or after what autograd makes of the weight's gradient."""
    options = MegatronOptions(gradient_buckets=True, gradient_accumulation_fusion=fuses)
    tape = record(HEAD, replace(_run(HEAD), options=options), {}, {})
    marks = [at for at, row in enumerate(tape.backward.rows) if row[0] == Op.MARK]
    products = [at for at, row in enumerate(tape.backward.rows) if row[0] == Op.COMPUTE]
    assert len(marks) == 1
    assert (marks[0] < max(products)) is opens_first


def test_mamba_scan_peaks_as_measured() -> None:
    # truth/activations_reference.json, "transient_peaks": mamba_ssm's own wrappers run with stubbed kernels,
    # 8192 tokens: 41,728 and 107,747 B a token for scan and gated norm. Besides here: what in_proj keeps.
    tape = record(MAMBA, _run(MAMBA), {}, {})
    before = 2 * 5_376 + 4 + 20_608 - 5_376  # ln_out, rsigma, zxbcdt; the input is another layer's
    _, top = _bytes((tape.forward,))
    assert top == (before + 41_728) * T
    _, top = _bytes((tape.backward,), skip=(0,))
    freed = 8_192 + 8_192 + 32 - 8_192  # gated norm's kept tensors are gone, the gradient of its input is there
    assert top + freed * T == pytest.approx(107_747 * T, rel=1e-3)


def test_flops_of_a_forward_pass_are_counted_ones() -> None:
    # research/time.md section 1: projections, scan, experts, attention at 8192.
    def flops(kind: LayerKind, *kernels: Kernel) -> int:
        rows = record(kind, _run(kind, ep=8), {}, {}).forward.rows
        return sum(r[3] for r in rows if r[0] == Op.COMPUTE and r[2] in kernels) // T

    assert flops(MAMBA, Kernel.GEMM) == 55_394_304 + 22_020_096
    assert flops(MAMBA, Kernel.CONV) == 49_152
    assert flops(MAMBA, Kernel.MAMBA_SCAN) == pytest.approx(3_416_064, rel=0.005)
    assert flops(MOE, Kernel.GEMM, Kernel.GROUPED_GEMM) == 688_128 + 119_734_272 + 39_911_424
    assert flops(ATTENTION, Kernel.GEMM) == 46_792_704
    assert flops(ATTENTION, Kernel.ATTENTION) == 67_108_864
    assert flops(HEAD, Kernel.GEMM) == 704_643_072


def test_backward_of_the_scan_costs_what_the_page_counts() -> None:
    rows = record(MAMBA, _run(MAMBA), {}, {}).backward.rows
    assert sum(r[3] for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.MAMBA_SCAN) == 9_175_040 * T


def test_collectives_of_dispatch_and_sequence_parallelism() -> None:
    def sent(kind: LayerKind, **options: object) -> dict[tuple[str, str, str], list[int]]:
        comms: dict[tuple[str, str, str], int] = {}
        tape = record(kind, _run(kind, **options), {}, comms)  # type: ignore[arg-type]
        names = {row: key for key, row in comms.items()}
        found: dict[tuple[str, str, str], list[int]] = {}
        for r in tape.forward.rows:
            if r[0] == Op.COLLECTIVE:
                found.setdefault(names[r[2]], []).append(r[3])
        return found

    rows = 6 * T
    assert sent(MOE, ep=8) == {("all_gather", "ep", "int64"): [8 * 8 * 128],
                               ("all_to_all", "ep", "bf16"): [rows * 2 * H] * 2,
                               ("all_to_all", "ep", "fp32"): [4 * rows]}
    assert sent(MOE) == {}
    assert sent(MAMBA, tp=2, sequence_parallel=True) == {
        ("all_gather", "tp", "bf16"): [2 * H * T], ("reduce_scatter", "tp", "bf16"): [2 * H * T]}
    assert sent(MAMBA, tp=2) == {("all_reduce", "tp", "bf16"): [2 * H * T]}
    assert sent(LOSS, tp=2) == {("all_reduce", "tp", "fp32"): [4 * T, 8 * T]}
    assert sent(LOSS, tp=2, loss="megatron_unfused") == {("all_reduce", "tp", "fp32"): [4 * T] * 3}


@pytest.mark.parametrize(("loss", "passes", "operators"), [("megatron_unfused", (9, 3), [18, 8]),
                                                           ("megatron", (5, 4), [0, 0])])
def test_native_losses_pass_over_an_fp32_softmax(loss: str, passes: tuple[int, int], operators: list[int]) -> None:
    """And one over the logits, or their gradient, in bf16. Without fusion each is torch's own operator."""
    tape = record(LOSS, replace(_run(LOSS), loss=loss), {}, {})
    rows = [r for section in (tape.forward, tape.backward) for r in section.rows
            if r[0] == Op.COMPUTE and r[2] == Kernel.ELEMENTWISE]
    assert [r[5] for r in rows] == [T * V * (4 * count + 2) for count in passes]
    assert [int(shapes_in(np.array([r[4]]))[0]) for r in rows] == operators


def test_idle_gradients_are_one_for_each_shape() -> None:
    shapes = {s for kind, _ in NANO for s in idle_gradients(kind, _run(kind, ep=8))}
    assert len(shapes) == 8
    assert sum(2 * a * b for (a, b), _ in shapes) == pytest.approx(0.867e9, rel=1e-3)
    assert not idle_gradients(MAMBA, _run(MAMBA, frozen=True))


def test_gradients_of_other_frameworks_stay() -> None:
    run = _run(ATTENTION)
    params = {n: Param(n, p.shape, p.dtype, trainable=True) for n, p in run.params.items()}
    tape = record(ATTENTION, LayerWorkload(1, T, "bf16", params), {}, {})
    assert sorted((p.name, size) for p, _, size in tape.grads) == sorted((n, 2 * p.numel) for n, p in params.items())
