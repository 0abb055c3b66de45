"""Residual streams of DeepSeek-V4: their weights for each token, their sum before a block, what is added behind it.

nemo-automodel 0.7.0 `components/models/deepseek_v4/layers.py`, DeepseekV4HyperConnection and DeepseekV4HyperHead, and
`optimized_kernels.py`, sinkhorn_normalize_torch: all in fp32. A matrix of each token is made to have rows and columns
that add up to one, step by step, and autograd keeps each step; TileKernels' own kernel keeps its input alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.blocks import FinalNorm, LayerKind, Streams
from simcore.operators.automodel.compressed.modules import Modules
from simcore.operators.automodel.compressed.pieces import as_operand, part, plain_norm, summed, unbound
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, new
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["Mixed", "added_to_streams", "collapsed", "last_sum", "mixed", "shape_of_stream"]


def shape_of_stream(kind: LayerKind) -> tuple[int, ...]:
    """Shape of a token of what `kind` is given: of several streams, or one."""
    count = kind.block.streams if isinstance(kind.block, FinalNorm) else kind.streams.count if kind.streams else 0
    return (count, kind.hidden) if count else (kind.hidden,)


@dataclass(slots=True)
class Mixed:
    """Weights of each token: `before` and `behind` a block [b, s, streams], and of pairs [b, s, streams, streams]."""

    before: Tensor
    behind: Tensor
    pairs: Tensor


def mixed(at: Modules, x: Tensor, streams: Streams, path: str) -> Mixed:
    """Weights of the streams `x` [b, s, streams, hidden]; `path`: name of the module."""
    return Mixed(*at.inside(path, x, lambda given: _weights(at, given, streams, path)))


def _weights(at: Modules, x: Tensor, streams: Streams, path: str) -> list[Tensor]:
    tape, count, scope = at.tape, streams.count, at.tape.scope
    tape.scope = f"{path}."
    batch, seq, _, hidden = x.shape
    flat = aten.cast(tape, x.view(batch, seq, count * hidden), "fp32")
    mix = aten.linear(tape, plain_norm(tape, flat), at.param(f"{path}.fn"), "mix")
    scales, base = unbound(tape, at.param(f"{path}.scale")), as_operand(tape, at.param(f"{path}.base"))

    def weighed(place: int, shape: tuple[int, ...]) -> Tensor:
        found = part(tape, mix, (*mix.shape[:2], *shape))
        return aten.add(tape, aten.mul(tape, found, scales[place]), part(tape, base, shape))

    before = aten.add_scalar(tape, aten.sigmoid(tape, weighed(0, (count,))))
    behind = aten.mul_scalar(tape, aten.sigmoid(tape, weighed(1, (count,))))
    logits = weighed(2, (count, count))
    made = [before, behind, _balanced(at, logits, streams.rounds)]
    tape.scope = scope
    return made


def _balanced(at: Modules, logits: Tensor, rounds: int) -> Tensor:
    """Matrices [b, s, n, n] whose rows and columns are divided by their sums in turn."""
    tape = at.tape
    if at.by_kernels:
        return _at_once(tape, logits)
    batch, seq, count, _ = logits.shape
    rows, columns = (batch, seq, count, 1), (batch, seq, 1, count)
    x = aten.add_scalar(tape, aten.softmax(tape, logits))
    x = _divided(tape, x, columns)
    for _ in range(rounds - 1):
        x = _divided(tape, x, rows)
        x = _divided(tape, x, columns)
    return x


def _divided(tape: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return aten.div(tape, x, aten.add_scalar(tape, summed(tape, x, shape)))


def _at_once(tape: Tape, x: Tensor) -> Tensor:
    """`_Dsv4TileKernelsSinkhorn`: its gradient arrives transposed, and is copied first."""
    shape, dtype, moved = x.shape, x.dtype, x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        _rows = new(tape, shape, dtype, "grad_contiguous", moved, Kernel.COPY)
        return [new(tape, shape, dtype, "grad_balanced", 3 * moved)]

    node = tape.node((x,), (), backward)
    out = new(tape, shape, dtype, "balanced", moved)
    tape.save(node, x)
    out.node = node
    return out


def collapsed(tape: Tape, before: Tensor, x: Tensor) -> Tensor:
    """Sum of the streams `x` by their weights [b, s, streams], [b, s, hidden] in x's type; products are in fp32."""
    batch, seq, count, hidden = x.shape
    weighed = aten.mul(tape, before.view(batch, seq, count, 1), x, "weighed")
    total = summed(tape, weighed, (batch, seq, hidden))
    del weighed
    return aten.cast(tape, total, x.dtype)


def added_to_streams(tape: Tape, weights: Mixed, out: Tensor, x: Tensor) -> Tensor:
    """Streams behind a block: its output [b, s, hidden] in each by weight, and the streams `x`, mixed."""
    batch, seq, count, hidden = x.shape
    behind = aten.cast(tape, weights.behind, x.dtype)
    spread = aten.mul(tape, behind.view(batch, seq, count, 1), out.view(batch, seq, 1, hidden), "spread")
    del behind
    pairs = aten.cast(tape, weights.pairs, x.dtype)
    moved = aten.product(tape, pairs, x, x.shape, count, "mixed")
    del pairs
    return aten.add(tape, spread, moved, "streams")


def last_sum(at: Modules, x: Tensor) -> Tensor:
    """`hc_head`: the streams `x` [b, s, streams, hidden] summed by weights, [b, s, hidden].

    As a unit of its own its output is cast to fp32 by FSDP2's hook (0.7.0 `models/deepseek_v4/fsdp.py`,
    _fp32_mp_policy: output_dtype).
    """
    (made,) = at.inside("model.hc_head", x, lambda given: [_last_sum(at, given)])
    return aten.cast(at.tape, made, "fp32") if at.units else made


def _last_sum(at: Modules, x: Tensor) -> Tensor:
    tape, (batch, seq, count, hidden), scope = at.tape, x.shape, at.tape.scope
    tape.scope = "model.hc_head."
    flat = aten.cast(tape, x.view(batch, seq, count * hidden), "fp32")
    mix = aten.linear(tape, plain_norm(tape, flat), at.param("model.hc_head.hc_fn"), "mix")
    before = aten.add_scalar(tape, aten.sigmoid(tape, aten.add(
        tape, aten.mul(tape, mix, at.param("model.hc_head.hc_scale")), at.param("model.hc_head.hc_base"))))
    made = collapsed(tape, before, x)
    tape.scope = scope
    return made
