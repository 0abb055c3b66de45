"""Features of a vision tower that are added to image tokens behind a layer of the decoder.

transformers 5.23 `models/qwen3_vl`, _deepstack_process: a copy of the layer's output, its image tokens, their sums with
the features, which are put in their place. The gradient of what was put is taken out, those of the tokens are put into
zeros, and both are added (torch 2.13 `derivatives.yaml`, index and index_put_). What CUDA sorts of the numbers of
tokens for a moment is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import LayerKind
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import BEFORE, stream_dtype
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["LAYER_OUTPUT", "add_features", "add_in_place", "fed", "output_before"]

LAYER_OUTPUT = "layer_outputs"
"""Storage of a layer's own output, which the model binds to a name until the next layer has returned."""


def add_features(tape: Tape, x: Tensor, tokens: int) -> Tensor:
    """`x` [b, s, h] with features added to `tokens` of its rows, in a new tensor; features get no gradient."""
    shape, dtype, size, given = x.shape, x.dtype, x.nbytes, (tokens, x.shape[-1])
    node = tape.node((x,), (), _differentiated(x, tokens))
    out = aten.new(tape, shape, dtype, "clone", size, Kernel.COPY)
    taken = aten.new(tape, given, dtype, "image_tokens", 0, Kernel.PERMUTE)
    _summed = aten.new(tape, given, dtype, "image_tokens.sum", 2 * taken.nbytes)
    out.node = node
    return out


def add_in_place(tape: Tape, x: Tensor, tokens: int) -> Tensor:
    """`x` itself with the sums in it, of a copy of its image tokens (nemo-automodel 0.7.0 `models/qwen3_vl_moe`)."""
    given = (tokens, x.shape[-1])
    x.node = tape.node((x,), (), _differentiated(x, tokens))
    taken = aten.new(tape, given, x.dtype, "image_tokens", 0, Kernel.PERMUTE)
    copied = aten.new(tape, given, x.dtype, "image_tokens.clone", taken.nbytes, Kernel.COPY)
    del taken
    _summed = aten.new(tape, given, x.dtype, "image_tokens.sum", 2 * copied.nbytes)
    return x


def _differentiated(x: Tensor, tokens: int) -> Callable[[Tape, Grads, Saved], Grads]:
    """Backward of `x` whose `tokens` rows are taken, and put in again with features."""
    shape, dtype, size, given = x.shape, x.dtype, x.nbytes, (tokens, x.shape[-1])

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        zeros = aten.new(tape, given, dtype, "zeros")
        rest = aten.new(tape, shape, dtype, "grad_index_put", size, Kernel.PERMUTE)
        del zeros
        taken = aten.new(tape, given, dtype, "grad_taken", 0, Kernel.PERMUTE)
        grads.clear()
        base = aten.new(tape, shape, dtype, "zeros")
        put = aten.new(tape, shape, dtype, "grad_index", size + taken.nbytes, Kernel.PERMUTE)
        del base, taken
        total = aten.new(tape, shape, dtype, "grad_sum", 2 * size)
        del rest, put
        return [total]

    return backward


def fed(tape: Tape, kind: LayerKind, run: LayerWorkload, own: Tensor) -> Tensor:
    """The layer's output `own` with features of images, a new tensor; the next layer frees its own."""
    out = add_features(tape, own, run.images * kind.fed)
    tape.rename(own.storage, tape.slot(LAYER_OUTPUT, "activation"))
    own.disown()
    return out


def output_before(tape: Tape, kind: LayerKind, run: LayerWorkload) -> Tensor | None:
    """The layer before's own output, to which the model has added features in a copy; None for another layer."""
    if not kind.behind_fed:
        return None
    slot = tape.slot(LAYER_OUTPUT, "activation")
    return tape.external((run.batch, run.seq, kind.hidden), stream_dtype(run), slot, BEFORE)
