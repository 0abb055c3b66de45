"""TransformerEngine's Linear and GroupedLinear in 8 bits, as NeMo Automodel 0.7.0 runs them (`backend.te_fp8`).

Automodel 0.7.0 `components/models/common/utils.py` (TEFp8Config, _make_lazy_te_patcher), `components/moe/experts.py`
(GroupedExpertsTE); TransformerEngine 2.15, the version of its lock, `pytorch/module/{linear,grouped_linear,
fp8_padding}.py`. The recipes and what is kept are those of [Note: fp8 linears] in `operators/megatron/ops/fp8.py`,
without tensor parallelism; tests hold both to one another.

[Note: weights in 8 bits under FSDP2]
The training loop tells every module which microbatch is the step's first (`set_is_first_microbatch`), so each module
casts the weight that FSDP2 has gathered once a step into a workspace of its own, whole, and never frees it: that is
`frameworks/automodel/te_fp8.py`'s. TransformerEngine 2.18's Linear knows FSDP2 and keeps none (`is_fsdp2`); its
GroupedLinear still does.
"""

from __future__ import annotations

from simcore.operators.automodel.env import Env
from simcore.operators.shared.aten import Grads, Saved, needs_grad, new
from simcore.operators.shared.quantizer import Quantizer
from simcore.recording.kernel_shape import shape_of
from simcore.recording.number_formats import Scaling
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["padded", "te_grouped", "te_linear", "unpadded"]


def te_linear(env: Env, x: Tensor, weight: Param, bias: Param | None, name: str) -> Tensor:
    """`x @ weight.T + bias` in 8 bits: [..., n] in x's type, for `x` [..., k] and `weight` [n, k].

    For backward it saves the input's copy along columns. Gradients are in their tensors' own types.
    """
    tape, scaling = env.tape, env.scaling
    (n, k), rows, shape, dtype = weight.shape, x.numel // x.shape[-1], x.shape, x.dtype
    trains, x_needs, flops = weight.trainable, needs_grad(x), 2 * x.numel * weight.shape[0]
    quantizer = Quantizer(tape, scaling, dtype)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        given = quantizer.quantized(rows, n, f"grad_{name}", backward=trains)
        to_bias = tape.empty(bias.shape, bias.dtype, "grad_bias") if bias is not None and bias.trainable else None
        to_x = new(tape, shape, dtype, f"grad_{name}", _read(scaling, rows * n, n * k), Kernel.FP8_GEMM, flops,
                   shape_of(rows, k)) if x_needs else None
        to_weight = new(tape, weight.shape, weight.dtype, "grad_weight", _read(scaling, rows * n, rows * k),
                        Kernel.FP8_GEMM, flops, shape_of(n, k, sums_rows=True)) if trains else None
        del given
        return [to_x, to_weight, to_bias]

    made = quantizer.quantized(rows, k, f"{name}.input", backward=trains)
    node = tape.node((x, weight, bias), (), backward)
    out = new(tape, (*shape[:-1], n), dtype, name, _read(scaling, rows * k, n * k), Kernel.FP8_GEMM, flops,
              shape_of(rows, n))
    tape.save(node, *(made.kept if trains else ()), weight)
    out.node = node
    return out


def te_grouped(env: Env, x: Tensor, weight: Param, name: str) -> Tensor:
    """Rows `x` [r, k], sorted by expert, times their experts' `weight` [e, k, n] in 8 bits: [r, n].

    Every expert's rows are quantised separately; their copies along columns are saved.
    """
    tape, scaling = env.tape, env.scaling
    (experts, k, n), rows, dtype = weight.shape, x.shape[0], x.dtype
    each, trains, x_needs, flops = -(-rows // experts), weight.trainable, needs_grad(x), 2 * x.numel * weight.shape[2]
    quantizer, kernel = Quantizer(tape, scaling, dtype), Kernel.FP8_GROUPED_GEMM

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        given = quantizer.quantized(each, n, f"grad_{name}", backward=trains, copies=experts)
        to_x = new(tape, (rows, k), dtype, f"grad_{name}", _read(scaling, rows * n, weight.numel), kernel, flops,
                   shape_of(rows, k, experts)) if x_needs else None
        to_weight = new(tape, weight.shape, weight.dtype, "grad_weight", _read(scaling, rows * n, rows * k), kernel,
                        flops, shape_of(n, k, experts, sums_rows=True)) if trains else None
        del given
        return [to_x, to_weight]

    made = quantizer.quantized(each, k, f"{name}.input", backward=trains, copies=experts)
    node = tape.node((x, weight), (), backward)
    out = new(tape, (rows, n), dtype, name, _read(scaling, rows * k, weight.numel), kernel, flops,
              shape_of(rows, n, experts))
    tape.save(node, *(made.kept if trains else ()), weight)
    out.node = node
    return out


def _read(scaling: Scaling, *numels: int) -> int:
    """Bytes of a product's operands as they lie, with their scales."""
    return round(scaling.width * sum(numels))


def padded(env: Env, x: Tensor, experts: int) -> Tensor:
    """Rows `x` [r, k] of `experts` experts, each expert's rounded up to the alignment of its products (`Fp8Padding`).

    x itself where every expert's number of rows is one already, which a balanced gate can bring about. Rows are spread
    evenly here.
    """
    total = env.scaling.padded_rows(x.shape[0], experts)
    return x if total == x.shape[0] and env.options.fake_balanced_gate else _moved(env.tape, x, total, "padded_rows")


def unpadded(env: Env, x: Tensor, rows: int) -> Tensor:
    """The first `rows` of padded rows `x`, copied (`Fp8Unpadding`); x itself if `padded` made no copy."""
    whole = rows == x.shape[0] and env.options.fake_balanced_gate
    return x if whole else _moved(env.tape, x, rows, "unpadded_rows")


def _moved(tape: Tape, x: Tensor, rows: int, name: str) -> Tensor:
    shape, dtype, moved = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [
        new(tape, shape, dtype, f"grad_{name}", moved, Kernel.PERMUTE)])
    out = new(tape, (rows, *shape[1:]), dtype, name, moved, Kernel.PERMUTE)
    out.node = node
    return out
