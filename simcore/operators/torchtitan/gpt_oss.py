"""GPT-OSS of torchtitan 0.2.2 (`models/gpt_oss/model/{model,moe}.py`): attention with sinks, experts with biases.

Attention is by FlexAttention alone; its output is scaled by a sigmoid of the logsumexp and of the sinks. Queries and
keys are rotated as Qwen3's.

[Note: biases of torchtitan's experts] `_run_experts_grouped_mm` repeats each expert's bias for its rows, each expert's
filled up to a multiple of 8, and puts zeros behind them up to all rows that there may be; the host waits for the number
of rows, twice. With tensor parallelism alone the second bias is divided by the number of ranks. Assumed: as many rows
for each expert.
"""

from __future__ import annotations

from simcore.models.blocks import Attention
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import gather_sequence, scatter_sequence
from simcore.operators.torchtitan.attention import rotated_halves
from simcore.operators.torchtitan.rows import ALIGNMENT
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["attention", "biased_experts", "block_masks", "filled_rows"]

Grads = list[Tensor | None]


def block_masks(seq: int) -> int:
    """Bytes of the masks of all layers, causal and of a window, each for all sequences and heads alike."""
    return 2 * aten.block_masks(seq, 1)


def attention(tape: Tape, run: LayerWorkload, block: Attention, x: Tensor, table: Tensor) -> Tensor:
    """Output of attention (`Attention.forward`) for `x` [b, s / tp, hidden], in x's shape. `table`: of rotation."""
    dim = block.head_dim
    x = gather_sequence(tape, run, x, "attention_in")
    q, k, v = (_linear(tape, run, name, x) for name in ("wq", "wk", "wv"))
    q, k, v = (aten.to_heads(tape, part, dim) for part in (q, k, v))
    q, k = rotated_halves(tape, run, q, k, table)
    pairs = min(run.pairs, 2 * block.window * run.tokens) if block.window else run.pairs
    out, logsumexp = aten.flex_attention(tape, q, k, v, pairs)
    scale = aten.sigmoid(tape, aten.less_sinks(tape, logsumexp, run.params["attention.sinks"]))
    weights = aten.cast(tape, scale.view(*scale.shape, 1), out.dtype)
    out = aten.mul(tape, out, weights, "scaled_attention")
    del weights
    made = _linear(tape, run, "wo", out.view(*out.shape[:2], out.shape[2] * dim), is_partial=run.tp > 1)
    return scatter_sequence(tape, run, made, "attention_out")  # the linear's hook: its input is still there


def _linear(tape: Tape, run: LayerWorkload, name: str, x: Tensor, *, is_partial: bool = False) -> Tensor:
    """A linear with a bias, whose product is `addmm`.

    `is_partial`: ranks' outputs are summed, so DTensor divides the bias, which all have, by their number first.
    """
    weight, bias = (run.params[f"attention.{name}.{part}"] for part in ("weight", "bias"))
    _part = aten.new(tape, bias.shape, bias.dtype, "bias_part") if is_partial else None
    return aten.linear(tape, x, weight, name, bias=bias, operator="addmm")


# ---- experts --------------------------------------------------------------------------------------------------------
def filled_rows(rows: int, experts: int) -> int:
    """Rows of all `experts`, each one's filled up to a multiple of ALIGNMENT; they get as many, one more or less."""
    each, more = divmod(rows, experts)
    return sum(count * -(-size // ALIGNMENT) * ALIGNMENT for count, size in ((more, each + 1), (experts - more, each)))


def biased_experts(tape: Tape, run: LayerWorkload, experts: int, x: Tensor) -> Tensor:
    """Both products of `experts` on this rank, with their biases, of rows `x` [filled up to all there may be, hidden].

    [Note: biases of torchtitan's experts].
    """
    filled = filled_rows(x.shape[0] - experts * ALIGNMENT, experts)
    offsets = tape.empty((experts,), "int32", "offsets")
    _counts = tape.empty((experts,), "int64", "expert_rows_long")
    weights = [run.params[f"moe.experts.mlp{number}_weight"] for number in (1, 2)]
    biases = [run.params[f"moe.experts.mlp{number}_bias"] for number in (1, 2)]
    h = aten.grouped_mm(tape, x, weights[0], offsets, "experts.mlp1")
    first = _filled(tape, _repeated(tape, biases[0], filled), x.shape[0])
    h = aten.add(tape, h, first, "biased")
    h = _swiglu(tape, h)
    h = aten.grouped_mm(tape, h, weights[1], offsets, "experts.mlp2")
    repeated = _repeated(tape, biases[1], filled)
    second = _filled(tape, _scaled(tape, repeated, is_scaled=run.tp > 1 and run.ep == 1), x.shape[0])
    return aten.add(tape, h, second, "biased")


def _repeated(tape: Tape, bias: Param, rows: int) -> Tensor:
    """`bias.repeat_interleave(counts, dim=0)`: an index of each row's expert, which is saved."""
    shape, dtype = bias.shape, bias.dtype

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        zeros = aten.new(tape, shape, dtype, "zeros")
        return [aten.new(tape, shape, dtype, "grad_bias", zeros.nbytes + moved, Kernel.PERMUTE)]

    numbers = tape.empty((rows,), "int64", "row_experts")
    node = tape.node((bias,), (numbers,), backward)
    out = aten.new(tape, (rows, shape[1]), dtype, "row_biases", kernel=Kernel.PERMUTE)
    moved = out.nbytes
    out.node = node
    return out


def _scaled(tape: Tape, x: Tensor, *, is_scaled: bool) -> Tensor:
    """`ScaleBiasForward`: divided in forward alone."""
    if not is_scaled:
        return x
    out = aten.new(tape, x.shape, x.dtype, "scaled_biases", x.nbytes)
    out.node = tape.node((x,), (), lambda tape, grads, saved: [grads[0]])
    return out


def _filled(tape: Tape, x: Tensor, rows: int) -> Tensor:
    """Rows `x` and zeros up to `rows`."""
    shape = x.shape

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        return [grad and Tensor(grad.storage, shape, grad.dtype)]

    node = tape.node((x,), (), backward)
    _zeros = aten.new(tape, (rows - shape[0], shape[1]), x.dtype, "zeros")
    out = aten.new(tape, (rows, shape[1]), x.dtype, "filled_biases", x.nbytes + _zeros.nbytes, Kernel.COPY)
    out.node = node
    return out


def _swiglu(tape: Tape, x: Tensor) -> Tensor:
    """`swiglu`: columns alternate, each is clamped."""
    glu, up = aten.slice_half(tape, x), aten.slice_half(tape, x)
    glu, up = aten.clamp(tape, glu, 1), aten.clamp(tape, up, 2)
    out = aten.mul(tape, glu, aten.sigmoid(tape, aten.mul_scalar(tape, glu)))
    return aten.mul(tape, out, aten.add_scalar(tape, up))
