"""Megatron-Core's multi-head latent attention (MLA), with and without apply_rope_fusion.

megatron-core 0.16.1 `transformer/multi_latent_attention.py` (`MLASelfAttention`), `fusions/
fused_mla_yarn_rope_apply.py`; Bridge 0.3.1 `models/deepseek/` switches the fusion off, its scripts for performance
switch it on.
The latent vector is a view of what the projection down made; TE's linears make what is not contiguous so, and keep the
copy (TransformerEngine 2.18 `pytorch/module/base.py`, prepare_forward).
"""

from __future__ import annotations

from simcore.models.blocks import LatentAttention
from simcore.operators.megatron.attention import core, turning_passes
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import identity
from simcore.operators.megatron.ops.linear import column, gather_backward, norm_linear, row, whole
from simcore.operators.megatron.ops.norm import norm, norm_discarded
from simcore.operators.megatron.ops.offload import offloaded
from simcore.operators.megatron.ops.recompute import discarded_region
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["latent_attention"]

_AT = "self_attention"


def latent_attention(c: Context, block: LatentAttention, x: Tensor) -> Tensor:
    """Output of latent self-attention for the residual stream `x` [local tokens, hidden], in x's shape.

    The norm before it is included; the caller adds the residual. Local: after sequence parallelism.
    """
    discarded = None
    if c.recomputes("layernorm") and not c.inside:
        ln_out, discarded = norm_discarded(c, "input_layernorm", x)
    else:
        ln_out = norm(c, "input_layernorm", x)
    out = _attention(c, block, ln_out)
    return discarded.drop_after(out) if discarded else out


def _attention(c: Context, block: LatentAttention, x: Tensor) -> Tensor:
    """Down, up, rotated, attended, projected. What is made on the way up can be discarded once it was attended to."""
    compressed = _down(c, "linear_q_down_proj", x) if block.q_rank else x
    latent, rope_key = _split(c, block, _down(c, "linear_kv_down_proj", x))
    if c.local != c.tokens:
        rope_key = gather_backward(c, rope_key, f"{_AT}.rope_key")

    def up() -> tuple[Tensor, Tensor, Tensor]:
        return _up(c, block, compressed, latent, rope_key)

    columns = block.num_heads // c.run.tp * block.value

    def attend(parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return offloaded(c, "core_attn", parts[0], lambda query: core(
            c, block.num_heads, query, *parts[1:], columns, dropout=block.dropout), release=parts)

    if c.recomputes("mla_up_proj") and not c.inside:
        parts, drop_after = discarded_region(c, up)
        query, key, value = parts
        out = drop_after(attend((query, key, value)))
    else:
        query, key, value = up()
        out = attend((query, key, value))
    return offloaded(c, "attn_proj", out, lambda x: row(c, f"{_AT}.linear_proj", x), release=(out,))


def _up(c: Context, block: LatentAttention, compressed: Tensor, latent: Tensor, rope_key: Tensor) -> tuple[
        Tensor, Tensor, Tensor]:
    """`qkv_up_proj_and_rope_apply`: (query, key, value)."""
    heads = block.num_heads // c.run.tp
    project = norm_linear if block.inner_norms else column
    query = project(c, f"{_AT}.linear_q_up_proj", compressed) if block.q_rank else \
        column(c, f"{_AT}.linear_q_proj", compressed)
    pair = project(c, f"{_AT}.linear_kv_up_proj", _contiguous(c, latent))
    if c.options.apply_rope_fusion:
        return _turned_in_place(c, block, heads, query), *_split_and_turned(c, block, heads, pair, rope_key)
    query = _query(c, block, heads, query)
    key, value = _key_value(c, block, heads, pair, rope_key)
    return query, key, value


def _down(c: Context, name: str, x: Tensor) -> Tensor:
    """TE Linear that lies whole on every tp rank (parallel_mode "duplicated"), over this rank's tokens."""
    return whole(c, f"{_AT}.{name}", x)


def _split(c: Context, block: LatentAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Latent vector and the key's rotated part: views; their gradients are concatenated."""
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, "grad_kv_combined")
        c.elementwise(grad, 2, Kernel.COPY)
        return [grad]

    latent, rope_key = (Tensor(x.storage, (rows, n), x.dtype) for n in (block.kv_rank, block.rope))
    c.node(latent, (x,), (), back)
    rope_key.node, rope_key.output = latent.node, 1
    return latent, rope_key


def _contiguous(c: Context, x: Tensor) -> Tensor:
    out = c.tape.empty(x.shape, c.dtype, "latent_contiguous")
    c.elementwise(out, 2, Kernel.COPY)
    c.node(out, (x,), (), identity)
    return out


def _turned_in_place(c: Context, block: LatentAttention, heads: int, x: Tensor) -> Tensor:
    """`fused_apply_mla_rope_for_q`: the rotated part of each head is written over, of the gradient too."""
    moved = 2 * x.shape[0] * heads * block.rope * c.size

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> Grads:
        c.tape.compute(Kernel.ELEMENTWISE, moved, moved)
        return grads

    out = Tensor(x.storage, x.shape, x.dtype)
    c.tape.compute(Kernel.ELEMENTWISE, moved, moved)
    c.node(out, (x,), (), back)
    return out


def _split_and_turned(c: Context, block: LatentAttention, heads: int, x: Tensor, rope_key: Tensor) -> tuple[
        Tensor, Tensor]:
    """`fused_apply_mla_rope_for_kv`: one kernel splits, rotates and puts together; backward another."""
    rows, columns = x.shape
    around = rows * heads * (block.nope + block.rope + block.value) * c.size

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad, turned = c.new(rows, columns, "grad_kv_up"), c.new(rows, block.rope, "grad_rope_key")
        c.tape.compute(Kernel.ELEMENTWISE, grad.numel, around + grad.nbytes + turned.nbytes)
        return [grad, turned]

    key = c.new(rows, heads * (block.nope + block.rope), "key")
    value = c.new(rows, heads * block.value, "value")
    c.tape.compute(Kernel.ELEMENTWISE, x.numel, x.nbytes + around)
    c.node(key, (x, rope_key), (), back)
    value.node, value.output = key.node, 1
    return key, value


def _rotated(c: Context, rows: int, columns: int, name: str) -> Tensor:
    """`apply_rotary_pos_emb`, unfused; angles are constants, nothing is kept. Even columns are put before odd ones."""
    straight, turned = c.new(rows, columns, f"{name}.cos"), c.new(rows, columns, f"{name}.sin")
    out = c.new(rows, columns, name)
    passes, operators = turning_passes(is_backward=name.startswith("grad_"), interleaved=True)
    c.elementwise(out, passes, operators=operators)
    del straight, turned
    return out


def _query(c: Context, block: LatentAttention, heads: int, x: Tensor) -> Tensor:
    """`cat(q_no_pe, rope(q_pos_emb))`: a new tensor; backward rotates back and concatenates."""
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        turned = _rotated(c, rows, heads * block.rope, "grad_rope_query")
        grad = c.new(rows, columns, "grad_query_up")
        c.elementwise(grad, 2, Kernel.COPY)
        del turned
        return [grad]

    turned = _rotated(c, rows, heads * block.rope, "rope_query")
    out = c.new(rows, columns, "query")
    c.elementwise(out, 2, Kernel.COPY)
    del turned
    c.node(out, (x,), (), back)
    return out


def _key_value(c: Context, block: LatentAttention, heads: int, x: Tensor, rope_key: Tensor) -> tuple[Tensor, Tensor]:
    """The key gets the rotated part, the same for all heads; the value is made contiguous."""
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        summed = c.new(rows, block.rope, "grad_rope_key_sum")  # over the heads that it was expanded to
        turned = _rotated(c, rows, block.rope, "grad_rope_key")
        del summed
        grad = c.new(rows, columns, "grad_kv_up")
        c.elementwise(grad, 2, Kernel.COPY)
        return [grad, turned]

    turned = _rotated(c, rows, block.rope, "rope_key")
    key = c.new(rows, heads * (block.nope + block.rope), "key")
    del turned
    value = c.new(rows, heads * block.value, "value")
    c.elementwise(key, 2, Kernel.COPY)
    c.elementwise(value, 2, Kernel.COPY)
    c.node(key, (x, rope_key), (), back)
    value.node, value.output = key.node, 1
    return key, value
