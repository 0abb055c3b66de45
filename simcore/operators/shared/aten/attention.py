"""Fused attention, and what stands around it: heads as a view, repeated heads, rotation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simcore.operators.shared.aten.kernels import Grads, Saved, new
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["expand_heads", "flash_attention", "flash_attention_with_sinks", "masked_attention", "repeat_heads",
           "rotate", "scaled_dot_product_attention", "to_heads", "wide_attention", "WIDEST"]

WIDEST: Final = 256
"""Elements of a head of which flash attention has a kernel (torch 2.13 `transformers/cuda/sdp_utils.cpp`,
check_head_dim_size_flash); cuDNN's have no wider ones."""


def rotate(tape: Tape, x: Tensor, table: Tensor, *, copy_grad: bool = False) -> Tensor:
    """Rotary positions as a complex product: returns `x * table`, with the shape and type of `x`.

    `x` is fp32 [batch, sequence, heads, d], read as d / 2 complex numbers a head; `table` is a constant [(batch,)
    sequence, d / 2, 2]. Backward first writes the conjugate of the table, then the gradient. `copy_grad`: the gradient
    arrives in another memory order and is copied first.
    """
    shape, dtype, moved, entries = x.shape, x.dtype, x.nbytes, table.shape

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        _copy = new(tape, shape, dtype, "grad_heads", moved, Kernel.COPY) if copy_grad else grads[0]
        grads.clear()
        conjugate = new(tape, entries, "fp32", "conjugate")
        return [new(tape, shape, dtype, "grad_rotary", moved + conjugate.nbytes)]

    node = tape.node((x,), (table,), backward)
    out = new(tape, shape, dtype, "rotary", moved)
    out.node = node
    return out


def scaled_dot_product_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, pairs: int = 0, *,
                                 by_heads: bool = False, in_region: bool = False) -> Tensor:
    """Causal flash attention of `q` [batch, sequence, heads, d].

    Returns [batch, sequence, heads, d of `v`]. Autograd saves q, k, v, the output and the fp32 log-sum-exp. `pairs`:
    (query, key) pairs before the causal mask, all sequences together; 0 means batch x sequence x sequence. `by_heads`:
    q lies by heads, and with it the output, which backward copies if there are several (torch 2.13 `transformers/cuda/
    attention_backward.cu`: contiguous_out), and so the gradient of several rows, which comes token by token.
    `in_region`: it is a region that Inductor compiled, which puts out its inputs too ([Note: flex attention]).
    """
    shapes, dtype = (q.shape, k.shape, v.shape), q.dtype
    batch, seq, heads, dim = q.shape
    v_dim = v.shape[3]
    flops = (pairs or batch * seq * seq) * heads * (dim + v_dim)  # two products of 2 s^2 d, half of each masked
    moved, out_shape = q.nbytes + k.nbytes + v.nbytes, (batch, seq, heads, v_dim)
    out_bytes = q.nbytes // dim * v_dim

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        num_copies = by_heads * ((batch > 1) + (heads > 1))
        _copies = [new(tape, out_shape, dtype, "attention_by_tokens", out_bytes, Kernel.COPY)
                   for _ in range(num_copies)]
        made: Grads = [tape.empty(shape, dtype, "grad_attention") for shape in shapes]
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved,
                     shape_of_heads(dim, v_dim, batch * seq * heads, backward=True))
        return made

    node = tape.node((q, k, v), () if in_region else (q, k, v), backward)
    out, lse, *inputs = tape.outputs("attention", lambda: (
        new(tape, (batch, seq, heads, v_dim), dtype, "attention", moved, Kernel.ATTENTION, flops,
            shape_of_heads(dim, v_dim, batch * seq * heads)),
        tape.empty((batch, seq, heads), "fp32", "log_sum_exp"), *((q, k, v) if in_region else ())))
    tape.save(node, *(one.detach() for one in inputs), out, lse)
    out.node = node
    return out


def masked_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attention of `q` [batch, sequence, heads, d] under a mask by the memory-efficient kernel.

    Returns q's shape, with the last dimension of `v`. torch 2.13 `transformers/attention.cpp`,
    convert_boolean_attn_mask: each call writes a boolean mask out anew in the type of q, for every row of the batch,
    and the node saves it. `bias`: a mask that is of that type already, and saved as it is if 8 divide the sequence
    (preprocess_mask, which else pads it). Keys and values are repeated for every head before
    (`integrations/sdpa_attention.py`, use_gqa_in_sdpa). The log-sum-exp is rounded up to 32 positions
    (`transformers/cuda/attention.cu`). It is not known which fully masked blocks the kernel skips: FLOPs are those of
    the whole square.
    """
    k, v = (expand_heads(tape, x, q.shape[2] // x.shape[2]) for x in (k, v))
    batch, seq, heads, dim = q.shape

    def mask() -> Tensor:
        if bias is not None and seq % 8 == 0:
            return bias
        columns = seq if bias is None else -(-seq // 8) * 8
        return new(tape, (batch, seq, columns), q.dtype, "attention_bias", seq * seq)

    return _efficient(tape, q, k, v, 2 * batch * seq * seq * heads * (dim + v.shape[3]), mask)


def wide_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of `q` [batch, sequence, heads, d] without a mask where heads are wider than `WIDEST`.

    Or where those of `v` have another size: returns q's shape, with the last dimension of `v`. Keys and values are
    repeated for every head before (transformers 5.23 `integrations/sdpa_attention.py`, use_gqa_in_sdpa), then the
    memory-efficient kernel runs, the only one that takes such heads.
    """
    k, v = (expand_heads(tape, x, q.shape[2] // x.shape[2]) for x in (k, v))
    batch, seq, heads, dim = q.shape
    return _efficient(tape, q, k, v, batch * seq * seq * heads * (dim + v.shape[3]), None)


def _efficient(tape: Tape, q: Tensor, k: Tensor, v: Tensor, flops: int,
               bias_of: Callable[[], Tensor] | None) -> Tensor:
    """The memory-efficient kernel of as many heads of each; `bias_of`: makes the mask as it is added, None without."""
    shapes, dtype = (q.shape, k.shape, v.shape), q.dtype
    batch, seq, heads, dim = q.shape
    v_dim, moved = v.shape[3], q.nbytes + k.nbytes + v.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [tape.empty(shape, dtype, "grad_attention") for shape in shapes]
        _delta = tape.empty((batch, heads, seq), "fp32", "attention_delta")
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved,
                     shape_of_heads(dim, v_dim, batch * seq * heads, backward=True))
        return made

    bias = [bias_of()] if bias_of else []
    node = tape.node((q, k, v), (q, k, v, *bias), backward)
    moved += sum(one.nbytes for one in bias)
    out, lse = tape.outputs("attention", lambda: (
        new(tape, (batch, seq, heads, v_dim), dtype, "attention", moved, Kernel.ATTENTION, flops,
            shape_of_heads(dim, v_dim, batch * seq * heads)),
        tape.empty((batch, heads, -(-seq // 32) * 32), "fp32", "log_sum_exp")))
    tape.save(node, out, lse)
    out.node = node
    return out


def flash_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, pairs: int, sequences: int) -> Tensor:
    """flash-attn 2 of `q` [batch, sequence, heads, d]; returns a tensor with the shape of `q`.

    `pairs`: (query, key) pairs before the causal mask. `sequences`: number of sequences packed into the one row, 0 if
    they are not packed. `csrc/flash_attn/flash_api.cpp` at 0251105a: mha_fwd and mha_varlen_fwd keep the inputs, the
    output and the fp32 log-sum-exp; mha_bwd and mha_varlen_bwd accumulate dq in fp32, with 128 rows more for each
    packed sequence (else rows are rounded up to 128), and write dk and dv of every head before they are summed over
    groups.
    """
    batch, seq, heads, dim = q.shape
    shape, dtype, expanded = q.shape, q.dtype, 2 * (k.shape[2] < heads)
    rows = batch * seq + 128 * sequences if sequences else batch * -(-seq // 128) * 128

    def temporaries(tape: Tape) -> object:
        wide = -(-dim // 32) * 32 if dim <= 128 else -(-dim // 64) * 64
        return (tape.empty((heads, rows), "fp32", "attention_sums"),
                tape.empty((rows, heads, wide), "fp32", "attention_dq"),
                *(tape.empty(shape, dtype, "attention_expanded") for _ in range(expanded)))

    return _fused_attention(tape, q, k, v, pairs, temporaries)


def flash_attention_with_sinks(tape: Tape, q: Tensor, k: Tensor, v: Tensor, pairs: int, sequences: int) -> Tensor:
    """`kernels-community/vllm-flash-attn3` of `q` [batch, sequence, heads, d]; returns the shape of `q`.

    `pairs`: (query, key) pairs before the causal mask. `sequences`: number of sequences packed into the one row, 0 if
    they are not packed. huggingface/kernels-community 0774fcce `vllm-flash-attn3/flash-attn/flash_api.cpp`, mha_bwd:
    two sums a row, dq and, with fewer heads of keys, dk and dv accumulated in fp32, heads of 64 at least, rows rounded
    up to tiles (of 128 where heads are not wider than 64, else 64, as on sm80), and a tile more for each packed
    sequence. `flash_attn_interface.py`, FlashAttnFunc: the sinks are not saved and get no gradient.
    """
    batch, seq, heads, dim = q.shape
    tile, wide, few = 128 if dim <= 64 else 64, max(64, -(-dim // 32) * 32), k.shape[2]
    rows = -(-(batch * seq + tile * sequences) // tile) * tile if sequences else batch * -(-seq // tile) * tile

    def temporaries(tape: Tape) -> object:
        sums = (tape.empty((heads, rows), "fp32", "attention_sums"),
                tape.empty((heads, rows), "fp32", "attention_log_sum_exp"),
                tape.empty((heads, rows, wide), "fp32", "attention_dq"),
                *(tape.empty((few, rows, wide), "fp32", name) for name in ("attention_dk", "attention_dv")
                  if few != heads))
        return sums, tape.empty((-(-seq // tile), batch, heads), "int32", "attention_semaphore")

    return _fused_attention(tape, q, k, v, pairs, temporaries)


def _fused_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, pairs: int,
                     temporaries: Callable[[Tape], object]) -> Tensor:
    """One kernel a pass that keeps q, k, v, its output and the fp32 log-sum-exp.

    `temporaries`: makes what a backward pass holds besides the gradients, until it returns.
    """
    shapes, dtype = (q.shape, k.shape, v.shape), q.dtype
    batch, seq, heads, dim = q.shape
    flops = 2 * pairs * heads * dim
    moved = q.nbytes + k.nbytes + v.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [tape.empty(shape, dtype, "grad_attention") for shape in shapes]
        _held = temporaries(tape)
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved,
                     shape_of_heads(dim, dim, batch * seq * heads, backward=True))
        return made

    node = tape.node((q, k, v), (q, k, v), backward)
    out, lse = tape.outputs("attention", lambda: (
        new(tape, q.shape, dtype, "attention", moved, Kernel.ATTENTION, flops,
            shape_of_heads(dim, dim, batch * seq * heads)),
        tape.empty((batch, seq, heads), "fp32", "log_sum_exp")))
    tape.save(node, out, lse)
    out.node = node
    return out


def to_heads(tape: Tape, x: Tensor, dim: int, *, copy_grad: bool = False) -> Tensor:
    """View of `x` [batch, sequence, heads * dim] as [batch, sequence, heads, dim]; it allocates nothing.

    `copy_grad`: the gradient arrives in another memory order, so backward copies it; otherwise the gradient is a view
    too.
    """
    shape, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        if not copy_grad:
            return [grad.view(*shape)]
        return [new(tape, shape, dtype, "grad_heads", grad.nbytes, Kernel.COPY)]

    node = tape.node((x,), (), backward)
    return Tensor(x.storage, (*shape[:2], shape[2] // dim, dim), dtype, node)


def repeat_heads(tape: Tape, x: Tensor, count: int) -> Tensor:
    """`x.repeat_interleave(count, dim=1)`: a copy of keys or values with each head `count` times.

    Upstream's x is [batch, heads, sequence, d]; here `x` is [batch, sequence, heads, d] and the result [batch,
    sequence, heads * count, d]. Backward adds up the gradients of the copies. With a `count` of 1 it returns `x`
    itself.
    """
    if count == 1:
        return x
    batch, seq, heads, dim = shape = x.shape
    dtype = x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        return [new(tape, shape, dtype, "grad_heads", grad.nbytes, flops=grad.numel)]

    node = tape.node((x,), (), backward)
    out = new(tape, (batch, seq, heads * count, dim), dtype, "heads", x.nbytes, Kernel.COPY)
    out.node = node
    return out


def expand_heads(tape: Tape, x: Tensor, count: int) -> Tensor:
    """Keys or values with each head `count` times, as transformers 5.23 repeat_kv expands and reshapes them.

    [batch, sequence, heads, d] to [batch, sequence, heads * count, d]: a copy, but of a single head a view.
    """
    batch, seq, heads, dim = shape = x.shape
    if heads > 1 or count == 1:
        return repeat_heads(tape, x, count)
    dtype = x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        return [new(tape, shape, dtype, "grad_heads", grad.nbytes, flops=grad.numel)]

    return Tensor(x.storage, (batch, seq, count, dim), dtype, tape.node((x,), (), backward))
