"""TransformerEngine's linears in 8 or 4 bits: what is quantised, what is kept, what backward makes again.

TransformerEngine 2.18 `pytorch/module/layernorm_linear.py`, `linear.py`, `grouped_linear.py`, `base.py`
(grad_output_preprocess, quantize_weight), `pytorch/distributed.py` (_all_gather_fp8), `csrc/extensions/
normalization.cpp`; megatron-core 0.16.1 `extensions/transformer_engine.py`, `fp8_utils.py`.

[Note: fp8 linears]
Inputs and outputs are bf16. The input is quantised along rows for the product of forward and along columns for the
weight gradient; of both only the columns are kept. Tensors with one scale cannot be gathered along columns: under
sequence parallelism a column-parallel linear keeps its local rows and transposes what backward gathers. The gradient of
the output is quantised along both, and lives until the function returns. Where core says so (`set_save_original_input`)
the bf16 input is kept, because another operator keeps it anyway or will make it again, and is quantised in backward.
Weights: a copy made by the first microbatch and kept for good, or made by each forward and kept until its backward
(disable_parameter_transpose_cache), or the parameter itself (fp8_param_gather); the lasting ones are buffers.
Attention's core, embedding, router and norms stay in 16 bits, and the output head unless fp8_output_proj is on.

In nvfp4 all three products of a linear are so: [Note: nvfp4] in `operators/shared/quantizer.py`; there too is who
casts a tensor, [Note: fused casts].
"""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.input_product import input_product
from simcore.operators.megatron.ops.parts import all_gather, biased, input_grad, reduced, statistics
from simcore.operators.shared.quantizer import Producer, Quantized, Quantizer
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["column_fp8", "grouped_fp8", "norm_linear_fp8", "plain_fp8", "row_fp8"]


def quantized(c: Context, rows: int, columns: int, name: str, *, forward: bool = True, backward: bool = True,
              squares: bool = False, copies: int = 1, kernels: bool = True, producer: Producer = "",
              filled: int = 0) -> Quantized:
    """Quantised copies of `copies` equal (rows, columns) matrices by the linear's recipe, see `Quantizer`."""
    assert c.scaling is not None
    return Quantizer(c.tape, c.scaling, c.dtype).quantized(
        rows, columns, name, forward=forward, backward=backward, squares=squares, copies=copies, kernels=kernels,
        producer=producer, filled=filled)


def gathered(c: Context, rows: int, columns: int, name: str, *, along_columns: bool = False) -> Quantized:
    """Quantised copies of a tensor that is all-gathered over tp in 8 bits, from `rows` local rows.

    `along_columns`: the copy along columns is gathered, not that along rows. With tp_comm_overlap the data lies in a
    user buffer, and only scales are allocated.
    """
    if c.overlaps_tp:
        return _buffered(c, rows * c.sp, columns, name, along_columns=along_columns)
    made = quantized(c, rows * c.sp, columns, name, forward=not along_columns, backward=along_columns)
    for copy in (made.rows, made.columns):
        if copy is not None:
            c.send("all_gather", "tp", copy)
    return made


def _buffered(c: Context, rows: int, columns: int, name: str, *, along_columns: bool) -> Quantized:
    """Data in a user buffer; scales, if they are many, in a tensor (`base.py`, fill_userbuffers_buffer_for_...)."""
    assert c.scaling is not None
    c.send("all_gather", "tp", Tensor(None, (rows, columns), "fp8"))
    if c.scaling.is_per_tensor:
        return Quantized(None, None)
    scales = c.scaling.copy_bytes(rows, columns, along_columns=along_columns) - rows * columns
    return Quantized(c.new(scales, 1, f"{name}.scale_inv", "uint8"), None)


def _weight(c: Context, path: str, weight: Param) -> tuple[Tensor, ...]:
    """Copies of a weight that this forward makes: none if they last."""
    if c.keeps_fp8_weights:
        return ()
    out_features, in_features = weight.shape[-2:]
    count = weight.shape[0] if len(weight.shape) > 2 else 1
    made = quantized(c, out_features, in_features, f"{path}.weight", squares=True, copies=count)
    copies = tuple(copy for copy in (made.rows, made.columns) if copy is not None)
    if c.tape.away is not None:  # TE d0067d0d pytorch/module/linear.py: mark_not_offload(weight, weightmat, bias)
        c.tape.away.stay(copies)
    return copies


def _wgrad_input(c: Context, saved: tuple[int, int], name: str, *, is_gathered: bool) -> Quantized | None:
    """Gathered input that the weight gradient reads; None without gathering, where it reads the kept copy."""
    if not is_gathered:
        return None
    assert c.scaling is not None
    return gathered(c, *saved, name, along_columns=not c.scaling.is_per_tensor)


def _transposed(c: Context, whole: Quantized | None, rows: int, columns: int, name: str) -> Quantized | None:
    """The columns of gathered rows, made just before the weight gradient."""
    if whole is not None and c.scaling is not None and c.scaling.is_per_tensor:
        whole.columns = quantized(c, rows, columns, name, forward=False).columns if c.scaling.has_columns else None
    return whole


def norm_linear_fp8(c: Context, path: str, x: Tensor, *, producer: Producer = "") -> tuple[Tensor, Tensor | None]:
    """(output of LayerNormLinear [tokens, n], the norm's bf16 output for an adapter or None without one).

    For backward it saves its bf16 input, the norm's statistics and, only in fp8, the norm's output. For an adapter this
    is gathered, made in bf16 and quantised twice, and its local rows are saved in fp8 though unused
    (`layernorm_linear.py`, return_layernorm_output). `producer`: of the output's gradient.
    """
    weight, gamma = c.param(f"{path}.weight"), c.param(f"{path}.layer_norm_weight")
    beta, added = c.run.params.get(f"{path}.layer_norm_bias"), c.run.params.get(f"{path}.bias")
    added = None if path.endswith("fc1") else added
    h, out_features, is_gathered, trains = x.shape[1], weight.shape[0], c.local != c.tokens, weight.trainable

    def back(tape: Tape, grads: Grads, saved: Saved) -> list[Tensor | None]:
        given = quantized(c, c.tokens, out_features, f"grad_{path}", producer=producer)
        whole = _wgrad_input(c, (x_rows, h), "ln_out_total", is_gathered=is_gathered and trains)
        grad = input_grad(c, h, "grad_ln_out")
        input_product(c, path, weight, c.tokens)
        grad = _with_adapter(c, grad, grads, h)
        grad = reduced(c, grad)
        whole = _transposed(c, whole, c.tokens, h, "ln_out_total")
        wgrad = c.wgrad(weight, c.tokens, c.product())
        del whole
        grad = reduced(c, grad, late=True)
        grad_x = tape.empty(saved[0].shape, c.dtype, "grad_norm")
        c.elementwise(grad_x, 4, Kernel.NORM)
        del given
        return [grad_x, c.small_grad(gamma), c.small_grad(beta) if beta else None, wgrad,
                c.small_grad(added) if added else None]

    x_rows = x.shape[0]
    measures = statistics(c, path, x, centred=beta is not None)
    seen, ln_out, total = _norm_output(c, path, x_rows, h, is_gathered=is_gathered, trains=trains)
    weights = _weight(c, path, weight)
    out = c.new(c.tokens, out_features, path)
    c.gemm(c.tokens, out_features, h, c.product())
    del total
    kept = ln_out.kept if trains or seen else ()
    c.node(out, (x, gamma, beta, weight, added), (x, *kept, *measures, *weights), back)
    return out, Tensor(seen.storage, seen.shape, seen.dtype, out.node, 1) if seen else None


def _norm_output(c: Context, path: str, rows: int, columns: int, *, is_gathered: bool, trains: bool) -> tuple[
        Tensor | None, Quantized, Quantized | None]:
    """In bf16 if an adapter reads it; quantised, local rows; quantised and gathered."""
    if c.pair(path):
        return _returned(c, path, rows, columns, is_gathered=is_gathered)
    local = _normed(c, path, rows, columns, only_rows=not trains or (is_gathered and _is_per_tensor(c)))
    return None, local, gathered(c, rows, columns, f"{path}.ln_out_total") if is_gathered else None


def _with_adapter(c: Context, grad: Tensor, grads: Grads, h: int) -> Tensor:
    """Gradient of the norm's output, to which an adapter's part, where there is one, is added in another tensor."""
    if len(grads) < 2 or grads[1] is None:
        return grad
    total = c.new(c.tokens, h, "grad_ln_out_sum")
    c.elementwise(total, 3)
    return total


def _is_per_tensor(c: Context) -> bool:
    return c.scaling is not None and c.scaling.is_per_tensor


def _returned(c: Context, path: str, rows: int, columns: int, *, is_gathered: bool) -> tuple[
        Tensor, Quantized, Quantized | None]:
    """The norm's output in bf16, gathered; its local rows in fp8; the gathered ones in fp8."""
    seen = c.new(rows, columns, f"{path}.ln_out")
    c.tape.compute(Kernel.NORM, rows * columns, 2 * c.size * rows * columns)
    if not is_gathered:
        return seen, quantized(c, rows, columns, f"{path}.ln_out", backward=False), None
    whole = all_gather(c, seen, f"{path}.ln_out_total")
    local = quantized(c, rows, columns, f"{path}.ln_out", backward=False)
    del seen
    return whole, local, quantized(c, rows * c.sp, columns, f"{path}.ln_out_total", backward=False)


def _normed(c: Context, path: str, rows: int, columns: int, *, only_rows: bool) -> Quantized:
    """The norm's output, quantised. With delayed scaling the norm writes fp8; else it is bf16 for a moment."""
    assert c.scaling is not None
    made = quantized(c, rows, columns, f"{path}.ln_out", backward=not only_rows, producer="norm")
    wide = None if c.scaling.recipe == "delayed" else c.new(rows, columns, f"{path}.ln_out")
    c.tape.compute(Kernel.NORM, rows * columns, 2 * c.size * rows * columns)
    del wide
    return made


def column_fp8(c: Context, path: str, x: Tensor) -> Tensor:
    """Output [tokens, n] of the column-parallel linear at `path` in 8 or 4 bits.

    For backward it saves its local input quantised, or in bf16 where that is made again.
    """
    assert c.scaling is not None
    weight, (rows, h), is_gathered = c.param(f"{path}.weight"), x.shape, c.local != c.tokens
    per_tensor, trains = c.scaling.is_per_tensor, weight.trainable
    original = trains and c.keeps_original(path)

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        given = quantized(c, c.tokens, weight.shape[0], f"grad_{path}", backward=trains)
        again = quantized(c, rows, h, f"{path}.input", forward=per_tensor, backward=not only_rows) if original else None
        whole = _wgrad_input(c, (rows, h), f"{path}.input_total", is_gathered=is_gathered and trains)
        grad = input_grad(c, h, f"grad_{path}")
        input_product(c, path, weight, c.tokens)
        grad = reduced(c, grad)
        whole = _transposed(c, whole, c.tokens, h, f"{path}.input_total")
        wgrad = c.wgrad(weight, c.tokens, c.product())
        del whole
        grad = reduced(c, grad, late=True)
        del again, given
        return [grad, wgrad]

    only_rows = is_gathered and per_tensor
    made = quantized(c, rows, h, f"{path}.input", backward=trains and not (only_rows or original))
    total = gathered(c, rows, h, f"{path}.input_total") if is_gathered else None
    weights = _weight(c, path, weight)
    out = c.new(c.tokens, weight.shape[0], path)
    c.gemm(c.tokens, weight.shape[0], h, c.product())
    del total
    c.node(out, (x, weight), (*_kept(x, made, original=original, trains=trains), *weights), back)
    return out


def _kept(x: Tensor, made: Quantized, *, original: bool, trains: bool) -> tuple[Tensor, ...]:
    """Tensors that a linear keeps of its input: none if its weight is frozen."""
    return ((x,) if original else made.kept) if trains else ()


def row_fp8(c: Context, path: str, x: Tensor, *, producer: Producer = "") -> Tensor:
    """Output of the row-parallel linear at `path` in 8 or 4 bits, summed over tp: [local tokens, n].

    For backward it saves its input quantised, or in bf16 where attention or a replay has it anyway. `producer`: of `x`.
    """
    weight = c.param(f"{path}.weight")
    (out_features, in_features), is_gathered, trains = weight.shape, c.local != c.tokens, weight.trainable
    original = trains and c.keeps_original(path)

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        given = _gathered_grad(c, grads[0], path, trains=trains) if is_gathered else \
            quantized(c, c.tokens, out_features, f"grad_{path}", backward=trains)
        again = _again(c, path, c.tokens, in_features) if original else None
        grad = c.new(c.tokens, in_features, f"grad_{path}")
        input_product(c, path, weight, c.tokens)
        wgrad = c.wgrad(weight, c.tokens, c.product())
        del given, again
        return [grad, wgrad]

    made = quantized(c, c.tokens, in_features, f"{path}.input", backward=trains and not original, producer=producer)
    weights = _weight(c, path, weight)
    out = c.new(c.tokens, out_features, path)
    c.gemm(c.tokens, out_features, in_features, c.product())
    if c.run.tp > 1:
        partial = out
        if is_gathered:
            out = c.new(c.local, out_features, path)
        c.send("reduce_scatter" if is_gathered else "all_reduce", "tp", partial)
        del partial
    c.node(out, (x, weight), (*_kept(x, made, original=original, trains=trains), *weights), back)
    return biased(c, path, out)


def _again(c: Context, path: str, rows: int, columns: int) -> Quantized:
    """A kept bf16 input, quantised in backward: along both where a tensor has one scale, else along columns."""
    assert c.scaling is not None
    return quantized(c, rows, columns, f"{path}.input", forward=c.scaling.is_per_tensor)


def _gathered_grad(c: Context, grad: Tensor, path: str, *, trains: bool) -> Quantized:
    """Quantised, then gathered: rows that are transposed afterwards, or rows and columns each."""
    assert c.scaling is not None
    rows, columns = grad.shape
    local = quantized(c, rows, columns, f"grad_{path}_local", backward=trains and not c.scaling.is_per_tensor)
    made = gathered(c, rows, columns, f"grad_{path}")
    if trains and c.scaling.has_columns:
        along = quantized if c.scaling.is_per_tensor else None
        other = along(c, rows * c.sp, columns, f"grad_{path}", forward=False) if along else \
            gathered(c, rows, columns, f"grad_{path}", along_columns=True)
        made.columns = other.columns or other.rows
    del local
    return made


def plain_fp8(c: Context, path: str, x: Tensor) -> Tensor:
    """Output [rows, n] of the linear at `path` in 8 or 4 bits, whose whole weight is on every tp rank.

    parallel_mode "duplicated", over this rank's tokens.
    """
    weight, (rows, h) = c.param(f"{path}.weight"), x.shape
    trains = weight.trainable
    original = trains and c.keeps_original(path)

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        given = quantized(c, rows, weight.shape[0], f"grad_{path}", backward=trains)
        again = _again(c, path, rows, h) if original else None
        grad = c.new(rows, h, f"grad_{path}")
        input_product(c, path, weight, rows)
        wgrad = c.wgrad(weight, rows, c.product())
        del given, again
        return [grad, wgrad]

    made = quantized(c, rows, h, f"{path}.input", backward=trains and not original)
    weights = _weight(c, path, weight)
    out = c.new(rows, weight.shape[0], path)
    c.gemm(rows, weight.shape[0], h, c.product())
    c.node(out, (x, weight), (*_kept(x, made, original=original, trains=trains), *weights), back)
    return out


def grouped_fp8(c: Context, path: str, x: Tensor, experts: int, *, casts_input: bool = True,
                casts_grad: bool = True, keeps_input: bool = True, filled: int = 0) -> Tensor:
    """Outputs [rows, n] of the GroupedLinear at `path` in 8 or 4 bits, for rows `x` sorted by expert.

    Every expert's rows are quantised separately; columns are saved. `experts`: number on this rank; `casts_input`,
    `casts_grad`: False if the GEMM that made the tensor has quantised it; `keeps_input`: False if in backward the GEMM
    before the weight gradient makes the columns again. `filled`: rows that hold a token, where a tensor has more and is
    quantised whole; 0: all.
    """
    weight, rows, computed = c.param(f"{path}.weight"), x.shape[0], filled or x.shape[0]
    trains = weight.trainable
    original = trains and casts_input and c.keeps_original(path)
    out_features, in_features = weight.shape[-2:]
    each, parts = (rows, 1) if filled else (-(-rows // experts), experts)

    def split(columns: int, name: str, *, forward: bool = True, backward: bool = True,
              kernels: bool = True) -> Quantized:
        return quantized(c, each, columns, name, forward=forward, backward=backward, copies=parts, kernels=kernels,
                         filled=filled)

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        given = split(out_features, f"grad_{path}", backward=trains, kernels=casts_grad)
        grad = c.new(rows, in_features, f"grad_{path}")
        c.gemm(computed, in_features, out_features, c.product(grouped=True), experts)
        again = split(in_features, f"{path}.input", forward=c.scaling.is_per_tensor, kernels=casts_input) \
            if c.scaling and (original or (trains and not keeps_input)) else None
        wgrad = c.wgrad(weight, computed, c.product(grouped=True), experts)
        del given, again
        return [grad, wgrad]

    made = split(in_features, f"{path}.input", backward=trains and not original, kernels=casts_input)
    weights = _weight(c, path, weight)
    out = c.new(rows, out_features, path)
    c.gemm(computed, out_features, in_features, c.product(grouped=True), experts)
    kept = _kept(x, made, original=original, trains=trains and keeps_input)
    c.node(out, (x, weight), (*kept, *weights), back)
    return out
