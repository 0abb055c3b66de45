"""The output projection and the losses of NeMo Automodel (nemo-automodel 0.7.0, `components/loss/`).

| `LayerWorkload.loss` | upstream | logits |
|---|---|---|
| masked_fp32 (default of the recipes) | `MaskedCrossEntropy(fp32_upcast=True)` | all, bf16 and fp32 |
| masked | `MaskedCrossEntropy(fp32_upcast=False)` | all |
| causal | the model's own, where labels are given to it (0.7.0 and 2f805abd `models/nemotron_v3/model.py`) | all |
| te_inplace | `TEParallelCrossEntropy`: its own Triton kernels | all, the gradient is written over them |
| cut | `FusedLinearCrossEntropy` (cut-cross-entropy) | none |
| chunked | `ChunkedCrossEntropy`, 512 tokens at a time | one chunk, again in backward |
| vocab_parallel | NeMo RL's `DistributedLogprob`, over tp | all in fp32, cut by vocabulary |
| top_k | NeMo RL's `DistillationLossFn` | all in fp32, cut by vocabulary |
| values | NeMo RL's `MseValueLossFn` | none: a number for each token |

`cut` and `chunked` take the head's weight, not its module: they run where the head is, its adapters get no gradient.
Labels come shifted from the data loader.

[Note: how long logits are held] 0.7.0 drops the model's output before backward (`recipes/llm/train_ft.py`: `del out`);
earlier snapshots held it until the step was over: `keeps_logits`, with which activations were measured.
"""

from __future__ import annotations

from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Head, Loss
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import column
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, needs_grad, new
from simcore.operators.shared.top_k import TOP_K, top_k_loss
from simcore.recording.kernel_shape import shape_of
from simcore.recording.tape import GRAD_HIDDEN, Kernel, Tape, Tensor

__all__ = ["LINEAR_LOSSES", "VOCAB_PARALLEL", "head", "loss"]

VOCAB_PARALLEL: Final = "vocab_parallel"
LINEAR_LOSSES: Final = ("cut", "chunked")
_LOGITS_LOSSES: Final = ("masked_fp32", "masked", "te_inplace", "causal", VOCAB_PARALLEL, TOP_K, "values")
_NUMBERS: Final = 7
"""Numbers of a token that a loss of values keeps: bounds, values, differences and squares of both kinds."""
_CHUNK: Final = 512


def head(env: Env, x: Tensor, block: Head) -> Tensor:
    """Logits [batch, sequence, this rank's part of the vocabulary] of the hidden state `x`.

    For losses in `LINEAR_LOSSES` the loss itself, a scalar. Those losses are computed from the hidden state `x` and the
    weight.
    """
    if env.run.loss not in LINEAR_LOSSES:
        logits = column(env, x, "lm_head", env.run.compute)
        return _full_tensor(env, logits) if env.run.tp > 1 and env.options.gathers_logits else logits
    x = aten.cast(env.tape, x, env.run.compute)
    if env.run.loss == "cut":
        return _cut(env, x)
    return _chunked(env, x)


def _cut(env: Env, x: Tensor) -> Tensor:
    """Keeps the hidden state and the log-sum-exp; d(hidden) is summed in fp32 (`accum_e_fp32`)."""
    tape, weight, tokens = env.tape, env.param("lm_head.weight"), env.run.tokens
    shape, dtype, w_shape, moved = x.shape, x.dtype, weight.shape, x.nbytes + weight.nbytes
    x_needs, w_needs, flops = needs_grad(x), weight.trainable, 2 * tokens * weight.numel
    logits = shape_of(tokens, w_shape[0])

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        tape.compute(Kernel.GEMM, flops, moved, logits)  # once more, block by block
        total = new(tape, shape, "fp32", "grad_hidden_fp32", moved, Kernel.GEMM, flops) if x_needs else None
        to_weight = new(tape, w_shape, dtype, "grad_weight", moved, Kernel.GEMM, flops) if w_needs else None
        to_x = new(tape, shape, dtype, "grad_head", total.nbytes) if total else None
        return [to_x, to_weight]

    node = tape.node((x, weight), (x, weight), backward)
    lse = new(tape, (tokens,), "fp32", "log_sum_exp", moved, Kernel.GEMM, flops, logits)
    tape.save(node, lse)
    out = new(tape, (), "fp32", "loss", 4 * tokens, Kernel.LOSS)
    out.node = node
    return out


def _chunked(env: Env, x: Tensor) -> Tensor:
    """Keeps the hidden state; a chunk's logits exist in bf16 and fp32, in backward with their gradients."""
    tape, weight, tokens = env.tape, env.param("lm_head.weight"), env.run.tokens
    shape, dtype, w_shape, vocab = x.shape, x.dtype, weight.shape, weight.shape[0]
    x_needs, w_needs, flops = needs_grad(x), weight.trainable, 2 * weight.numel

    def chunks(types: tuple[str, ...], products: int) -> None:
        for start in range(0, tokens, _CHUNK):
            rows = min(_CHUNK, tokens - start)
            held = [new(tape, (rows, vocab), t, "chunk_logits", weight.nbytes, Kernel.LOSS) for t in types]
            tape.compute(Kernel.GEMM, products * rows * flops, held[0].nbytes + weight.nbytes, shape_of(rows, vocab))
            del held

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_x = tape.empty(shape, dtype, "grad_head") if x_needs else None
        total = new(tape, w_shape, "fp32", "grad_weight_fp32") if w_needs else None
        chunks((dtype, "fp32", dtype), 1 + x_needs + w_needs)
        to_weight = new(tape, w_shape, dtype, "grad_weight", total.nbytes) if total else None
        return [to_x, to_weight]

    node = tape.node((x, weight), (x, weight), backward)
    losses = tape.empty((tokens,), "fp32", "losses")
    chunks((dtype, "fp32"), 1)
    out = new(tape, (), "fp32", "loss", losses.nbytes, Kernel.LOSS)
    out.node = node
    return out


# ---- losses over logits -----------------------------------------------------------------------------------------
def loss(env: Env, logits: Tensor, block: Loss) -> Tensor:
    """Loss, a scalar, of `logits` [batch, sequence, this rank's part of the vocabulary].

    `LayerWorkload.loss` names the function; raises NotYet for an unknown name.
    """
    kind = env.run.loss
    if kind not in _LOGITS_LOSSES:
        known = ", ".join((*_LOGITS_LOSSES, *LINEAR_LOSSES))
        raise NotYet(Problem("training.loss", f"Automodel's losses are {known}, got {kind!r}"))
    if kind == "causal":
        return _causal(env, logits)
    if kind == VOCAB_PARALLEL:
        return _vocab_parallel(env, logits)
    if kind == TOP_K:
        return top_k_loss(env.tape, logits)
    if kind == "values":
        return _values(env, logits)
    logits = logits.view(env.run.tokens, logits.shape[-1])
    if kind == "te_inplace":
        return _in_place(env, logits)
    if kind == "masked_fp32":
        cast = aten.cast(env.tape, logits, "fp32")
        assert isinstance(cast, Tensor)
        logits = cast
        del cast
    if env.run.tp > 1:
        logits = _full_tensor(env, logits)
    return aten.cross_entropy(env.tape, logits, Tensor(None, (env.run.tokens,), "int64"))


def _vocab_parallel(env: Env, logits: Tensor) -> Tensor:
    """NeMo RL 7ea279ab `distributed/model_utils.py` DistributedLogprob, of a part of the vocabulary on each rank.

    FSDP2's hook casts the logits to fp32. At once there are these, less their maximum, and exponentials or the
    log-softmax; kept is the softmax, of which backward makes the gradient.
    """
    tape, tokens = env.tape, env.run.tokens
    wide = aten.cast(tape, logits.view(tokens, logits.shape[-1]), "fp32")
    shape, moved = wide.shape, wide.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [new(tape, shape, "fp32", "grad_logits", 3 * moved, Kernel.LOSS)]

    def summed() -> None:
        tape.collective("all_reduce", "tp", 4 * tokens, "fp32")

    node = tape.node((wide,), (), backward)
    mask, target = tape.empty((tokens,), "uint8", "target_mask"), tape.empty((tokens,), "int64", "masked_target")
    summed()
    less = new(tape, shape, "fp32", "logits_less_maximum", 2 * moved, Kernel.LOSS)
    exponentials = new(tape, shape, "fp32", "exponentials", 2 * moved, Kernel.LOSS)
    del exponentials
    summed()
    found = new(tape, shape, "fp32", "log_softmax", moved, Kernel.LOSS)
    del less
    chosen = new(tape, (tokens,), "fp32", "log_probabilities")
    summed()
    softmax = new(tape, shape, "fp32", "softmax", moved, Kernel.LOSS)
    tape.save(node, softmax, mask, target)
    del found
    out = new(tape, (), "fp32", "loss", chosen.nbytes, Kernel.LOSS)
    out.node = node
    return out


def _values(env: Env, values: Tensor) -> Tensor:
    """NeMo RL 7ea279ab `algorithms/loss/loss_functions.py` MseValueLossFn: clipped values against returns, in fp32."""
    tape, shape, dtype, tokens = env.tape, values.shape, values.dtype, env.run.tokens

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        wide = new(tape, (2, tokens), "fp32", "grad_squares", 8 * tokens)
        grad = new(tape, shape, dtype, "grad_values", wide.nbytes)
        del wide
        return [grad]

    node = tape.node((values,), (), backward)
    kept = new(tape, (_NUMBERS, tokens), "fp32", "clipped_values", values.nbytes)
    tape.save(node, kept)
    out = new(tape, (), "fp32", "loss", kept.nbytes, Kernel.LOSS)
    out.node = node
    return out


def _causal(env: Env, logits: Tensor) -> Tensor:
    """Cross entropy in the logits' own type over all positions but the last; of several sequences these are copied."""
    tape, (batch, seq, vocab) = env.tape, logits.shape
    shape, dtype, rows = logits.shape, logits.dtype, batch * (seq - 1)
    node = tape.node((logits,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_slice")])
    shifted = Tensor(logits.storage, (batch, seq - 1, vocab), dtype, node)
    labels = Tensor(None, (rows,), "int64")
    if batch > 1:
        shifted = aten.contiguous(tape, shifted, "shifted_logits")
        labels = new(tape, (rows,), "int64", "shifted_labels")
    return aten.cross_entropy(tape, shifted.view(rows, vocab), labels)


def _full_tensor(env: Env, logits: Tensor) -> Tensor:
    """`DTensor.full_tensor()`: every rank gathers the whole vocabulary (`loss/masked_ce.py`)."""
    tape, shape, dtype, whole = env.tape, logits.shape, logits.dtype, (*logits.shape[:-1],
                                                                       logits.shape[-1] * env.run.tp)
    node = tape.node((logits,), (), lambda tape, grads, saved: [
        new(tape, shape, dtype, "grad_full_logits", kernel=Kernel.COPY)])
    parts = tape.empty(whole, dtype, "gathered_logits")
    tape.collective("all_gather", "tp", parts.nbytes, dtype)
    out = new(tape, whole, dtype, "full_logits", parts.nbytes, Kernel.COPY)
    out.node = node
    return out


def _in_place(env: Env, logits: Tensor) -> Tensor:
    """`CrossEntropyFunction`: the saved logits *are* the gradient; only the owner of the bytes changes in backward."""
    tape, tokens, shape, dtype = env.tape, env.run.tokens, logits.shape, logits.dtype
    grad_slot = tape.slot("grad_hidden_states", "backward_temp")
    assert grad_slot == GRAD_HIDDEN

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        moved = saved[0].nbytes
        saved.clear()
        return [new(tape, shape, dtype, "grad_logits", moved, Kernel.LOSS)]

    node = tape.node((logits,), (logits,), backward)
    losses = new(tape, (tokens,), "fp32", "losses", logits.nbytes, Kernel.LOSS, 2 * logits.numel)
    stats = tape.empty((3 * tokens,), "fp32", "loss_statistics")
    if env.run.tp > 1:
        gathered = tape.empty((3 * tokens * env.run.tp,), "fp32", "loss_statistics")
        tape.collective("all_gather", "tp", gathered.nbytes, "fp32")
        del gathered
    tape.compute(Kernel.LOSS, 3 * logits.numel, 2 * logits.nbytes)
    out = new(tape, (), "fp32", "loss", losses.nbytes)
    out.node = node
    del stats
    return out
