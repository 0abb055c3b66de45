"""Layers of Step 3.5 (nemo-automodel 0.7.0 `components/models/step3p5/{layers,model}.py`).

Every attention makes the table that turns its heads itself, of positions that the model gives it: fused rotation, for
which one of the model's would do, is off (`BackendConfig.__post_init__`). A sigmoid of a number for each head, of a
product of its own with the input, weighs what attention puts out. The shared expert stands in the layer, beside the
block of experts, whose limit (`swiglu_limits`) reaches no kernel: `activation_limit` is not read for SwiGLU
(`components/moe/experts.py`, get_expert_activation_for_deepep). Blocks' outputs are variables until the layer returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simcore.models.blocks import Attention, LayerKind, Mlp, Moe
from simcore.operators.automodel.dense import rotated
from simcore.operators.automodel.env import BESIDE, Env, around
from simcore.operators.automodel.layers import by_heads, linear, te_attention
from simcore.operators.shared import aten
from simcore.operators.shared.aten import new
from simcore.recording.rows import Module
from simcore.recording.tape import Tensor

__all__ = ["step_layer"]


def step_layer(env: Env, kind: LayerKind, hidden: Tensor, experts: Callable[[Tensor, Moe, str], Tensor]) -> Tensor:
    """Output of a layer for its input [b, s, h]; `experts`: (x, block, name of the module) -> output of experts."""
    tape, (first, second) = env.tape, kind.branches
    assert isinstance(first.block, Attention)
    x = _norm(env, hidden, first.norm)
    tape.scope, tape.module = f"{first.name}.", Module.ATTN
    _attended = _attention(env, around(tape, x, BESIDE[Attention]), first.block, first.name)
    tape.scope, tape.module = "", Module.NONE
    residual = aten.add(tape, hidden, _attended, "residual")
    del x
    x = _norm(env, residual, second.norm)
    tape.scope = f"{second.name}."
    if isinstance(second.block, Mlp):
        tape.module = Module.MLP
        made = [_mlp(env, around(tape, x, BESIDE[Mlp]), second.name, clamped=False)]
    else:
        assert isinstance(second.block, Moe)
        block = second.block
        tape.module = Module.SHARED_EXPERTS
        made = [_mlp(env, x, "share_expert", clamped=block.clamped)]
        tape.module = Module.NONE
        made.append(experts(around(tape, x, BESIDE[Moe]), replace(block, shared_ffn=0), "moe"))
    tape.scope, tape.module = "", Module.NONE
    out = aten.add(tape, residual, made[0], "residual")
    return aten.add(tape, out, made[1], "residual") if len(made) > 1 else out


def _norm(env: Env, x: Tensor, path: str) -> Tensor:
    """`Step3p5RMSNorm`: one more than the weight, all in fp32; the mean square is a variable."""
    tape, dtype = env.tape, x.dtype
    tape.scope = f"{path}."
    x = aten.cast(tape, x, "fp32")
    _variance = aten.mean(tape, aten.square(tape, x))
    normed = aten.mul(tape, x, aten.rsqrt(tape, aten.add_scalar(tape, _variance)))
    normed = aten.mul(tape, normed, aten.add_scalar(tape, aten.cast(tape, env.param(f"{path}.weight"), "fp32")))
    return aten.cast(tape, normed, dtype)


def _attention(env: Env, x: Tensor, block: Attention, path: str) -> Tensor:
    tape = env.tape
    q, k, v = (linear(env, x, f"{path}.{part}_proj") for part in "qkv")
    q, k, v = (aten.to_heads(tape, part, block.head_dim) for part in (q, k, v))
    scope = tape.scope
    q = _norm(env, q, f"{path}.q_norm")
    k = _norm(env, k, f"{path}.k_norm")
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


def _mlp(env: Env, x: Tensor, path: str, *, clamped: bool) -> Tensor:
    """`Step3p5MLP`: the upper product first; with a limit what is gated stays below it, the other within it."""
    tape = env.tape
    up = linear(env, x, f"{path}.up_proj")
    gate = aten.silu(tape, linear(env, x, f"{path}.gate_proj"))
    if clamped:
        gate = aten.clamp(tape, gate, 1)
        up = aten.clamp(tape, up, 2)
    return linear(env, aten.mul(tape, gate, up, "swiglu"), f"{path}.down_proj")
