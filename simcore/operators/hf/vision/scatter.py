"""`masked_scatter` on CUDA, by which image tokens take the place of placeholders in a sequence.

torch 2.13 `ATen/native/cuda/Indexing.cu`, masked_scatter__cuda: a prefix sum of the mask in int64, as large as the
sequence, and the expanded mask, a byte an element, exist for a moment. `tools/autograd/derivatives.yaml`: the gradient
of the sequence is filled with zeros at image tokens, that of the source is selected, by the indices of its elements
(masked_select, nonzero: three int64 an element).
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, needs_grad
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["masked_scatter"]


def masked_scatter(tape: Tape, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`x.masked_scatter(mask, source)` of `x` [b, s, h], `mask` [b, s] and `source` with the elements that are set."""
    shape, dtype, given, source_dtype = x.shape, x.dtype, source.shape, source.dtype
    x_needs, source_needs, size, numel = needs_grad(x), needs_grad(source), x.nbytes, source.numel

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_x = aten.new(tape, shape, dtype, "grad_masked_fill", size) if x_needs else None
        return [to_x, _selected(tape) if source_needs else None]

    def _selected(tape: Tape) -> Tensor:
        _whole = aten.new(tape, shape, "uint8", "mask.contiguous")
        indices = aten.new(tape, (3, numel), "int64", "nonzero", _whole.nbytes)
        del _whole
        return aten.new(tape, given, source_dtype, "grad_masked_select", indices.nbytes + size)

    node = tape.node((x, source), (mask,), backward)
    out = aten.new(tape, shape, dtype, "masked_scatter", size)
    _sums = aten.new(tape, shape, "int64", "mask.prefix_sum")
    _whole = aten.new(tape, shape, "uint8", "mask.contiguous")
    tape.compute(Kernel.ELEMENTWISE, out.numel, _sums.nbytes + _whole.nbytes + source.nbytes + size)
    out.node = node
    return out
