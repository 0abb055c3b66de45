"""Liger's kernels in transformers' layers (Liger-Kernel 0.7.0: `ops/{rms_norm,rope,swiglu,geglu}.py`), and its loss.

Put into a model that is there already, as transformers' `use_liger_kernel` and NeMo Automodel do
(`transformers/monkey_patch.py`, _apply_liger_kernel_to_instance): norms of layers and the last one, rotation, SwiGLU.
Norms of query and key stay transformers' own there, but Gemma 3's; where classes are replaced before, they are Liger's
too. Each is one kernel a pass. Autocast does not see them: each computes in the type that it is given.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.hf.autocast import is_autocast, narrowed, narrowed_weight
from simcore.operators.hf.options import HfOptions, LigerKernels
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, needs_grad, new
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["gated", "kernels_of", "keeps_grads", "liger_loss", "norm_of_turned", "normalises_heads", "rms_norm",
           "rotate_both", "rotate_turned"]

_NUM_SMS: Final = 132  # an H100's: each sums a part of the weight's gradient
_KEEPS: Final = ("gemma2", "gemma3_text", "glm4", "olmo2", "olmo3")
"""Families whose norms write their gradient into a new tensor (`monkey_patch.py`, in_place=False)."""


def kernels_of(run: LayerWorkload) -> LigerKernels:
    """Returns those of Liger's kernels that replace those of the layers."""
    return HfOptions.of(run.options).liger


def keeps_grads(run: LayerWorkload, family: str, *, last: bool) -> bool:
    """True if norms of `family` leave the gradient that comes in as it is.

    `last`: the norm before the head, which of an instance of OLMo is patched with the default.
    """
    return family in _KEEPS and not (last and family.startswith("olmo") and not kernels_of(run).in_classes)


def normalises_heads(run: LayerWorkload, family: str) -> bool:
    """True if norms of query and key are Liger's."""
    kernels = kernels_of(run)
    return kernels.rms_norm and (kernels.in_classes or family == "gemma3_text")


def rms_norm(tape: Tape, weight: Param, x: Tensor, *, keeps_grad: bool = False, copies: bool = False,
             copies_grad: bool = False) -> Tensor:
    """RMSNorm of `x` by Liger's kernel, in its shape and type; it saves x and an fp32 number a row.

    The gradient of x is written over the one that came in, but with `keeps_grad`. The weight's gradient is made for
    frozen weights too: LigerRMSNormFunction does not ask, and it dies with the function's results. `copies`,
    `copies_grad`: x, and the gradient, come in another memory order and are copied before (`ops/utils.py`,
    ensure_contiguous).
    """
    x = x if not copies else _copied(tape, x)
    moved, wide, dtype, shape = x.nbytes, weight.shape[-1], weight.dtype, x.shape

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        kind = grad.dtype
        if copies_grad:
            grad = new(tape, shape, kind, "grad_rows", moved, Kernel.COPY)
        parts = tape.empty((_NUM_SMS, wide), "fp32", "grad_weight.parts")
        out = new(tape, shape, kind, "grad_norm", moved) if keeps_grad else grad
        tape.compute(Kernel.NORM, 4 * moved, 3 * moved)
        whole = new(tape, (wide,), "fp32", "grad_weight.fp32", parts.nbytes)
        made = whole if dtype == "fp32" else new(tape, (wide,), dtype, "grad_weight", whole.nbytes)
        return [out, made]

    node = tape.node((x, weight), (), backward)
    out = new(tape, x.shape, x.dtype, "norm", moved, Kernel.NORM)
    tape.save(node, x, weight, tape.empty((x.numel // wide,), "fp32", "rstd"))
    out.node = node
    return out


def _copied(tape: Tape, x: Tensor) -> Tensor:
    """A copy of `x` inside of a function, whose gradient is that of `x`."""
    copy = new(tape, x.shape, x.dtype, "rows", x.nbytes, Kernel.COPY)
    return Tensor(copy.storage, x.shape, x.dtype, x.node, x.output)


def rotate_both(tape: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, copy_grads: bool = False,
                copies: bool = False) -> tuple[Tensor, Tensor]:
    """(query, key), both rotated in place: views of `q` and `k`, each [b, s, heads, d].

    Their gradients are rotated in place too. `cos` and `sin` are saved. `copies`, `copy_grads`: they, and the
    gradients, come in another memory order and are copied before (`ops/rope.py`, rope_forward, rope_backward).
    """
    shapes, dtype = (q.shape, k.shape), q.dtype
    moved = 2 * (q.nbytes + k.nbytes)
    flops = 3 * (q.numel + k.numel)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [new(tape, shape, dtype, "grad_heads", grad.nbytes, Kernel.COPY) if copy_grads and grad else grad
                       for shape, grad in zip(shapes, grads, strict=True)]
        tape.compute(Kernel.ELEMENTWISE, flops, moved)
        return made

    if copies:
        q = _copied(tape, q)
        k = _copied(tape, k)
    node = tape.node((q, k), (), backward)
    tape.compute(Kernel.ELEMENTWISE, flops, moved)
    tape.save(node, cos, sin)
    return Tensor(q.storage, q.shape, q.dtype, node), Tensor(k.storage, k.shape, k.dtype, node, 1)


def norm_of_turned(tape: Tape, weight: Param, x: Tensor) -> Tensor:
    """Norm of query or key `x` [b, s, heads, d] of Gemma 3, whose heads come first before it, where they are several.

    So it copies what it is given, and its result and the gradient it makes lie by heads.
    """
    several = x.shape[2] > 1
    return rms_norm(tape, weight, x, keeps_grad=True, copies=several, copies_grad=several)


def rotate_turned(tape: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`rotate_both` of query and key whose heads come first, where they are several."""
    q = _by_tokens(tape, q)
    k = _by_tokens(tape, k)
    return rotate_both(tape, q, k, cos, sin)


def _by_tokens(tape: Tape, x: Tensor) -> Tensor:
    return x if x.shape[2] == 1 else _copied(tape, x)


def gated(tape: Tape, gate: Tensor, up: Tensor, *, copies: bool = False) -> Tensor:
    """`silu(gate) * up` (or GELU by tanh) in a new tensor; both are saved, and their gradients written over them.

    `copies`: they are halves of one tensor and are copied before.
    """
    if copies:
        gate = _copied(tape, gate)
        up = _copied(tape, up)
    moved, flops = gate.nbytes, gate.numel

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        tape.compute(Kernel.ELEMENTWISE, 8 * flops, 5 * moved)
        return [saved[0], saved[1]]

    node = tape.node((gate, up), (), backward)
    out = new(tape, gate.shape, gate.dtype, "swiglu", 2 * moved)
    tape.save(node, gate, up)
    out.node = node
    return out


# ---- The head and its loss -------------------------------------------------------------------------------------------
def liger_loss(tape: Tape, run: LayerWorkload, hidden: Tensor) -> Tensor:
    """Loss, a scalar in fp32, of the head's input `hidden`; gradients are made in forward, chunk by chunk.

    Liger-Kernel 0.7.0 `ops/fused_linear_cross_entropy.py`. Both gradients are all that is saved; a chunk's part of
    the weight's is made in the compute dtype, then in fp32. A chunk's logits, which become their gradient, die when the
    next ones are there. Under autocast each of a chunk's products casts what it is given.
    """
    weight, tokens = run.params["weight"], run.tokens
    shape, dtype, (vocab, width) = hidden.shape, hidden.dtype, weight.shape
    needs, moved = (needs_grad(hidden), weight.trainable), hidden.nbytes + weight.nbytes
    rows = 1 << max(0, -(-tokens // -(-vocab // width)) - 1).bit_length()

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        saved.clear()  # scaled in place: only the owners of the bytes change
        return [new(tape, s, kind, name, moved) if need else None for s, kind, name, need in (
            (shape, dtype, "grad_hidden", needs[0]), (weight.shape, weight.dtype, "grad_weight", needs[1]))]

    # Labels are padded by one, and shifted; a slice of one row is contiguous (transformers/model/loss_utils.py).
    _padded = new(tape, (run.batch, run.seq + (run.cp == 1)), "int64", "labels")
    _shifted = new(tape, (tokens,), "int64", "labels") if run.batch > 1 and run.cp == 1 else None
    node = tape.node((hidden, weight), (), backward)
    to_hidden = new(tape, (tokens, width), dtype, "grad_hidden")
    to_weight = new(tape, weight.shape, weight.dtype, "grad_weight") if needs[1] else None
    losses = new(tape, (tokens,), "fp32", "losses")
    _counted = new(tape, (tokens,), "uint8", "counted")
    logits: list[Tensor] = []
    for start in range(0, tokens, rows):
        _chunk(tape, run, hidden, min(rows, tokens - start), moved, to_weight, logits)
    logits.clear()
    tape.save(node, to_hidden, to_weight)
    del to_hidden, to_weight
    out = new(tape, (), "fp32", "loss", losses.nbytes, Kernel.LOSS)
    out.node = node
    return out


def _chunk(tape: Tape, run: LayerWorkload, hidden: Tensor, rows: int, moved: int, to_weight: Tensor | None,
           held: list[Tensor]) -> None:
    """Makes logits of a chunk of `rows` in the place of those in `held`, and its parts of both gradients."""
    weight, dtype = run.params["weight"], run.compute
    vocab, width = weight.shape
    product = 2 * rows * vocab * width
    turned = _turned(tape, run, weight)
    given = narrowed(tape, run, Tensor(None, (rows, width), hidden.dtype))
    logits = new(tape, (rows, vocab), dtype, "chunk_logits", moved, Kernel.GEMM, product)
    del turned, given
    held[:] = [logits]
    tape.compute(Kernel.LOSS, 3 * logits.numel, 2 * logits.nbytes)
    copy = narrowed_weight(tape, run, weight) if is_autocast(run) else None
    new(tape, (rows, width), dtype, "chunk_grad_hidden", moved, Kernel.GRAD_GEMM, product)
    del copy
    if to_weight is not None:
        given = narrowed(tape, run, Tensor(None, (rows, width), hidden.dtype))
        part = new(tape, weight.shape, dtype, "chunk_grad_weight", moved, Kernel.GRAD_GEMM, product)
        del given
        _wide = aten.cast(tape, part, "fp32")
        del part, _wide


def _turned(tape: Tape, run: LayerWorkload, weight: Param) -> Tensor | None:
    """The transposed weight as autocast casts it, which keeps copies of whole parameters alone; None without."""
    if not is_autocast(run) or weight.dtype == run.compute:
        return None
    return new(tape, weight.shape, run.compute, "weight_copy", weight.nbytes, Kernel.COPY)
