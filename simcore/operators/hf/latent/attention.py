"""Multi-head latent attention (transformers 5.23 `modeling_deepseek_v3.py`, DeepseekV3Attention)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simcore.models.blocks import LatentAttention
from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["Modules", "by_flash", "latent_attention"]

Grads = list[Tensor | None]


@dataclass(frozen=True, slots=True)
class Modules:
    """Functions that attention calls: `linear`, `norm` by a module's name and its input; `core` of heads."""

    linear: Callable[[str, Tensor], Tensor]
    norm: Callable[[str, Tensor], Tensor]
    core: Callable[[Tensor, Tensor, Tensor], Tensor]


def latent_attention(tape: Tape, block: LatentAttention, x: Tensor, tables: tuple[Tensor, ...],
                     modules: Modules) -> Tensor:
    """Output of attention for `x` [b, s, hidden], in its shape.

    `tables`: cosines and sines [1, s, 1, rope], or one table of complex numbers [1, s, 1, rope]. Heads come second
    upstream, here third: what is put together lies by heads.
    """
    batch, seq, _ = x.shape
    heads = block.num_heads
    asked = _query(block, x, modules)
    plain, turned = _split(tape, _by_heads(tape, asked, heads), block.nope)
    low = modules.linear("kv_a_proj_with_mqa", x)
    latent, shared = _split(tape, low, block.kv_rank)
    latent = modules.norm("kv_a_layernorm", latent)
    shared = shared.view(batch, seq, 1, block.rope)
    turned, shared = (_turned if len(tables) > 1 else _turned_at_once)(tape, turned, shared, tables)
    query = aten.cat(tape, plain, turned)
    if block.tempered:
        query = aten.mul(tape, query, _scale(tape, seq, x.dtype), "tempered")
    key, value = _expanded(tape, block, latent, shared, modules)
    out = modules.core(query, key, value)
    return modules.linear("o_proj", out.view(batch, seq, block.out_size))


def _scale(tape: Tape, seq: int, dtype: str) -> Tensor:
    """A number for the query of each position, 1 within the original context (`get_llama_4_attn_scale`)."""
    made = aten.new(tape, (seq,), "fp32", "scale")
    for _ in range(5):
        made = aten.select(tape, made, made.shape, "fp32", "scale")
    return aten.select(tape, made, made.shape, dtype, "scale").view(1, seq, 1, 1)


def _query(block: LatentAttention, x: Tensor, modules: Modules) -> Tensor:
    if not block.q_rank:
        return modules.linear("q_proj", x)
    return modules.linear("q_b_proj", modules.norm("q_a_layernorm", modules.linear("q_a_proj", x)))


def _by_heads(tape: Tape, x: Tensor, heads: int) -> Tensor:
    return aten.to_heads(tape, x, x.shape[-1] // heads, copy_grad=True)


def _split(tape: Tape, x: Tensor, first: int) -> tuple[Tensor, Tensor]:
    one, other = aten.split(tape, x, (first, x.shape[-1] - first))
    return one, other


def _turned_at_once(tape: Tape, query: Tensor, key: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Both as complex numbers in fp32 (`apply_rotary_emb` of DeepSeek-V2), of which all live until it returns."""
    (table,) = tables
    entries = Tensor(table.storage, (table.shape[1], table.shape[-1] // 2, 2), "fp32")
    wide_query, wide_key = aten.cast(tape, query, "fp32"), aten.cast(tape, key, "fp32")
    made = aten.cast(tape, aten.rotate(tape, wide_query, entries, copy_grad=True), query.dtype)
    return made, aten.cast(tape, aten.rotate(tape, wide_key, entries), key.dtype)


def _turned(tape: Tape, query: Tensor, key: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Neighbours of both are turned, the even and the odd ones apart (`apply_rotary_pos_emb_interleave`)."""
    cos, sin = (Tensor(table.storage, (*table.shape[:-1], table.shape[-1] // 2), table.dtype) for table in tables)
    q_even, q_odd = aten.slice_half(tape, query), aten.slice_half(tape, query)
    k_even, k_odd = aten.slice_half(tape, key), aten.slice_half(tape, key)
    return _pairs(tape, q_even, q_odd, cos, sin), _pairs(tape, k_even, k_odd, cos, sin)


def _pairs(tape: Tape, even: Tensor, odd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left = aten.sub(tape, aten.mul(tape, even, cos, "rotary"), aten.mul(tape, odd, sin, "rotary"), "rotary")
    right = aten.add(tape, aten.mul(tape, odd, cos, "rotary"), aten.mul(tape, even, sin, "rotary"), "rotary")
    return aten.cat(tape, left, right)


def _expanded(tape: Tape, block: LatentAttention, latent: Tensor, shared: Tensor,
              modules: Modules) -> tuple[Tensor, Tensor]:
    """(key, value) of all heads (`expand_kv`): both parts of a key are copied into a new tensor."""
    both = _by_heads(tape, modules.linear("kv_b_proj", latent), block.num_heads)
    plain, value = _split(tape, both, block.nope)
    return _filled(tape, plain, _for_heads(tape, shared, block.num_heads)), value


def _for_heads(tape: Tape, x: Tensor, heads: int) -> Tensor:
    """View of `x` [b, s, 1, r] for every head; its gradient is the sum over heads."""
    shape, dtype, num_bytes = x.shape, x.dtype, heads * x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [aten.new(tape, shape, dtype, "grad_shared", num_bytes)])
    return Tensor(x.storage, (*shape[:2], heads, shape[3]), dtype, node)


def _filled(tape: Tape, plain: Tensor, shared: Tensor) -> Tensor:
    """A new tensor into whose columns `plain` [b, s, heads, n] and `shared` [b, s, heads, r] are copied.

    Backward of a copy into a slice writes zeros where it went, and copies out what came from there.
    """
    shapes, dtype = (plain.shape, shared.shape), plain.dtype
    shape = (*shapes[0][:-1], shapes[0][-1] + shapes[1][-1])

    def of_shared(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        rest = aten.new(tape, shape, dtype, "grad_key")
        out = aten.new(tape, shapes[1], dtype, "grad_turned")
        _zeros = aten.new(tape, shapes[1], dtype, "zeros")
        return [rest, out]

    def of_plain(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        _rest = aten.new(tape, shape, dtype, "grad_key")
        return [aten.new(tape, shapes[0], dtype, "grad_plain")]

    node = tape.node((plain,), (), of_plain)
    out = aten.new(tape, shape, dtype, "key", plain.nbytes, Kernel.COPY)
    tape.compute(Kernel.COPY, 0, 2 * plain.nbytes // shapes[0][-1] * shapes[1][-1])
    out.node = node
    out.node = tape.node((out, shared), (), of_shared)
    return out


def by_flash(tape: Tape, value: Tensor, dim: int, kernel: Callable[[Tensor], Tensor]) -> Tensor:
    """Output of a `kernel` that takes heads of `dim` alone, by the size of `value` [b, s, heads, d].

    transformers 5.23 `integrations/flash_attention.py`, flash_attention_forward: values are filled up with zeros, and
    what comes out is cut, which copies it.
    """
    size = value.shape[-1]
    if size == dim:
        return kernel(value)
    return aten.contiguous(tape, aten.slice_last(tape, kernel(_padded(tape, value, dim)), size), "attention")


def _padded(tape: Tape, x: Tensor, size: int) -> Tensor:
    """`x` with zeros behind its last dimension up to `size`; the gradient is copied out."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_padded", num_bytes, Kernel.COPY)])
    out = aten.new(tape, (*shape[:-1], size), dtype, "padded", num_bytes, Kernel.COPY)
    out.node = node
    return out
