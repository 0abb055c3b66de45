"""torch's own attention of grouped heads, plain operators that write every pair of a query and a key.

[Note: attention without a kernel]
torch 2.13 `ATen/native/transformers/cuda/sdp_utils.cpp`: cuDNN's kernel and flash need compute capability 8.0 and
16 bits; the memory-efficient kernel takes fp32, and fp16 on older GPUs, but no query whose heads are more than those of
its keys (check_batch_size_and_num_heads_dense without supports_gqa). transformers asks for such groups where no mask is
passed and heads are not wider than 256 (`integrations/sdpa_attention.py`, use_gqa_in_sdpa), so torch takes the last of
its ways, SDPBackend.MATH: `ATen/native/transformers/attention.cpp`, _scaled_dot_product_attention_math. In 16 bits
query, key and value are copied to fp32, and so are all scores. Autograd keeps the scaled query and repeated keys, the
repeated values and softmax's output: 4 bytes a pair and head. With several sequences the query is copied by heads.
Order and sizes are measured (`tests/truth/probe_math_attention.py`). The copy of the probabilities in 16 bits, which is
not used, is the function's second result.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["math_attention"]

_TRUTH = "uint8"
"""Type with the size of torch's truth values."""


def math_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of `q` [batch, sequence, heads, d] with fewer heads of `k` and `v`; returns q's shape.

    See [Note: attention without a kernel].
    """
    dtype, groups = q.dtype, q.shape[2] // k.shape[2]
    q_wide, k_wide, v_wide = (aten.cast(tape, x, "fp32") for x in (q, k, v))
    query = aten.mul_scalar(tape, q_wide)
    mask = _causal_mask(tape, q.shape[1])
    keys = aten.repeat_heads(tape, k_wide, groups)
    values = aten.repeat_heads(tape, v_wide, groups)
    weights = _probabilities(tape, query, aten.mul_scalar(tape, keys), mask)
    _second_result = aten.new(tape, weights.shape, dtype, "unused", weights.nbytes) if dtype != "fp32" else None
    out = aten.cast(tape, _weighted(tape, weights, values), dtype)
    del weights, values, keys, mask, query, k_wide, v_wide, q_wide
    return aten.contiguous(tape, out, "attention")


def _causal_mask(tape: Tape, seq: int) -> Tensor:
    """Tensor [sequence, sequence] in fp32, made of truth values."""
    ones = aten.new(tape, (seq, seq), _TRUTH, "ones")
    below = aten.new(tape, (seq, seq), _TRUTH, "causal", ones.nbytes)
    del ones
    return aten.new(tape, (seq, seq), "fp32", "causal_mask", below.nbytes)


def _probabilities(tape: Tape, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    """Softmax of scores [batch, heads, sequence, sequence] to which the mask is added in place.

    `ATen/native/transformers/attention.cpp`, _safe_softmax: rows that are masked as a whole are looked for, and become
    zeros in place.
    """
    batch, seq, heads, dim = query.shape
    if batch > 1:
        query = aten.contiguous(tape, query, "heads")
    scores = aten.product(tape, query, keys, (batch, heads, seq, seq), dim, "scores")
    tape.compute(Kernel.ELEMENTWISE, scores.numel, 2 * scores.nbytes + mask.nbytes, 0)
    weights = aten.softmax(tape, scores)
    masked = aten.new(tape, scores.shape, _TRUTH, "masked", scores.nbytes)
    rows = aten.new(tape, (batch, heads, seq), _TRUTH, "masked_rows", masked.nbytes)
    tape.compute(Kernel.ELEMENTWISE, scores.numel, rows.nbytes + 2 * weights.nbytes, 0)
    return weights


def _weighted(tape: Tape, weights: Tensor, values: Tensor) -> Tensor:
    """`weights @ values`; the gradient, which is in the memory order of a linear, is copied with several sequences."""
    made = aten.product(tape, weights, values, values.shape, weights.shape[2], "attention")
    shape = made.shape

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        return [grad if shape[0] == 1 else aten.new(tape, shape, "fp32", "grad_heads", grad.nbytes, Kernel.COPY)]

    node = tape.node((made,), (), backward)
    return Tensor(made.storage, shape, made.dtype, node)
