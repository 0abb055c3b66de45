"""`TEGroupedMLP`: two grouped linears with activation and probabilities between them.

megatron-core 0.16.1 `transformer/moe/experts.py`, `fusions/fused_weighted_squared_relu.py`.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.operators.megatron.biased import clamped, clamped_halves, with_scaled_bias, with_second_bias
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import act, glu, swiglu
from simcore.operators.megatron.ops.grouped_linear import grouped
from simcore.operators.megatron.ops.offload import offloaded
from simcore.operators.megatron.ops.parts import biased
from simcore.operators.megatron.ops.recompute import Discarded, discarded_region
from simcore.operators.megatron.rows import Rows
from simcore.operators.megatron.stash import group_start, stash
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["expert_layers", "grouped_mlp"]


def grouped_mlp(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """Outputs of this rank's experts for the rows `x` [rows, hidden], in x's shape.

    `TEGroupedMLP.forward`. `x` is sorted by expert; `probs`: [rows, 1]; `rows`: numbers of rows on this rank. For fp8
    every expert's rows are copied to a padded number (`Scaling.padded_rows`) and back, unless the router pads.
    """
    if c.scaling is None or c.pads_routing:
        return expert_layers(c, block, rows, x, probs)
    computed = c.padded_rows(rows.computed, rows.local_experts)
    wide, weights = _resized(c, x, computed, "padded"), _resized(c, probs, computed, "padded_probs")
    return _resized(c, expert_layers(c, block, rows, wide, weights), rows.computed, "unpadded")


def _resized(c: Context, x: Tensor, rows: int, name: str) -> Tensor:
    """`Fp8Padding`, `Fp8Unpadding`: keep nothing. Real loads are never all multiples, so it always copies.

    One call that copies rows in their order (TransformerEngine 2.18 `common/util/padding.cu`): no permutation, for
    which a dispatcher makes maps and counts.
    """
    before, columns, dtype = *x.shape, x.dtype

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(before, columns, f"grad_{name}", dtype)
        c.tape.compute(Kernel.ELEMENTWISE, 0, 2 * grad.nbytes)
        return [grad]

    out = c.new(rows, columns, name, dtype)
    c.tape.compute(Kernel.ELEMENTWISE, 0, 2 * out.nbytes)
    c.node(out, (x,), (), back)
    return out


def _in_one(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """TransformerEngine's fused grouped MLP in mxfp8 (main `moe/experts.py`, _with_fused_impl; TE `pytorch/ops`).

    The first GEMM's epilogue is activation, probabilities and cast for the second; in backward the second's is their
    gradient and the cast for the first. What is kept is taken to be the same, without the halves of a clamp.

    Under recompute `moe_act` the second's input is not kept if the activation is relu^2: the GEMM that makes the
    activation's gradient writes its columns again. SwiGLU's is kept all the same (d0067d0d `ops/fused/grouped_mlp.py`
    :1756, recompute_srelu_fc2_x), also in a layer that runs again.
    """
    first, second = "mlp.experts.linear_fc1", "mlp.experts.linear_fc2"
    filled, again = rows.computed if rows.room else 0, not block.gated and c.recomputes("moe_act")
    x = group_start(c, x)
    inner = grouped(c, first, x, rows.local_experts, casts_grad=False, filled=filled)
    kept = _saved_by(inner)[:1]
    if block.bias:
        inner = biased(c, first, inner)
    out, _ = _weighted(c, block, inner, probs, discard=False, kernels=False)
    kept += _saved_by(out)
    out = grouped(c, second, out, rows.local_experts, casts_input=False, keeps_input=not again, filled=filled)
    stash(c, rows, out, *kept, *_saved_by(out)[:1])
    return with_scaled_bias(c, second, out, probs, rows.computed) if block.bias else out


def _saved_by(x: Tensor) -> list[Tensor]:
    """Tensors that the node of `x` keeps: of a linear its input first, then weights."""
    return list(x.node.saved) if x.node else []


def expert_layers(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """Outputs of this rank's experts for the rows `x` [rows, hidden], which need no padding; x's shape.

    Two grouped linears with activation and probabilities between them. `x` is sorted by expert; `probs`: [rows, 1].
    """
    if c.options.use_transformer_engine_op_fuser and c.scaling is not None:
        return offloaded(c, "fused_group_mlp", x, lambda x: _in_one(c, block, rows, x, probs), release=(x,))
    inner = offloaded(c, "expert_fc1", x, lambda x: grouped(c, "mlp.experts.linear_fc1", x, rows.local_experts),
                      release=(x,))
    if block.bias:
        return _biased_second(c, block, rows, inner, probs)
    if not _fuses_experts(c, block):
        return _unfused_second(c, block, rows, inner, probs)
    if not c.recomputes("moe_act") or c.inside:
        out, _ = _weighted(c, block, inner, probs, discard=False)
        return grouped(c, "mlp.experts.linear_fc2", out, rows.local_experts)
    out, discarded = _weighted(c, block, inner, probs, discard=True)
    result = grouped(c, "mlp.experts.linear_fc2", out, rows.local_experts)
    assert discarded is not None
    return discarded.drop_after(result)


def _biased_second(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """GPT-OSS: a clamp before the activation, and a bias after the second GEMM.

    Each fused activation, made again or not, puts a number on the device (`fused_bias_geglu.py`,
    weighted_bias_quick_geglu_impl: torch.tensor), and the host waits for the stream until it is there (torch 2.13
    `native/cuda/Copy.cu`, memcpy_and_sync).
    """
    path = "mlp.experts.linear_fc2"
    x = biased(c, "mlp.experts.linear_fc1", x)

    def run() -> tuple[Tensor, ...]:
        if not c.fuses_activation:
            return (_unfused(c, block, x, probs),)
        cut = clamped(c, x)
        c.tape.stop()
        return _weighted(c, block, cut, probs, discard=False)[:1]

    if not c.recomputes("moe_act") or c.inside:
        (out,) = run()
        return with_second_bias(c, path, grouped(c, path, out, rows.local_experts), probs, rows.local_experts)
    (out,), drop_after = discarded_region(c, run)
    out = drop_after(grouped(c, path, out, rows.local_experts))
    return with_second_bias(c, path, out, probs, rows.local_experts)


def _unfused_second(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """Activation and second GEMM; under recompute `moe_act` the activation runs without a graph and is made again."""
    path = "mlp.experts.linear_fc2"
    if not c.recomputes("moe_act") or c.inside:
        return grouped(c, path, _unfused(c, block, x, probs), rows.local_experts)
    (out,), drop_after = discarded_region(c, lambda: (_unfused(c, block, x, probs),))
    return drop_after(grouped(c, path, out, rows.local_experts))


def _fuses_experts(c: Context, block: Moe) -> bool:
    """Tells whether activation and probabilities are one kernel: SwiGLU, and relu^2 where an option turns that on."""
    relu = c.options.use_fused_weighted_squared_relu
    return c.fuses_activation if block.gated else relu and not block.gelu


def _unfused(c: Context, block: Moe, x: Tensor, probs: Tensor) -> Tensor:
    """The activation, then times the probabilities (`experts.py`, bias_act_func): keeps what both read.

    No kernel fuses GELU with probabilities. Experts one after the other (SequentialMLP) keep the same in parts.
    """
    name = "experts.activation"
    if block.bias:  # GPT-OSS, whose gate is a quick GELU
        inner = glu(c, clamped_halves(c, x), name)
    else:
        inner = swiglu(c, x, name) if block.gated else act(c, x, name, gated=False)
    rows, columns, wide = *inner.shape, "fp32" if "fp32" in (inner.dtype, probs.dtype) else inner.dtype
    probs_dtype = probs.dtype

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        each = c.new(rows, columns, "grad_experts_probs_each", wide)
        grad = c.new(rows, columns, "grad_experts_weighted", wide)
        c.elementwise(grad, 6)
        if wide != c.dtype:
            grad = c.new(rows, columns, "grad_experts_activation")
        grad_probs = c.new(rows, 1, "grad_experts_probs", probs_dtype)
        del each
        return [grad, grad_probs]

    out = c.new(rows, columns, "experts.weighted", wide)
    c.elementwise(out, 3)
    if wide != c.dtype:
        out = c.new(rows, columns, "experts.weighted")
        c.elementwise(out, 3)
    c.node(out, (inner, probs), (inner, probs), back)
    return out


def _weighted(c: Context, block: Moe, x: Tensor, probs: Tensor, *, discard: bool,
              kernels: bool = True) -> tuple[Tensor, Discarded | None]:
    """Fused weighted relu^2 or SwiGLU: keeps its input and the fp32 probabilities; without `kernels`: GEMMs do it."""
    rows, wide, dtype = *x.shape, probs.dtype
    narrow = wide // (2 if block.gated else 1)
    holder: list[Discarded] = []

    def again() -> list[Tensor]:
        made = c.new(rows, narrow, "experts.activation", category="recompute")
        c.elementwise(made, 3 if block.gated else 2)
        return [made]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, wide, "grad_experts_activation")
        grad_probs = c.new(rows, 1, "grad_experts_probs", dtype)
        if kernels:
            c.elementwise(grad, 3)
        for discarded in holder:
            discarded.made.clear()
        return [grad, grad_probs]

    out = c.new(rows, narrow, "experts.activation")
    if kernels:
        c.elementwise(out, 3 if block.gated else 2)
    c.node(out, (x, probs), (x, probs), back)
    if discard:
        holder.append(Discarded(c, out, again))
    return out, holder[0] if holder else None
