"""TransformerEngine's linear layers cut over tp: fused norm + linear, column, row, and whole ones.

Sources: TransformerEngine 2.18 (`pytorch/module/layernorm_linear.py`, `linear.py`), megatron-core 0.16.1
(`tensor_parallel/layers.py`, `tensor_parallel/random.py`). A fused operator is one node: it keeps what its
`save_for_backward` names.

[Note: weight gradients]
The GEMM of a weight gradient adds into `main_grad` (gradient accumulation fusion): nothing is allocated where
`Param.grad_category` is "". Gradients that no GEMM makes (norms, Mamba's vectors, router, embedding) are allocated,
added to `main_grad` by DDP's hook, and dropped.

[Note: sequence parallelism]
The residual stream and norms are split over tp along the sequence. Column-parallel linears all-gather their input in
forward and again in backward (for the weight gradient), row-parallel ones reduce-scatter their output.
"""

from __future__ import annotations

from simcore.errors import NotYet, Problem
from simcore.operators.megatron.ops.adapter import adapted, adapter_input, with_adapter
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.fp8 import column_fp8, norm_linear_fp8, plain_fp8, row_fp8
from simcore.operators.megatron.ops.norm import norm
from simcore.operators.megatron.ops.parts import all_gather, biased, gathered_input, input_grad, reduced, statistics
from simcore.operators.shared.quantizer import Producer
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["column", "gather_backward", "norm_linear", "row", "whole"]


def gather_backward(c: Context, x: Tensor, name: str) -> Tensor:
    """All-gathers `x` [local tokens, columns] along the sequence over tp: [tokens, columns] on every rank.

    Backward reduce-scatters the gradient (`gather_from_sequence_parallel_region`).
    """
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


def norm_linear(c: Context, path: str, x: Tensor, *, producer: Producer = "") -> Tensor:
    """Output [tokens, n] of a norm and a column-parallel linear, both at `path` (TE LayerNormLinear).

    Its adapter is included. For backward it saves the input and rsigma; the norm's output too where the weight trains
    or an adapter reads it. Under sequence parallelism an adapter reads (and saves) the *gathered* output, and the local
    one is kept besides it: with return_layernorm_output nothing clears it, frozen weight or not. `producer`: kernel
    that casts the output's gradient. Without a norm (EXAONE 4) the linear is there alone.
    """
    if f"{path}.layer_norm_weight" not in c.run.params:
        return column(c, path, x)
    pair = c.pair(path)
    c = c.of(path)
    out, seen = _norm_linear(c, path, x) if c.scaling is None else norm_linear_fp8(c, path, x, producer=producer)
    if pair is None or seen is None:
        return out
    return with_adapter(c, path, out, adapted(c, path, adapter_input(c, seen), pair))


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
    """Output [tokens, n] of the column-parallel TE Linear at `path`, with its adapter.

    For backward it saves its local input where the weight trains.
    """
    c = c.of(path)
    out, pair = (_column if c.scaling is None else column_fp8)(c, path, x), c.pair(path)
    if pair is None:
        return out
    seen = adapter_input(c, x)
    seen = gather_backward(c, seen, f"{path}.adapter_input") if c.local != c.tokens else seen
    return with_adapter(c, path, out, adapted(c, path, seen, pair))


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


def row(c: Context, path: str, x: Tensor, *, producer: Producer = "", behind: bool = False) -> Tensor:
    """Output of the row-parallel TE Linear at `path`, with its adapter, summed over tp: [local tokens, n].

    For backward it saves its input where the weight trains. `producer`: kernel that casts `x`. `behind`: the module
    norms what it puts out, before an adapter's part is added (Bridge 067f987d `models/common/te_layers.py`,
    TERowParallelLinearLayerNorm, which adapters wrap as a whole).
    """
    c = c.of(path)
    out, pair = _row(c, path, x) if c.scaling is None else row_fp8(c, path, x, producer=producer), c.pair(path)
    out = norm(c, f"{path}.post_layernorm", out, f"{path}.normed") if behind else out
    if pair is None:
        return out
    part = adapted(c, path, adapter_input(c, x), pair, row_parallel=True)
    return with_adapter(c, path, out, part, row_parallel=True)


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
    """Output [rows, n] of the TE Linear at `path`, whose whole weight is on every tp rank.

    parallel_mode "duplicated", over this rank's tokens. Its adapter, which is included, is cut over tp all the same,
    and no sequence is gathered before it (Bridge 0.3.1 `peft/utils.py`, base_linear_is_parallel). Raises NotYet for
    DoRA over tp.
    """
    c = c.of(path)
    out, pair = (_whole if c.scaling is None else plain_fp8)(c, path, x), c.pair(path)
    if pair is None:
        return out
    if c.run.tp > 1 and f"{path}.adapter.weight_magnitude" in c.run.params:
        raise NotYet(Problem("training.lora.use_dora", f"not yet: DoRA of {path.rpartition('.')[2]} over tp"))
    return with_adapter(c, path, out, adapted(c, path, adapter_input(c, x), pair, gathers=True))


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
