"""GPT-OSS in NeMo Automodel: attention with sinks by flex or by TransformerEngine, and experts with biases.

nemo-automodel 0.7.0 `components/models/gpt_oss/{model,layers}.py`, `components/attention/flex_attention.py`,
`components/moe/experts.py` (`_apply_bias`, `_ChunkedBiasAdd`, `_checkpointed_chunked_expert_mlp`). Query and key are
rotated as Qwen3-MoE's are.

Query, key and value are copied to [b, heads, s, d] ([Note: flex attention] in `operators/shared/aten/flex.py`). The
output is multiplied by a sigmoid of its logsumexp and of the sinks in fp32, cast back, and copied to [b, s, heads, d].
Masks are kept by size ([b, heads, blocks of 128] in int32, four times).

[Note: biases of experts] `torch._grouped_mm` takes none, so a bias is repeated for each row and added in a new tensor;
that of the second product is weighted in fp32, and autograd keeps what was repeated. Above 12,288 rows a function adds
them in chunks of 4,096 rows and keeps the bias alone. Where an exchange sorts rows and what the first product makes is
above 512 MiB, the experts run in chunks of 4,096 rows, each a checkpoint of its own, whose outputs are written into one
tensor: its gradient is copied once for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from simcore.models.blocks import Attention
from simcore.operators.automodel.dense import rotated
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import linear, te_attention
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Operand, Saved, needs_grad, new
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["in_chunks", "is_chunked", "oss_attention", "with_bias"]

Biases = Sequence[Operand | None]
_CHUNK: Final = 4096
_WHOLE: Final = 12288
_MOST: Final = 512 << 20
"""`_BIAS_CHUNK_ROWS`, `_BIAS_CHUNK_THRESHOLD`, `_EXPERT_MLP_CHUNK_BYTES`."""


# ---- attention ------------------------------------------------------------------------------------------------------
def oss_attention(env: Env, x: Tensor, block: Attention, path: str) -> Tensor:
    """Attention (`GptOssAttention.forward`) of `x` [batch, sequence, hidden]; returns x's shape.

    `path`: name of the attention module in the layer. The caller adds the residual.
    """
    tape, flex = env.tape, env.options.flex
    q, k, v = (linear(env, x, f"{path}.{part}_proj") for part in "qkv")
    q, k = (aten.to_heads(tape, part, block.head_dim) for part in (q, k))
    v = aten.to_heads(tape, v, block.head_dim, copy_grad=flex)
    q, k = rotated(tape, q, k)
    sinks = env.param(f"{path}.sinks")
    run = env.run
    pairs = min(run.pairs, 2 * block.window * run.tokens) if block.window else run.pairs
    if flex:
        q, k, v = (aten.contiguous(tape, part, f"{name}_by_head") for part, name in ((q, "q"), (k, "k"), (v, "v")))
        out = _scaled_flex(tape, q, k, v, pairs, sinks)
        out = aten.contiguous(tape, out, "attention_by_token")
    else:
        out = te_attention(env, q, k, v, sinks=sinks, pairs=pairs)
    return linear(env, out.view(*x.shape[:2], block.q_size), f"{path}.o_proj")


def _scaled_flex(tape: Tape, q: Tensor, k: Tensor, v: Tensor, pairs: int, sinks: Param) -> Tensor:
    """`(out * sigmoid(logsumexp - sinks)).to(q.dtype)` (`FlexAttention.forward`)."""
    out, logsumexp = aten.flex_attention(tape, q, k, v, pairs)
    scale = aten.sigmoid(tape, aten.less_sinks(tape, logsumexp, sinks))
    out = aten.mul(tape, out, scale.view(*scale.shape, 1), "scaled_attention")
    return aten.cast(tape, out, q.dtype)


# ---- experts --------------------------------------------------------------------------------------------------------
def with_bias(tape: Tape, x: Tensor, bias: Operand, probabilities: Tensor | None = None) -> Tensor:
    """Rows `x` [r, n], sorted by expert, plus the row of `bias` [experts, n] of each one's expert, in x's type.

    With `probabilities` [r, 1] in fp32 the bias is weighted. [Note: biases of experts].
    """
    if x.shape[0] > _WHOLE:
        return _added_in_chunks(tape, x, bias, probabilities)
    if probabilities is not None and needs_grad(bias):
        bias = aten.cast(tape, bias, "fp32")
    expanded = _repeated(tape, bias, x.shape[0])
    if probabilities is not None:
        expanded = aten.mul(tape, expanded, probabilities, "weighted_bias")
    return aten.cast(tape, aten.add(tape, x, expanded, "biased"), x.dtype)


def _repeated(tape: Tape, bias: Operand, rows: int) -> Tensor:
    """`_DeterministicBiasRepeatInterleave`: a row for each of the experts' rows; gradients are summed in fp32."""
    shape, dtype = bias.shape, bias.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        return [_summed(tape, shape, dtype, grad.nbytes)]

    node = tape.node((bias,), (), backward)
    _order = tape.empty((rows,), "int64", "bias_rows")
    out = new(tape, (rows, shape[1]), dtype, "row_biases", bias.nbytes, Kernel.PERMUTE)
    out.node = node
    return out


def _summed(tape: Tape, shape: tuple[int, ...], dtype: str, moved: int) -> Tensor:
    """`_reduce_bias_grad_triton`."""
    total = new(tape, shape, "fp32", "grad_bias", moved)
    return total if dtype == "fp32" else new(tape, shape, dtype, "grad_bias", total.nbytes)


def _added_in_chunks(tape: Tape, x: Tensor, bias: Operand, probabilities: Tensor | None) -> Tensor:
    """`_ChunkedBiasAdd`, with Triton's kernels where the bias is weighted."""
    rows, moved, given = x.shape[0], x.nbytes, probabilities
    b_shape, b_dtype, trains = bias.shape, bias.dtype, needs_grad(bias)
    weighs = given is not None and needs_grad(given)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_bias = _summed(tape, b_shape, b_dtype, moved) if trains else None
        to_weights = None
        if weighs:
            to_weights = tape.empty((rows, 1), "fp32", "grad_probabilities")
            _ids = _numbers(tape, rows)
            tape.compute(Kernel.ELEMENTWISE, rows * b_shape[1], moved)
        return [grads[0], to_bias, to_weights]

    node = tape.node((x, bias, given), (bias, *([given] if given is not None else [])), backward)
    ids = _numbers(tape, rows)
    out = tape.empty(x.shape, x.dtype, "biased")
    tape.compute(Kernel.ELEMENTWISE, out.numel, moved + out.nbytes)
    _chunk: Tensor | None = None
    for start in range(0, rows if given is None else 0, _CHUNK):
        part = (min(_CHUNK, rows - start), x.shape[1])
        _chunk = tape.empty(part, b_dtype, "chunk_biases")
        tape.empty(part, x.dtype, "chunk_biased")
    del ids
    out.node = node
    return out


def _numbers(tape: Tape, rows: int) -> Tensor:
    """Each row's expert (`torch.repeat_interleave`, which makes an index of the rows)."""
    _order = tape.empty((rows,), "int64", "bias_rows")
    return new(tape, (rows,), "int64", "row_experts", 0, Kernel.PERMUTE)


def is_chunked(rows: int, columns: int, width: int) -> bool:
    """True if the output of the first product, [rows, columns] of `width` bytes each, is above 512 MiB."""
    return rows * columns * width > _MOST


def in_chunks(tape: Tape, x: Tensor, probabilities: Tensor, weights: Sequence[Param], biases: Biases,
              run: Callable[[Tensor, Tensor, Sequence[Operand], Biases], Tensor]) -> Tensor:
    """`_checkpointed_chunked_expert_mlp`: what `run` makes of rows and their probabilities, chunk by chunk.

    It gets the experts' `weights` too, whose gradients are summed over chunks in new tensors, and their `biases` in
    fp32. `x` [r, hidden], `probabilities` [r, 1]; returns [r, hidden].
    """
    rows = x.shape[0]
    collected = [_collected(tape, weight, x.dtype) for weight in weights]
    out, made = tape.empty(x.shape, x.dtype, "expert_chunks"), None
    wide = [None if bias is None else aten.cast(tape, bias, "fp32") for bias in biases]
    for start in range(0, rows, _CHUNK):
        count = min(_CHUNK, rows - start)
        part, chances = _narrowed(tape, x, count), _narrowed(tape, probabilities, count)
        made = tape.checkpoint(partial(run, part, chances, collected, wide))
        out = _written(tape, out, made)
    return out


def _collected(tape: Tape, weight: Param, dtype: str) -> Operand:
    """The weight in the rows' type, with a node that sums its gradients: AccumulateGrad waits for all of them."""
    cast = aten.cast(tape, weight, dtype)
    if cast is not weight:
        return cast
    return Tensor(None, weight.shape, dtype, tape.node((weight,), (), lambda tape, grads, saved: [grads[0]]))


def _narrowed(tape: Tape, x: Tensor, rows: int) -> Tensor:
    """A view of some rows; its gradient is written into zeros of the whole."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_rows")])
    return Tensor(x.storage, (rows, *shape[1:]), dtype, node)


def _written(tape: Tape, into: Tensor, part: Tensor) -> Tensor:
    """`into[rows] = part` (CopySlices): the whole gradient is copied, the part's rows of it again."""
    shape, part_shape, dtype, before = into.shape, part.shape, into.dtype, into.node is not None

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        whole = new(tape, shape, dtype, "grad_chunks", kernel=Kernel.COPY)
        own = new(tape, part_shape, dtype, "grad_chunk", kernel=Kernel.COPY)
        _zeros = tape.empty(part_shape, dtype, "grad_zeros") if before else None
        return [whole if before else None, own]

    node = tape.node((into, part), (), backward)
    tape.compute(Kernel.COPY, 0, 2 * part.nbytes)
    return Tensor(into.storage, shape, dtype, node)
