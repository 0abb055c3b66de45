"""End of Gemma 3's tower as Megatron-Bridge has it, and the biases of attention that its decoder gets.

Megatron-Bridge 067f987d `models/gemma_vl/modeling_gemma3_vl.py`: patches are averaged in squares, normed by
TransformerEngine and multiplied by core's own column-parallel linear, whose parts are gathered
(Gemma3VLMultimodalProjector); tokens of images are put in their place by `masked_scatter`. Biases of layers with a
window and of others, [batch, sequence, sequence], say which tokens see which (_compute_attention_biases); all layers
save them, so that they live until the first layer's backward is over.
"""

from __future__ import annotations

from simcore.models.vision_blocks import Projector
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.norm import norm
from simcore.operators.megatron.vision.tower import tower_context
from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Section, Tape, Tensor

__all__ = ["attention_biases", "biases_of_a_stage", "pooled_tokens"]


def pooled_tokens(c: Context, block: Projector, x: Tensor) -> Tensor:
    """Tokens [tokens of all images, hidden] of patches `x` [patches of all images, width]."""
    inner = tower_context(c, block.tokens)
    rows, width = x.shape
    columns = _moved(c, x, "contiguous")
    count = inner.tokens

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, width, "grad_avg_pool")
        c.elementwise(grad, 2, operators=1)
        return [grad]

    pooled = c.new(count, width, "avg_pool")
    c.elementwise(columns, 1, operators=1)
    c.node(pooled, (columns,), (columns,), back)
    del columns
    in_rows = _moved(c, pooled, "by_rows")
    del pooled
    return _gathered(inner, _projected(inner, norm(inner, "mm_soft_embed_norm", in_rows)))


def _moved(c: Context, x: Tensor, name: str) -> Tensor:
    """A copy in another order, as is the gradient, which a norm or a kernel asks for in order."""
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, f"grad_{name}")
        c.elementwise(grad, 2, Kernel.COPY, operators=1)
        return [grad]

    out = c.new(rows, columns, name)
    c.elementwise(out, 2, Kernel.COPY, operators=1)
    c.node(out, (x,), (), back)
    return out


def _projected(c: Context, x: Tensor) -> Tensor:
    """Core's ColumnParallelLinear without accumulation fusion; its gradient is summed over tp."""
    weight, (rows, width) = c.param("proj.weight"), x.shape
    n = weight.shape[0]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, width, "grad_proj")
        c.gemm(rows, width, n)
        if c.run.tp > 1:
            c.send("all_reduce", "tp", grad)
        if weight.trainable:
            c.gemm(n, width, rows)
        return [grad, c.small_grad(weight)]

    out = c.new(rows, n, "proj")
    c.gemm(rows, n, width)
    c.node(out, (x, weight), (x,) if weight.trainable else (), back)
    return out


def _gathered(c: Context, x: Tensor) -> Tensor:
    """`gather_from_tensor_model_parallel_region`: parts of all ranks, put side by side by a copy; backward cuts it."""
    if c.run.tp == 1:
        return x
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, "grad_proj.part")
        c.elementwise(grad, 2, Kernel.COPY, operators=1)
        return [grad]

    parts = c.new(c.run.tp * rows, columns, "proj.parts")
    c.send("all_gather", "tp", parts)
    out = c.new(rows, c.run.tp * columns, "proj.gathered")
    c.elementwise(out, 2, Kernel.COPY, operators=1)
    c.node(out, (x,), (), back)
    return out


def attention_biases(c: Context) -> list[Tensor]:
    """Biases of layers with and without a window, and for a moment the masks and distances that they are made of."""
    tape, batch, seq = c.tape, c.run.batch, c.run.seq
    square = (batch, seq, seq)

    def mask(name: str, *, batched: bool = True) -> Tensor:
        shape = square if batched else (1, seq, seq)
        return aten.new(tape, shape, "uint8", name, 0)

    ones = mask("ones", batched=False)
    causal = mask("causal", batched=False)
    del ones
    equal = mask("equal")
    both = mask("bidirectional")
    del equal
    allowed = mask("allowed")
    whole = _filled(tape, square, c.dtype, "global_attention_bias")
    distances = [aten.new(tape, (seq, seq), "int64", "distances", 0)]
    distances.append(aten.new(tape, (seq, seq), "int64", "distances.abs", 8 * seq * seq))
    del distances[0]
    near = mask("near", batched=False)
    distances.clear()
    local_allowed = mask("local_allowed")
    local = _filled(tape, square, c.dtype, "local_attention_bias")
    del causal, both, allowed, near, local_allowed
    return [local, whole]


def biases_of_a_stage(c: Context) -> tuple[Section, Section]:
    """Sections in which a pipeline stage makes the biases, as the first does, and drops them behind its backward."""
    made = attention_biases(c)
    forward = c.tape.cut()
    made.clear()
    return forward, c.tape.cut()


def _filled(tape: Tape, shape: tuple[int, ...], dtype: str, name: str) -> Tensor:
    """Zeros, with the least number where a negated mask says so."""
    out = aten.new(tape, shape, dtype, name, 0)
    _negated = aten.new(tape, shape, "uint8", f"{name}.masked", out.numel)
    tape.compute(Kernel.ELEMENTWISE, out.numel, out.nbytes + _negated.nbytes)
    return out
