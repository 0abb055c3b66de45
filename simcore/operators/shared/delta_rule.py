"""Kernels of the gated delta net: convolution, rule over chunks, gated norm, as transformers 5.23 calls them.

The convolution is causal-conv1d's (1.6.1), the rule flash-linear-attention's (fla-core 0.6.0); transformers calls them
where both packages are installed, else its own code in fp32, which is not modelled. The norm is plain torch: it is a
kernel only on request (`use_kernels`).

[Note: what the rule keeps]
fla `ops/gated_delta_rule/chunk.py`, ChunkGatedDeltaRuleFunction. Query, key and value are copied, as they are parts of
the convolution's output. The copy of value is kept; in the place of the other two the normalised query and key, with an
inverse norm for each head. Kept too: the decay summed within each chunk of 64 tokens (fp32), the learning rate, and for
each head a matrix of chunk x chunk. States, corrected values and their keys are made again in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from simcore.models.blocks import GatedDeltaNet
from simcore.operators.shared import aten
from simcore.recording.host_operators import MAMBA_SCAN
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["by_key_heads", "convolution", "gated_norm", "rule"]

_CHUNK: Final = 64
"""Tokens of a chunk (`chunk_gated_delta_rule`)."""


def by_key_heads(tape: Tape, block: GatedDeltaNet, projected: list[Tensor],
                 pieces: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(query, key and value as one, gate, learning rate, decay), each [b, s, ...], of two joint projections.

    `projected`: outputs of in_proj_qkvz and in_proj_ba, whose parts lie by key heads: query and key are copied, and
    where a key head has several value heads all others (`Qwen3NextGatedDeltaNet`, fix_query_key_value_ordering).
    `pieces`: gets query, key and value, which live until the convolution's output is split.
    """
    query, key, value, z = aten.split(tape, projected[0], (block.keys, block.keys, block.values, block.values))
    b, a = aten.split(tape, projected[1], (block.num_value_heads, block.num_value_heads))
    if block.num_value_heads > block.num_key_heads:
        value, z, b, a = (aten.contiguous(tape, part, "by_heads") for part in (value, z, b, a))
        pieces += [aten.contiguous(tape, query, "by_heads"), aten.contiguous(tape, key, "by_heads"), value]
    else:
        pieces += [aten.contiguous(tape, part, "by_heads") for part in (query, key, value)]
    return aten.cat(tape, *pieces), z, b, a


def convolution(tape: Tape, weight: Param, x: Tensor, width: int) -> Tensor:
    """Causal convolution of each channel of `x` [b, s, channels], then SiLU; in x's shape (`CausalConv1dFn`)."""
    shape, dtype, flops = x.shape, x.dtype, 2 * x.numel * width

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        made = aten.new(tape, shape, dtype, "grad_conv", 2 * saved[0].nbytes, Kernel.CONV, 2 * flops)
        wide = tape.empty(weight.shape, "fp32", "grad_conv_weight")
        return [made, aten.new(tape, weight.shape, weight.dtype, "grad_conv_weight", wide.nbytes)]

    node = tape.node((x, weight), (x, weight), backward)
    out = aten.new(tape, shape, dtype, "conv", x.nbytes, Kernel.CONV, flops)
    out.node = node
    return out


def gated_norm(tape: Tape, weight: Param, x: Tensor, gate: Tensor) -> Tensor:
    """RMSNorm of `x` [rows, d], times SiLU of `gate`, in fp32; returns x's shape and type (`Qwen3_5RMSNormGated`)."""
    dtype = x.dtype
    x = aten.cast(tape, x, "fp32")
    variance = aten.mean(tape, aten.square(tape, x))
    x = aten.mul(tape, x, aten.rsqrt(tape, aten.add_scalar(tape, variance)))
    x = aten.mul(tape, weight, aten.cast(tape, x, dtype))
    x = aten.mul(tape, x, aten.silu(tape, aten.cast(tape, gate, "fp32")))
    return aten.cast(tape, x, dtype)


# ---- the rule -------------------------------------------------------------------------------------------------------
def rule(tape: Tape, block: GatedDeltaNet, parts: Sequence[Tensor], g: Tensor, beta: Tensor, *,
         prepared: bool = False, copied: tuple[str, ...] | None = None) -> Tensor:
    """Output [b, s, values] of the rule, [Note: what the rule keeps].

    `parts`: query, key and value [b, s, heads of each]; `g`: decay [b, s, heads] in fp32; `beta`: learning rate.
    `prepared`: query and key are normalised and all three contiguous, so that they are kept themselves. `copied`: the
    names of those that are not contiguous, by default all.
    """
    views = ("query", "key", "value") if copied is None else copied
    node = tape.node((*parts, g, beta), (), partial(_rule_backward, block, prepared=prepared))
    copies = list(parts) if prepared else [
        aten.new(tape, part.shape, part.dtype, "contiguous", part.nbytes, Kernel.COPY) if name in views else part
        for name, part in zip(("query", "key", "value"), parts, strict=True)]
    query_kept, key_kept = ((part, part) if prepared else _normed(tape, block, part) for part in copies[:2])
    value = copies.pop()
    total = aten.new(tape, g.shape, "fp32", "decay_in_chunk", g.nbytes)
    solved, out = _chunks(tape, block, value)
    tape.save(node, *query_kept, *key_kept, value, total, beta, beta, solved)
    out.node = node
    return out


def _normed(tape: Tape, block: GatedDeltaNet, x: Tensor) -> tuple[Tensor, Tensor]:
    """(`x` by heads over its norm, one over that norm in fp32)."""
    out = aten.new(tape, x.shape, x.dtype, "normed", x.nbytes, Kernel.NORM)
    return out, tape.empty((x.numel // block.key_dim,), "fp32", "inverse_norm")


class _Work(NamedTuple):
    """FLOPs of the rule's parts for all tokens and value heads: within chunks, and with the states."""

    solved: int
    made_again: int
    output: int


def _work(block: GatedDeltaNet, tokens: int) -> _Work:
    """Products of a chunk's keys, of its matrix with keys and values, of states with both, and of the output."""
    rows, key, value = tokens * block.num_value_heads, block.key_dim, block.value_dim
    return _Work(2 * rows * _CHUNK * key, 2 * rows * (_CHUNK * (key + value) + 2 * key * value),
                 2 * rows * (_CHUNK * (key + value) + key * value))


def _again(tape: Tape, block: GatedDeltaNet, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(keys of the corrected values, values before it, states at the start of each chunk, corrected values)."""
    (batch, seq, _), heads, dtype = value.shape, block.num_value_heads, value.dtype
    keys = tape.empty((batch, seq, heads * block.key_dim), dtype, "delta.keys")
    values = tape.empty(value.shape, dtype, "delta.values")
    states = tape.empty((batch, -(-seq // _CHUNK), heads, block.key_dim, block.value_dim), dtype, "delta.states")
    corrected = tape.empty(value.shape, dtype, "delta.corrected")
    moved = 2 * (keys.nbytes + values.nbytes + states.nbytes + corrected.nbytes)
    tape.compute(Kernel.MAMBA_SCAN, _work(block, batch * seq).made_again, moved, MAMBA_SCAN.forward)
    return keys, values, states, corrected


def _chunks(tape: Tape, block: GatedDeltaNet, value: Tensor) -> tuple[Tensor, Tensor]:
    """(inverse of each chunk's matrix, output)."""
    batch, seq, _ = value.shape
    work = _work(block, batch * seq)
    solved = aten.new(tape, (batch, seq, block.num_value_heads, _CHUNK), value.dtype, "delta.solved", 0,
                      Kernel.MAMBA_SCAN, work.solved, MAMBA_SCAN.forward)
    _keys, _values, _states, _corrected = _again(tape, block, value)
    out = aten.new(tape, value.shape, value.dtype, "delta.out", 3 * value.nbytes, Kernel.MAMBA_SCAN, work.output,
                   MAMBA_SCAN.forward)
    return solved, out


def _rule_backward(block: GatedDeltaNet, tape: Tape, grads: list[Tensor | None], saved: list[Tensor], *,
                   prepared: bool) -> list[Tensor | None]:
    """`ChunkGatedDeltaRuleFunction.backward`."""
    query, _, key, *_ = saved
    to_query, to_key, to_value, to_beta, to_decay = _grads_of_chunks(tape, block, saved)
    if prepared:
        return [to_query, to_key, to_value, to_decay, to_beta]
    to_query = aten.new(tape, query.shape, query.dtype, "grad_query", 2 * query.nbytes, Kernel.NORM)
    to_key = aten.new(tape, key.shape, key.dtype, "grad_key", 2 * key.nbytes, Kernel.NORM)
    return [to_query, to_key, to_value, to_decay, to_beta]


def _grads_of_chunks(tape: Tape, block: GatedDeltaNet, saved: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of normed query and key, value, learning rate and decay (`chunk_gated_delta_rule_bwd`)."""
    query, _, _, _, value, total, *_ = saved
    keys, _values, states, _corrected = _again(tape, block, value)
    to_value = tape.empty(value.shape, value.dtype, "grad_value")
    _to_states = tape.empty(states.shape, states.dtype, "delta.grad_states")
    to_value = tape.empty(value.shape, value.dtype, "grad_value")
    to_query, to_key, to_decay, _to_keys = _of_products(tape, block, query, keys, total)
    more, to_value, more_decay, to_beta = _of_matrix(tape, block, saved, keys)
    work, moved = _work(block, total.shape[0] * total.shape[1]), 12 * value.nbytes + 4 * states.nbytes
    tape.compute(Kernel.MAMBA_SCAN, 2 * sum(work), moved, MAMBA_SCAN.backward)
    to_decay = aten.new(tape, total.shape, "fp32", "grad_decay", total.nbytes + more_decay.nbytes)
    tape.compute(Kernel.ELEMENTWISE, more.numel, 3 * more.nbytes)  # added in place
    return to_query, to_key, to_value, to_beta, to_decay


def _of_products(tape: Tape, block: GatedDeltaNet, query: Tensor, keys: Tensor,
                 total: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, decay and the corrected values' keys (`chunk_bwd_dqkwg`).

    Made for each value head, then added up for each key head. Decay's has one part for each block of 128 columns of a
    head on GPUs with the shared memory of an A100 or H100; smaller ones make two of it.
    """
    wide, dtype = keys.shape, query.dtype
    to_query, to_key = (tape.empty(wide, dtype, f"grad_{part}_by_heads") for part in ("query", "key"))
    to_decay = tape.empty((-(-block.key_dim // 128), *total.shape), "fp32", "grad_decay_by_blocks")
    to_keys = tape.empty(wide, dtype, "delta.grad_keys")
    to_query = _by_key_heads(tape, block, to_query, query)
    to_key = _by_key_heads(tape, block, to_key, query)
    to_decay = aten.new(tape, total.shape, "fp32", "grad_decay", to_decay.nbytes)
    return to_query, to_key, to_decay, to_keys


def _of_matrix(tape: Tape, block: GatedDeltaNet, saved: list[Tensor],
               keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of key, value, decay and learning rate through each chunk's matrix (`prepare_wy_repr_bwd`)."""
    query, _, _, _, value, total, _, beta, _ = saved
    to_key = tape.empty(keys.shape, keys.dtype, "grad_key_by_heads")
    to_value = tape.empty(value.shape, value.dtype, "grad_value")
    to_decay = tape.empty(total.shape, "fp32", "grad_decay")
    to_beta = tape.empty(beta.shape, beta.dtype, "grad_beta")
    return _by_key_heads(tape, block, to_key, query), to_value, to_decay, to_beta


def _by_key_heads(tape: Tape, block: GatedDeltaNet, x: Tensor, like: Tensor) -> Tensor:
    """Sum of `x` over the value heads of each key head, in the shape of `like`; `x` itself if there is one of each."""
    if block.num_key_heads == block.num_value_heads:
        return x
    return aten.new(tape, like.shape, x.dtype, "grad_by_key_heads", x.nbytes, flops=x.numel)
