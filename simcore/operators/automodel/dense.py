"""Attention and norms of NeMo Automodel's dense Llama, Qwen2 and Qwen3, attention of Qwen3-MoE (nemo-automodel 0.7.0).

`components/models/{llama,qwen2,qwen3}/model.py`, `components/models/llama/rope_utils.py`. Llama and Qwen2 keep the
projections' outputs in separate variables until attention returns. Qwen3's decoder layer, norms and MLP are those of
transformers, its attention differs only in the rotation.

With tensor parallelism heads, MLP and vocabulary are split, everything between them is whole on every rank
(`components/distributed/optimized_tp_plans.py`, `_parallelize_llama`, `_parallelize_qwen`, without sequence_parallel).

[Note: rotation in fp32] `apply_rotary_pos_emb` casts query and key up, rotates both with fp32 tables and casts them
back when both are done; `BackendConfig.__post_init__` switches TE's fused kernel off. With `backend.rope: quack` one
kernel turns a single sequence in its place, forward and back (quack-kernels 0.6.5 `rotary.py`, ApplyRotaryEmb).

Qwen3-MoE (`components/models/qwen3_moe/layers.py`): grouped-query attention by TE where it is installed, with a norm
over each head of query and key. GLM-4.5's, where the norms may be missing and the projections biased, Ling's, and
MiniMax-M2's, whose norms come before the heads, run the same operators (`models/{glm4_moe,ling_v2,minimax_m2}/
layers.py`); a rotated part of a head is joined with the rest inside the rotation. Query and key are rotated in one
compiled function (`components/models/gpt_oss/rope_utils.py`, apply_rotary_emb_qk), which keeps only its tables, and
they are the stem's.

[Note: layers of Step 3.5] Every attention of `components/models/step3p5/layers.py` makes the table that turns its
heads itself, of positions that the model gives it: fused rotation, for which one of the model's would do, is off
(`BackendConfig.__post_init__`). A sigmoid of a number for each head, of a product of its own with the input, weighs
what attention puts out. The shared expert stands in the layer, beside the block of experts, whose limit
(`swiglu_limits`) reaches no kernel: `activation_limit` is not read for SwiGLU (`components/moe/experts.py`,
get_expert_activation_for_deepep). Blocks' outputs are variables until the layer returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from simcore.models.blocks import Attention, LayerKind, Mlp, Moe
from simcore.operators.automodel.env import BESIDE, Env, around
from simcore.operators.automodel.layers import by_heads, column, core_attention, linear, norm, row, te_attention
from simcore.operators.automodel.sparse import FROM_ZERO
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, new
from simcore.operators.shared.eager_attention import eager_core
from simcore.operators.shared.rms_norm import rms_norm, rms_norm_from_zero
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["DENSE", "dense_attention", "dense_norm", "is_eager", "made_mask", "norms_by_kernel", "qwen3_moe_attention",
           "rotated", "step_layer", "turned"]

DENSE: Final = ("llama", "qwen2", "qwen3")
"""Families whose layers `ModelParallelizer` checkpoints in four parts, `apply_submodule_checkpointing`."""


def norms_by_kernel(family: str) -> bool:
    """True for families whose layers have Automodel's compiled kernel as their norm, not transformers' operators."""
    return family not in ("qwen3", "mimo_v2_flash", *FROM_ZERO)


def dense_norm(env: Env, x: Tensor, path: str, family: str) -> Tensor:
    """RMSNorm of `x`, in its shape and type; `path`: name of the norm's module in the layer.

    Automodel's compiled kernel, or for Qwen3, Qwen3-Next's layers and Qwen 3.5 the norm of transformers, operator by
    operator.
    """
    if norms_by_kernel(family) or (family == "qwen3_next" and path == "model.norm"):
        return norm(env, x, path)
    env.tape.scope = f"{path}."
    if family in FROM_ZERO:
        return rms_norm_from_zero(env.tape, env.param(f"{path}.weight"), x)
    return rms_norm(env.tape, env.param(f"{path}.weight"), x, weight_in_fp32=False)


def dense_attention(env: Env, x: Tensor, block: Attention, path: str) -> Tensor:
    """Grouped-query attention of `x` [batch, sequence, hidden] with rotation in fp32; returns x's shape.

    `path`: name of the attention module in the layer. The caller adds the residual.
    """
    if block.qk_norm:
        query, key, value = _normed(env, x, block, path)
        query, key = _rotated(env.tape, query, key)
        out = _core(env, query, key, value)
        return _output(env, out, x.shape, block, path)
    tape, dim = env.tape, block.head_dim
    q, k, v = (column(env, x, f"{path}.{part}_proj") for part in "qkv")
    # A gradient of the rotation, or of eager attention, comes in [b, heads, s, d] order and is copied back.
    apart = env.options.rope == "torch"
    query, key = (aten.to_heads(tape, part, dim, copy_grad=apart) for part in (q, k))
    value = aten.to_heads(tape, v, dim, copy_grad=_is_eager(env))
    query, key = _rotated(tape, query, key) if apart else (_in_place(tape, query), _in_place(tape, key))
    out = _core(env, query, key, value)
    return _output(env, out, x.shape, block, path)


def _output(env: Env, out: Tensor, shape: tuple[int, ...], block: Attention, path: str) -> Tensor:
    return row(env, out.view(*shape[:2], block.q_size // env.run.tp), f"{path}.o_proj")


def _core(env: Env, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """SDPA, or for eager attention transformers' own function, whose probabilities the decoder layer holds.

    `models/llama/model.py:237`, `models/qwen2/model.py:221`, `models/qwen3/model.py:122`; a replay drops them at once.
    Packed sequences are TransformerEngine's (`models/llama/model.py`, is_thd), also over cp.
    """
    if not _is_eager(env):
        return core_attention(env, query, key, value, by_torch=not env.run.sequences)
    batch, seq, *_ = query.shape
    held = env.held if env.tape.phase != "recompute" else []
    return eager_core(env.tape, Tensor(None, (batch, seq, seq), query.dtype), held, by_heads=False)(query, key, value)


def _is_eager(env: Env) -> bool:
    return env.options.attn_implementation == "eager"


def is_eager(env: Env, family: str) -> bool:
    """True if layers of the family run eager attention, whose mask the model makes."""
    return _is_eager(env) and family in DENSE


def made_mask(env: Env) -> Tensor:
    """Mask that eager attention adds, made of truth values (transformers 5.23 `masking_utils.py`, eager_mask)."""
    tape, run = env.tape, env.run
    seen = new(tape, (run.seq, run.seq), "uint8", "is_seen")
    return new(tape, (run.batch, run.seq, run.seq), run.compute, "causal_mask", run.batch * seen.nbytes)


def _normed(env: Env, x: Tensor, block: Attention, path: str) -> tuple[Tensor, Tensor, Tensor]:
    """`Qwen3Attention`: what the norms of query and key are given is gone when they return."""
    query, key = (_normed_heads(env, x, block, f"{path}.{part}") for part in "qk")
    return query, key, aten.to_heads(env.tape, column(env, x, f"{path}.v_proj"), block.head_dim,
                                     copy_grad=_is_eager(env))


def _normed_heads(env: Env, x: Tensor, block: Attention, path: str) -> Tensor:
    heads = aten.to_heads(env.tape, column(env, x, f"{path}_proj"), block.head_dim, copy_grad=True)
    return rms_norm(env.tape, env.param(f"{path}_norm.weight"), heads, weight_in_fp32=False)


def _rotated(tape: Tape, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """[Note: rotation in fp32]."""
    types = query.dtype, key.dtype
    query, key = aten.cast(tape, query, "fp32"), aten.cast(tape, key, "fp32")
    turned_query, turned_key = turned(tape, query), turned(tape, key)
    return aten.cast(tape, turned_query, types[0]), aten.cast(tape, turned_key, types[1])


def _in_place(tape: Tape, x: Tensor) -> Tensor:
    num, moved = x.numel, 2 * x.nbytes

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        tape.compute(Kernel.ELEMENTWISE, num, moved)
        return list(grads)

    node = tape.node((x,), (), backward)
    tape.compute(Kernel.ELEMENTWISE, num, moved)
    return Tensor(x.storage, x.shape, x.dtype, node)


def turned(tape: Tape, x: Tensor, tables: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """`x * cos + rotate_half(x) * sin` of `x` [batch, sequence, heads, d]; without `tables` they are the stem's."""
    table = Tensor(None, (1, x.shape[1], 1, x.shape[3]), x.dtype)
    cos, sin = tables or (table, table)
    straight = aten.mul(tape, x, cos)
    return aten.add(tape, straight, aten.mul(tape, aten.rotate_half(tape, x), sin), "rotary")


# ---- Qwen3-MoE --------------------------------------------------------------------------------------------------
def qwen3_moe_attention(env: Env, x: Tensor, block: Attention, path: str) -> Tensor:
    """Attention (`Qwen3MoeAttention._forward_impl`) of `x` [batch, sequence, hidden]; returns x's shape.

    `path`: name of the attention module in the layer. The caller adds the residual.
    """
    tape = env.tape
    q, k, v = (linear(env, x, f"{path}.{part}_proj") for part in "qkv")
    if block.whole_norms:
        q = norm(env, q, f"{path}.q_norm")
        k = norm(env, k, f"{path}.k_norm")
    q, k, v = (aten.to_heads(tape, part, block.head_dim) for part in (q, k, v))
    if block.qk_norm and not block.whole_norms:
        q = norm(env, q, f"{path}.q_norm")
        k = norm(env, k, f"{path}.k_norm")
    q, k = rotated(tape, q, k)
    parts = [q, k, v]
    del q, k, v
    out = by_heads(env, parts) if env.options.sdpa else te_attention(env, *parts)
    return linear(env, out.view(*x.shape[:2], block.q_size), f"{path}.o_proj")


def rotated(tape: Tape, q: Tensor, k: Tensor, table: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Query and key [batch, sequence, heads, d] rotated at once, into new tensors; their gradients too.

    `table`: kept for backward where the layer has made it; None for the stem's.
    """
    shapes, dtype, moved = (q.shape, k.shape), q.dtype, q.nbytes + k.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [new(tape, shape, dtype, "grad_rotary", moved) for shape in shapes]

    node = tape.node((q, k), [] if table is None else [table], backward)
    made = [new(tape, shape, dtype, "rotary", moved) for shape in shapes]
    return Tensor(made[0].storage, shapes[0], dtype, node), Tensor(made[1].storage, shapes[1], dtype, node, 1)


# ---- Step 3.5 ----------------------------------------------------------------------------------------------------
def step_layer(env: Env, kind: LayerKind, hidden: Tensor, experts: Callable[[Tensor, Moe, str], Tensor]) -> Tensor:
    """Output of a layer for its input [b, s, h]; `experts`: (x, block, name of the module) -> output of experts."""
    tape, (first, second) = env.tape, kind.branches
    assert isinstance(first.block, Attention)
    x = _norm_of_step(env, hidden, first.norm)
    tape.scope, tape.module = f"{first.name}.", Module.ATTN
    _attended = _attention_of_step(env, around(tape, x, BESIDE[Attention]), first.block, first.name)
    tape.scope, tape.module = "", Module.NONE
    residual = aten.add(tape, hidden, _attended, "residual")
    del x
    x = _norm_of_step(env, residual, second.norm)
    tape.scope = f"{second.name}."
    if isinstance(second.block, Mlp):
        tape.module = Module.MLP
        made = [_mlp_of_step(env, around(tape, x, BESIDE[Mlp]), second.name, clamped=False)]
    else:
        assert isinstance(second.block, Moe)
        block = second.block
        tape.module = Module.SHARED_EXPERTS
        made = [_mlp_of_step(env, x, "share_expert", clamped=block.clamped)]
        tape.module = Module.NONE
        made.append(experts(around(tape, x, BESIDE[Moe]), replace(block, shared_ffn=0), "moe"))
    tape.scope, tape.module = "", Module.NONE
    out = aten.add(tape, residual, made[0], "residual")
    return aten.add(tape, out, made[1], "residual") if len(made) > 1 else out


def _norm_of_step(env: Env, x: Tensor, path: str) -> Tensor:
    """`Step3p5RMSNorm`: one more than the weight, all in fp32; the mean square is a variable."""
    tape, dtype = env.tape, x.dtype
    tape.scope = f"{path}."
    x = aten.cast(tape, x, "fp32")
    _variance = aten.mean(tape, aten.square(tape, x))
    normed = aten.mul(tape, x, aten.rsqrt(tape, aten.add_scalar(tape, _variance)))
    normed = aten.mul(tape, normed, aten.add_scalar(tape, aten.cast(tape, env.param(f"{path}.weight"), "fp32")))
    return aten.cast(tape, normed, dtype)


def _attention_of_step(env: Env, x: Tensor, block: Attention, path: str) -> Tensor:
    tape = env.tape
    q, k, v = (linear(env, x, f"{path}.{part}_proj") for part in "qkv")
    q, k, v = (aten.to_heads(tape, part, block.head_dim) for part in (q, k, v))
    scope = tape.scope
    q = _norm_of_step(env, q, f"{path}.q_norm")
    k = _norm_of_step(env, k, f"{path}.k_norm")
    tape.scope = scope
    _tables = _made_tables(env, block.rotated)
    q, k = rotated(tape, q, k, _tables[-1])
    gates = linear(env, x, f"{path}.g_proj") if block.head_gates else None
    parts = [q, k, v]
    del q, k, v
    out = by_heads(env, parts) if env.options.sdpa else te_attention(env, *parts)
    if gates is not None:
        out = aten.mul(tape, out, aten.sigmoid(tape, gates).view(*gates.shape, 1), "weighed")
    return linear(env, out.view(*x.shape[:2], block.q_size), f"{path}.o_proj")


def _made_tables(env: Env, dim: int) -> list[Tensor]:
    """Cosines, sines, and half of both side by side [b, s, dim], which the rotation keeps (`Step3p5RotaryEmbedding`).

    Attention names all of them until it returns. None has a gradient.
    """
    tape, run = env.tape, env.run
    shape = (run.batch, run.seq, dim)
    positions = new(tape, (run.batch, 1, run.seq), "fp32", "positions")
    angles = new(tape, (run.batch, dim // 2, run.seq), "fp32", "angles", positions.nbytes)
    both = new(tape, shape, "fp32", "angles", angles.nbytes)
    wide = [new(tape, shape, "fp32", name, both.nbytes) for name in ("cos", "sin")]
    narrow = [new(tape, shape, run.compute, name, both.nbytes) for name in ("cos", "sin")]
    del positions, angles, both
    wide.clear()
    return [*narrow, new(tape, shape, run.compute, "freqs_cis", narrow[0].nbytes)]


def _mlp_of_step(env: Env, x: Tensor, path: str, *, clamped: bool) -> Tensor:
    """`Step3p5MLP`: the upper product first; with a limit what is gated stays below it, the other within it."""
    tape = env.tape
    up = linear(env, x, f"{path}.up_proj")
    gate = aten.silu(tape, linear(env, x, f"{path}.gate_proj"))
    if clamped:
        gate = aten.clamp(tape, gate, 1)
        up = aten.clamp(tape, up, 2)
    return linear(env, aten.mul(tape, gate, up, "swiglu"), f"{path}.down_proj")
