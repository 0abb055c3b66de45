"""Kinds of layers, workloads over them, and bytes of what is recorded: what the tests of Megatron's operators share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simcore.frameworks.adapter import LoraChoice
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
from simcore.operators.megatron.implementation import record, tensors
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Kernel, Op, Param, Section

PLAIN = MegatronOptions()
H, V, T = 2688, 131072, 8192


def layer_of(name: str, block: Mixer, family: str = "nemotron_h") -> LayerKind:
    return LayerKind(name, family, block.hidden, (Branch("norm", "mixer", block),))

MAMBA = layer_of("mamba", Mamba2(H, 64, 64, 8, 128, 4, 128))
MOE = layer_of("moe", Moe(H, 128, 6, 1856, 3712))
LATENT = layer_of("latent", Moe(4096, 512, 22, 2688, 5376, latent=1024))
ATTENTION = layer_of("attention", Attention(H, 32, 2, 128))
MLP = layer_of("mlp", Mlp(H, 1856, gated=False))
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
GEMMA = LayerKind("gemma", "gemma3_text", 1152, (
    Branch("input_layernorm", "self_attn", Attention(1152, 4, 1, 256, rotary=True, qk_norm=True, window=512),
           behind="post_attention_layernorm"),
    Branch("pre_feedforward_layernorm", "mlp", Mlp(1152, 6912, gelu=True), behind="post_feedforward_layernorm")))
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


def spelled(kind: LayerKind) -> list[str]:
    return [f"{s.name} {'x'.join(map(str, s.shape))}{f' #{s.copies}' if s.copies > 1 else ''}"
            for s in tensors(kind) if not s.is_buffer]

# ---- records ---------------------------------------------------------------------------------------------------------
_TP = ("vocab", "heads", "shared_ffn", "ffn", "mamba_in", "mamba_conv", "mamba_heads", "mamba_inner",
       "tp_rank", "tp_in", "tp_out", "delta_in", "delta_conv", "value_heads")


def run_of(kind: LayerKind, *, lora: int = 0, frozen: bool = False, tokens: int = T, top_k: int = 6,
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


def live_bytes(sections: Iterable[Section], skip: tuple[int, ...] = ()) -> tuple[int, int]:
    """Balance and highest balance of the rows, the tensors that cross the layer's border apart."""
    now = peak = 0
    for section in sections:
        for op, _, slot, amount, _, _ in section.rows:
            if op in (Op.ALLOC, Op.FREE) and slot not in skip:
                now += amount
                peak = max(peak, now)
    return now, peak


def kept_in(kind: LayerKind, run: LayerWorkload) -> int:
    """Bytes that the layer keeps for backward, its input among them, its output not."""
    tape = record(kind, run, {}, {})
    rows = [r for s in (tape.forward, tape.after) for r in s.rows]
    own = sum(r[3] for r in rows if r[0] in (Op.ALLOC, Op.FREE) and r[2] != HIDDEN)
    dropped = sum(r[3] for r in rows if r[0] == Op.FREE and r[2] == HIDDEN)
    width = 2 * (kind.block.vocab // run.tp if isinstance(kind.block, Loss) else kind.hidden)
    local = run.tokens // (run.tp if run.sequence_parallel and not isinstance(kind.block, Loss) else 1)
    return own + local * width + dropped


def check_closed(kind: LayerKind, run: LayerWorkload, tape: RecordedLayer) -> None:
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
# Qwen3-30B-A3B, bytes a token: attention of 32 heads and 4 groups of 128; norms of heads keep copies of q and k.
QKV_COLUMNS, Q_COLUMNS = 2 * 5120, 2 * 4096
QWEN3_ATTENTION = 2 * 2048 * 2 + 4 + QKV_COLUMNS + Q_COLUMNS + 4 * 32 + (Q_COLUMNS + 2 * 512) + 4 * (32 + 4)


def qwen3_moe(fused: bool, dtype: int) -> int:
    """`dtype`: bytes of logits and probabilities. Held besides what the router keeps: probabilities and both maps."""
    router = 8 * 8 + 4 * 8 + 4 * 128 + dtype * 128 + 128 + 4 * (2 * 128 + 1)
    row = 2 * 2048 + 4 * 768 + 2 * 768 + dtype + 2 * 4  # dispatched, fc1, activation, probability, two maps of sorting
    return 2 * 2048 * 2 + 4 + router + 8 * (row + (0 if fused else 3 * 2 * 768))


def latent_kept(h: int, heads: int, q_rank: int) -> int:
    """By the source: norm, projections down (512 made contiguous), q and k of 192, v of 128 a head, the output."""
    query = q_rank and 2 * (2 * q_rank) + 4
    return 2 * (2 * h) + 4 + query + 2 * 512 + 4 + 2 * 512 + 2 * heads * (192 + 192 + 128 + 128) + 4 * heads


def moved_by(kind: LayerKind, kernels: tuple[Kernel, ...], **options: Any) -> tuple[int, int]:
    """Bytes a token that kernels of these classes move in forward and in backward."""
    tape = record(kind, run_of(kind, top_k=4, **options), {}, {})
    forward, backward = (sum(r[5] for r in part.rows if r[0] == Op.COMPUTE and r[2] in kernels) // T
                         for part in (tape.forward, tape.backward))
    return forward, backward

MTP = LayerKind("mtp", "deepseek_v3", 7168, V3.branches, Mtp(7168, 129280))
SHARED_HEAD = LayerKind("head", "deepseek_v3", 7168, block=Head(129280, 7168, shared=True))
