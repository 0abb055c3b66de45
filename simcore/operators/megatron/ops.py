"""The operators that Megatron-Core layers share: fused norm + linear, linears, grouped linears, adapters, sums.

Sources: TransformerEngine 2.18 (`pytorch/module/layernorm_linear.py`, `linear.py`, `grouped_linear.py`),
megatron-core 0.16.1 (`tensor_parallel/layers.py`, `tensor_parallel/random.py`), megatron-bridge 0.3.1
(`peft/lora_layers.py`, `peft/utils.py`). A fused operator is one node: it keeps what its `save_for_backward` names.

[Note: weight gradients]
The GEMM of a weight gradient adds into `main_grad` (gradient accumulation fusion): nothing is allocated where
`Param.grad_category` is "". Gradients that no GEMM makes (norms, Mamba's vectors, router, embedding) are allocated,
added to `main_grad` by DDP's hook, and dropped.

[Note: sequence parallelism]
The residual stream and norms are split over tp along the sequence. Column-parallel linears all-gather their input in
forward and again in backward (for the weight gradient), row-parallel ones reduce-scatter their output.
"""

from __future__ import annotations

from simcore.operators.megatron.context import Context, Discarded, Grads, Saved
from simcore.operators.megatron.fp8 import column_fp8, grouped_fp8, norm_linear_fp8, plain_fp8, row_fp8
from simcore.operators.megatron.parts import all_gather, biased, gathered_input, input_grad, reduced, statistics
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["act", "adapted", "add", "add_dropped", "column", "dropped", "gather_backward", "grouped",
           "identity", "norm", "norm_linear", "row", "swiglu", "whole"]


def identity(_tape: Tape, grads: Grads, _saved: Saved) -> Grads:
    """Backward of views and copies-that-are-none."""
    return grads


def add(c: Context, a: Tensor, b: Tensor, name: str) -> Tensor:
    """`a + b` into a new tensor; both get the same gradient tensor (dropout 0 and no bias add nothing)."""
    out = c.tape.empty(a.shape, a.dtype, name)
    c.elementwise(out, 3)
    c.node(out, (a, b), (), lambda tape, grads, saved: [grads[0], grads[0]])
    return out


def add_dropped(c: Context, a: Tensor, b: Tensor, name: str) -> Tensor:
    """`a + dropout(b)` in one kernel that keeps the mask, a byte an element (`fusions/fused_bias_dropout.py`).

    Compiled or not: random numbers are not made again in backward, so the comparison's outcome is kept.
    """
    def back(tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        grad = tape.empty(grads[0].shape, c.dtype, "grad_dropped")
        c.elementwise(grad, 3)
        return [grads[0], grad]

    mask = c.tape.empty(b.shape, "uint8", f"{name}.dropout_mask")
    out = c.tape.empty(a.shape, a.dtype, name)
    c.elementwise(out, 4)
    c.node(out, (a, b), (mask,), back)
    return out


def dropped(c: Context, x: Tensor, name: str) -> Tensor:
    """`dropout(x)` into a new tensor; keeps the mask (torch `native_dropout`)."""
    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.tape.empty(mask_shape, c.dtype, f"grad_{name}")
        c.elementwise(grad, 3, operators=1)
        return [grad]

    mask_shape = x.shape
    mask = c.tape.empty(x.shape, "uint8", f"{name}.dropout_mask")
    out = c.tape.empty(x.shape, x.dtype, name)
    c.elementwise(out, 3, operators=1)
    c.node(out, (x,), (mask,), back)
    return out


def norm(c: Context, path: str, x: Tensor, name: str = "ln_out") -> Tensor:
    """TE RMSNorm: keeps its input and rsigma (fp32, one a row), trainable or not. LayerNorm keeps the mean too."""
    weight, bias = c.param(f"{path}.weight"), c.run.params.get(f"{path}.bias")

    def back(tape: Tape, grads: Grads, saved: Saved) -> list[Tensor | None]:
        grad = tape.empty(saved[0].shape, c.dtype, "grad_norm")
        c.elementwise(grad, 4, Kernel.NORM)
        return [grad, c.small_grad(weight), c.small_grad(bias) if bias else None]

    measures = statistics(c, path, x, centred=bias is not None)
    out = c.tape.empty(x.shape, c.dtype, name)
    c.elementwise(out, 2, Kernel.NORM)
    c.node(out, (x, weight, bias), (x, *measures), back)
    return out


def norm_discarded(c: Context, path: str, x: Tensor) -> tuple[Tensor, Discarded]:
    """The same under recompute `layernorm`: runs without a graph, so only its input is kept, not even rsigma."""
    weight, bias = c.param(f"{path}.weight"), c.run.params.get(f"{path}.bias")

    def again() -> list[Tensor]:
        made = [c.tape.empty((rows, 1), "fp32", f"{path}.{name}", "recompute")
                for name in (("mu", "rsigma") if bias else ("rsigma",))]
        made.append(c.tape.empty(shape, c.dtype, "ln_out", "recompute"))
        c.elementwise(made[-1], 2, Kernel.NORM)
        return made

    def back(tape: Tape, grads: Grads, saved: Saved) -> list[Tensor | None]:
        grad = tape.empty(saved[0].shape, c.dtype, "grad_norm")
        c.elementwise(grad, 4, Kernel.NORM)
        holder[0].made.clear()
        return [grad, c.small_grad(weight), c.small_grad(bias) if bias else None]

    shape, rows = x.shape, x.shape[0]
    out = c.tape.empty(shape, c.dtype, "ln_out")
    c.elementwise(out, 2, Kernel.NORM)
    c.node(out, (x, weight, bias), (x,), back)
    holder = [Discarded(c, out, again)]
    return out, holder[0]


def gather_backward(c: Context, x: Tensor, name: str) -> Tensor:
    """Along the sequence over tp; its gradient is reduce-scattered (`gather_from_sequence_parallel_region`)."""
    out = all_gather(c, x, name)
    rows, columns = x.shape

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        full = grads[0]
        assert full is not None
        grad = c.new(rows, columns, f"grad_{name}")
        c.send("reduce_scatter", "tp", full)
        return [grad]

    c.node(out, (x,), (), back)
    return out


def norm_linear(c: Context, path: str, x: Tensor) -> Tensor:
    """TE LayerNormLinear, column parallel, with its adapter.

    Keeps the input and rsigma; the norm's output too where the weight trains or an adapter reads it. Under sequence
    parallelism an adapter reads (and keeps) the *gathered* output, and the local one is kept besides it: with
    return_layernorm_output nothing clears it, frozen weight or not.
    """
    pair = c.pair(path)
    c = c.of(path)
    out, seen = (_norm_linear if c.scaling is None else norm_linear_fp8)(c, path, x)
    if pair is None or seen is None:
        return out
    return add(c, out, adapted(c, path, seen, pair), f"{path}.sum")


def _norm_linear(c: Context, path: str, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """In 16 bits; second the norm's output for an adapter to read."""
    weight, gamma, pair = c.param(f"{path}.weight"), c.param(f"{path}.layer_norm_weight"), c.pair(path)
    beta = c.run.params.get(f"{path}.layer_norm_bias")
    # The MLP's bias is added by its activation.
    added = None if path.endswith("fc1") else c.run.params.get(f"{path}.bias")
    h, out_features, gathered = x.shape[1], weight.shape[0], c.local != c.tokens

    def back(tape: Tape, grads: Grads, saved: Saved) -> list[Tensor | None]:
        total = gathered_input(c, saved[1], "ln_out_total") if weight.trainable and gathered else None
        grad = input_grad(c, h, "grad_ln_out")
        c.gemm(c.tokens, h, out_features)
        if len(grads) > 1 and grads[1] is not None:  # what the adapter sends to the norm's output
            grad = c.new(c.tokens, h, "grad_ln_out_sum")
            c.elementwise(grad, 3)
        grad = reduced(c, grad)
        wgrad = c.wgrad(weight, c.tokens)
        del total
        grad = reduced(c, grad, late=True)
        grad_x = tape.empty(saved[0].shape, c.dtype, "grad_norm")
        c.elementwise(grad_x, 4, Kernel.NORM)
        return [grad_x, c.small_grad(gamma), c.small_grad(beta) if beta else None, wgrad,
                c.small_grad(added) if added else None]

    ln_out = c.tape.empty(x.shape, c.dtype, f"{path}.ln_out")
    measures = statistics(c, path, x, centred=beta is not None)
    c.elementwise(ln_out, 2, Kernel.NORM)
    total = gathered_input(c, ln_out, f"{path}.ln_out_total") if gathered else ln_out
    out = c.new(c.tokens, out_features, path)
    c.gemm(c.tokens, out_features, h)
    kept = (ln_out,) if weight.trainable or pair else ()
    c.node(out, (x, gamma, beta, weight, added), (x, *kept, *measures), back)
    return out, Tensor(total.storage, total.shape, total.dtype, out.node, 1) if pair else None


def column(c: Context, path: str, x: Tensor) -> Tensor:
    """TE Linear, column parallel; keeps its local input where the weight trains."""
    c = c.of(path)
    out, pair = (_column if c.scaling is None else column_fp8)(c, path, x), c.pair(path)
    if pair is None:
        return out
    seen = gather_backward(c, x, f"{path}.adapter_input") if c.local != c.tokens else x
    return add(c, out, adapted(c, path, seen, pair), f"{path}.sum")


def _column(c: Context, path: str, x: Tensor) -> Tensor:
    weight, h, gathered = c.param(f"{path}.weight"), x.shape[1], c.local != c.tokens

    def back(_tape: Tape, _grads: Grads, saved: Saved) -> list[Tensor | None]:
        total = gathered_input(c, saved[0], "input_total") if weight.trainable and gathered else None
        grad = input_grad(c, h, f"grad_{path}")
        c.gemm(c.tokens, h, weight.shape[0])
        grad = reduced(c, grad)
        wgrad = c.wgrad(weight, c.tokens)
        del total
        grad = reduced(c, grad, late=True)
        return [grad, wgrad]

    total = gathered_input(c, x, f"{path}.input_total") if gathered else x
    out = c.new(c.tokens, weight.shape[0], path)
    c.gemm(c.tokens, weight.shape[0], h)
    del total
    c.node(out, (x, weight), (x,) if weight.trainable else (), back)
    return out


def row(c: Context, path: str, x: Tensor) -> Tensor:
    """TE Linear, row parallel; keeps its input where the weight trains."""
    c = c.of(path)
    out, pair = (_row if c.scaling is None else row_fp8)(c, path, x), c.pair(path)
    if pair is None:
        return out
    return add(c, out, adapted(c, path, x, pair, row_parallel=True), f"{path}.sum")


def _row(c: Context, path: str, x: Tensor) -> Tensor:
    weight = c.param(f"{path}.weight")
    out_features, in_features = weight.shape
    gathered = c.local != c.tokens

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        source = grads[0]
        assert source is not None
        total = gathered_input(c, source, "grad_total") if gathered else source
        grad = c.new(c.tokens, in_features, f"grad_{path}")
        c.gemm(c.tokens, in_features, out_features)
        wgrad = c.wgrad(weight, c.tokens)
        del total
        return [grad, wgrad]

    out = c.new(c.tokens, out_features, path)
    c.gemm(c.tokens, out_features, in_features)
    if c.run.tp > 1:
        partial = out
        if gathered:
            out = c.new(c.local, out_features, path)
        c.send("reduce_scatter" if gathered else "all_reduce", "tp", partial)
        del partial
    c.node(out, (x, weight), (x,) if weight.trainable else (), back)
    return biased(c, path, out)


def whole(c: Context, path: str, x: Tensor) -> Tensor:
    """TE Linear that lies whole on every tp rank (parallel_mode "duplicated"), over this rank's tokens; no adapter."""
    c = c.of(path)
    return (_whole if c.scaling is None else plain_fp8)(c, path, x)


def _whole(c: Context, path: str, x: Tensor) -> Tensor:
    weight, (rows, h) = c.param(f"{path}.weight"), x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, h, f"grad_{path}")
        c.gemm(rows, h, weight.shape[0])
        return [grad, c.wgrad(weight, rows)]

    out = c.new(rows, weight.shape[0], path)
    c.gemm(rows, weight.shape[0], h)
    c.node(out, (x, weight), (x,) if weight.trainable else (), back)
    return out


def grouped(c: Context, path: str, x: Tensor, experts: int, *, casts_input: bool = True,
            casts_grad: bool = True) -> Tensor:
    """TE GroupedLinear over this rank's experts; keeps its input where the weights train.

    In fp8 its input and its output's gradient are cast, unless the GEMM that made them has done so.
    """
    pair = c.pair(path)
    c = c.of(path)
    out = _grouped(c, path, x, experts) if c.scaling is None else grouped_fp8(
        c, path, x, experts, casts_input=casts_input, casts_grad=casts_grad)
    if pair is None:
        return out
    extra = adapted(c, path, x, pair, row_parallel=path.endswith("fc2"), axis="etp", size=c.run.etp)
    return add(c, out, extra, f"{path}.sum")


def _grouped(c: Context, path: str, x: Tensor, experts: int) -> Tensor:
    weight, rows = c.param(f"{path}.weight"), x.shape[0]
    out_features, in_features = weight.shape[-2:]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, in_features, f"grad_{path}")
        c.gemm(rows, in_features, out_features, Kernel.GROUPED_GEMM, experts)
        return [grad, c.wgrad(weight, rows, Kernel.GROUPED_GEMM, experts)]

    out = c.new(rows, out_features, path)
    c.gemm(rows, out_features, in_features, Kernel.GROUPED_GEMM, experts)
    c.node(out, (x, weight), (x,) if weight.trainable else (), back)
    return out


def mm(c: Context, x: Tensor, weight: Param, name: str, axis: str = "") -> Tensor:
    """`x @ weight.T` of megatron-core's own linear: keeps x; `axis`: its input gradient is all-reduced over it."""
    rows, out_features, in_features = x.shape[0], *weight.shape[-2:]
    kernel, copies = (Kernel.GROUPED_GEMM, weight.shape[0]) if len(weight.shape) > 2 else (Kernel.GEMM, 1)

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, in_features, f"grad_{name}")
        c.gemm(rows, in_features, out_features, kernel, copies)
        if axis:
            c.send("all_reduce", axis, grad)
        return [grad, c.wgrad(weight, rows, kernel, copies)]

    out = c.new(rows, out_features, name)
    c.gemm(rows, out_features, in_features, kernel, copies)
    c.node(out, (x, weight), (x,) if weight.trainable else (), back)
    return out


def _widen(c: Context, x: Tensor, name: str, axis: str, size: int) -> Tensor:
    """All-gather along the last dimension (`gather_output`); its gradient is this rank's part."""
    rows, columns = x.shape
    out = c.new(rows, columns * size, name)
    c.send("all_gather", axis, out)

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        return [c.new(rows, columns, f"grad_{name}")]

    c.node(out, (x,), (), back)
    return out


def adapted(c: Context, path: str, x: Tensor, pair: tuple[Param, Param], *, row_parallel: bool = False,
            axis: str = "tp", size: int = 0) -> Tensor:
    """`ParallelLinearAdapter`: linear_in, linear_out, times a number; keeps x and the low-rank rows."""
    size = size or c.run.tp
    split = axis if size > 1 else ""
    low = mm(c, x, pair[0], f"{path}.linear_in", "" if row_parallel or c.sp > 1 else split)
    if split and row_parallel:
        c.send("all_reduce", axis, low)
    elif split:
        low = _widen(c, low, f"{path}.low_rank", axis, size)
    out = mm(c, low, pair[1], f"{path}.linear_out", split)
    del low
    if split and row_parallel:
        out = _widen(c, out, f"{path}.gathered", axis, size)
    if row_parallel and axis == "tp" and c.local != c.tokens:
        out = _scatter(c, out, f"{path}.scattered")
    return _scaled(c, out, f"{path}.scaled")


def _scatter(c: Context, x: Tensor, name: str) -> Tensor:
    """This rank's part of the sequence; its gradient is all-gathered (`scatter_to_sequence_parallel_region`)."""
    rows, columns = c.local, x.shape[1]

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        return [all_gather(c, grads[0], f"grad_{name}")]

    out = c.new(rows, columns, name)
    c.node(out, (x,), (), back)
    return out


def _scaled(c: Context, x: Tensor, name: str) -> Tensor:
    def back(tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        grad = tape.empty(grads[0].shape, c.dtype, f"grad_{name}")
        c.elementwise(grad, 2)
        return [grad]

    out = c.tape.empty(x.shape, c.dtype, name)
    c.elementwise(out, 2)
    c.node(out, (x,), (), back)
    return out


def act(c: Context, x: Tensor, name: str, *, gated: bool, bias: Param | None = None) -> Tensor:
    """relu^2, GELU or SwiGLU of a dense MLP: fused keeps its input (`fusions/fused_bias_swiglu.py`, `activations.py`).

    `bias`: added in the same kernel; its gradient is the input's, summed (`fusions/fused_bias_gelu.py`).
    """
    if gated and not c.fuses_activation:
        return swiglu(c, x, name)
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, f"grad_{name}")
        c.elementwise(grad, 3)
        return [grad, c.small_grad(bias) if bias else None]

    out = c.new(rows, columns // (2 if gated else 1), name)
    c.elementwise(out, 3 if gated else 2)
    c.node(out, (x, bias), (x,), back)
    return out


def swiglu(c: Context, x: Tensor, name: str) -> Tensor:
    """`silu(gate) * (up + glu_linear_offset)` without bias_activation_fusion (`mlp.py`, glu).

    Keeps x, whose half the SiLU reads, the SiLU, and the sum, which is made even where the offset is 0.
    """
    rows, half = x.shape[0], x.shape[1] // 2

    def concatenated(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, 2 * half, f"grad_{name}")
        c.elementwise(grad, 2, Kernel.COPY)
        return [grad]

    def of_product(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        to_up = c.new(rows, half, f"grad_{name}.up")
        to_gate = c.new(rows, half, f"grad_{name}.silu")
        c.elementwise(to_up, 6)
        return [to_gate, to_up]

    def of_silu(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, half, f"grad_{name}.gate")
        c.elementwise(grad, 3)
        return [grad]

    gate, up = (Tensor(x.storage, (rows, half), x.dtype) for _ in range(2))
    c.node(gate, (x,), (), concatenated)
    up.node, up.output = gate.node, 1
    activated = c.new(rows, half, f"{name}.silu")
    c.elementwise(activated, 2)
    c.node(activated, (gate,), (gate,), of_silu)
    shifted = c.new(rows, half, f"{name}.shifted")
    c.elementwise(shifted, 2)
    c.node(shifted, (up,), (), identity)
    out = c.new(rows, half, name)
    c.elementwise(out, 3)
    c.node(out, (activated, shifted), (activated, shifted), of_product)
    return out
