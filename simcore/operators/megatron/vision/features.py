"""Features of a vision tower that are added to image tokens behind a layer of the decoder.

Megatron-Bridge 067f987d `models/qwen_vl/modelling_qwen3_vl/transformer_block.py`, _deepstack_process: image tokens are
taken out, cloned, summed with the features, and written back in place; several sequences are transposed before and
behind, which copies. With context or sequence parallelism a rank adds those of its own tokens: the mean is counted.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import reordered
from simcore.recording.tape import Kernel, Node, Tape, Tensor

__all__ = ["FEATURES", "GRAD_FEATURES", "add_features"]

FEATURES: Final = "deepstack_features"
"""Name of the storage of features, from their merger until the model's forward is over."""
GRAD_FEATURES: Final = "grad_deepstack_features"
"""Name of their gradient, from the layer of the decoder to the merger that has made them."""


def add_features(c: Context, x: Tensor) -> Tensor:
    """`x` [local tokens, hidden] with features added to its image tokens; their gradient goes to `c.held`."""
    several = c.run.batch > 1
    x = reordered(c, x, "deepstack.by_sequence", "grad_deepstack.by_sequence") if several else x
    whole, columns = c.run.images * c.kind.fed, x.shape[1]
    mine = -(-whole // (c.sp * c.run.cp))
    shape = x.shape

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        """Gradients of the write: values get its rows, the stream the rest; rows that were taken out go into zeros."""
        result = c.tape.empty(shape, c.dtype, "grad_deepstack")
        part = [c.tape.empty(shape, c.dtype, "grad_slice") for _ in range(2 * (not several))]
        values = c.new(mine, columns, "grad_deepstack.tokens")
        c.elementwise(result, 2 + 6 * (not several), Kernel.PERMUTE, operators=2 + 3 * (not several))
        part.clear()
        zeros = c.tape.empty(shape, c.dtype, "grad_deepstack.taken")
        c.elementwise(zeros, 2, Kernel.PERMUTE, operators=2)
        total = c.tape.empty(shape, c.dtype, "grad_deepstack.sum")
        c.elementwise(total, 3, operators=1)
        if c.run.features_train:
            _leave(c, whole, columns, values)
        del values, zeros, result
        return [total, None]

    taken = [c.new(mine, columns, f"deepstack.{name}") for name in ("tokens", "clone", "sum")]
    c.elementwise(taken[0], 9, Kernel.PERMUTE, operators=5)
    taken.clear()
    out = Tensor(x.storage, x.shape, x.dtype)
    inner = (x, Tensor(None, (), c.dtype, Node())) if c.run.features_train else (x,)
    c.node(out, inner, (), back)
    del x
    return reordered(c, out, "hidden_states", "grad_deepstack.by_token") if several else out


def _leave(c: Context, rows: int, columns: int, values: Tensor) -> None:
    """The gradient of all features, zeros beside those of a rank's own tokens, for the merger to take."""
    grad = values
    if c.sp * c.run.cp > 1:
        grad = c.new(rows, columns, "grad_deepstack.all")
        c.elementwise(grad, 2, Kernel.PERMUTE, operators=2)
    assert grad.storage is not None
    c.tape.rename(grad.storage, c.tape.slot(GRAD_FEATURES, "backward_temp"))
    grad.disown()
