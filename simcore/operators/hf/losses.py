"""Losses of a transformers model: in the causal model, and those that make the logits themselves.

Sources: transformers 5.23 `loss/loss_utils.py`, cut-cross-entropy d42911f7; in chunks: `chunked`; Liger's: `liger`.
"""

from __future__ import annotations

from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Loss
from simcore.operators.hf import remote_code
from simcore.operators.hf.autocast import is_autocast
from simcore.operators.hf.chunked import FUSED, LM_HEAD
from simcore.operators.hf.layers import is_of_hub
from simcore.operators.hf.options import HfOptions
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE, hidden_state, run_backward_of_loss
from simcore.operators.shared.pairs.kept_logits import kept_loss
from simcore.operators.shared.pairs.preference import preference_loss, rewards_loss
from simcore.operators.shared.top_k import TOP_K, top_k_loss
from simcore.operators.shared.wide_losses import POLICY, WIDE, policy_loss, sum_of_rows, wide_loss
from simcore.recording.kernel_shape import shape_of
from simcore.recording.layer import KEPT, PREFERENCE, REWARDS, LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Node, Section, Tape, Tensor

__all__ = ["EAGER", "PADDED", "cut_loss", "loss_of"]

PADDED: Final = "flash_padded"
"""Loss of verl's actor over padded rows."""
_FLASH: Final = ("flash", "flash_eager", "flash_entropy", "flash_entropy_eager")
_ENTROPY: Final = ("flash_entropy", "flash_entropy_eager")
EAGER: Final = ("flash_eager", "flash_entropy_eager")
"""Losses over rows without padding: all; with an entropy in the loss; whose entropy is not compiled."""
_WIDE_GRADS: Final = 3
_NARROW_GRADS: Final = 2
"""Gradients of one number a token in backward of the loss of values: in fp32, and in the compute dtype."""


def cut_loss(tape: Tape, run: LayerWorkload, hidden: Tensor) -> Tensor:
    """Loss, a scalar in fp32, of the head's input `hidden` and its weight, without logits in memory.

    cut-cross-entropy d42911f7 `cce.py`, impl "cce", block by block. For backward it saves both, the log-sum-exp,
    labels, which of them count, and the mean of each logit. Gradients are summed in the compute dtype
    (`cce_backward.py`: accum_e_fp32 and accum_c_fp32 are off).
    """
    weight, tokens = run.params["weight"], run.tokens
    shape, dtype, vocab = hidden.shape, hidden.dtype, weight.shape[0]
    needs, flops = (aten.needs_grad(hidden), weight.trainable), 2 * tokens * weight.numel
    moved, logits = hidden.nbytes + weight.nbytes, shape_of(tokens, vocab)

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        wide = aten.new(tape, (vocab,), "int64", "vocabulary_order")
        _order = aten.new(tape, (vocab,), "int32", "vocabulary_order")
        del wide
        tape.compute(Kernel.GEMM, flops, moved, logits)  # the logits once more
        made = [aten.new(tape, s, dtype, name, moved, Kernel.GEMM, flops) if need else None for s, name, need in (
            (shape, "grad_hidden", needs[0]), (weight.shape, "grad_weight", needs[1]))]
        return [*made]

    labels = aten.new(tape, (tokens,), "int64", "labels")
    valids = aten.new(tape, (tokens,), "int64", "valids", labels.nbytes)
    node = tape.node((hidden, weight), (hidden, weight, labels, valids), backward)
    lse = aten.new(tape, (tokens,), "fp32", "log_sum_exp", moved, Kernel.GEMM, flops, logits)
    means = aten.new(tape, (vocab,), "fp32", "logit_means") if any(needs) else None
    losses = aten.new(tape, (tokens,), "fp32", "losses", moved)
    tape.save(node, lse, means)
    del labels, valids, lse, means
    out = aten.new(tape, (), "fp32", "loss", losses.nbytes, Kernel.LOSS)
    out.node = node
    return out


def loss_of(tape: Tape, block: Loss, run: LayerWorkload) -> RecordedLayer:
    """Recording of the loss of the logits, or of its division by the number of labels.

    The latter if the head has made the loss already (`cut`, `liger`, `chunked`, `fused_linear`, `fused_lm_head`).
    """
    cut = run.loss in ("cut", "liger", "chunked", FUSED, LM_HEAD)  # the head has made it already
    if run.loss == "log_probs":
        return _log_probs_loss(tape, block, run)
    if run.loss == WIDE:
        return wide_loss(tape, block.vocab, run)
    if run.loss in POLICY:
        return policy_loss(tape, block.vocab, run)
    if run.loss == REWARDS:
        return rewards_loss(tape, run)
    if run.loss in KEPT:
        return kept_loss(tape, run, block.vocab, wide=block.upcast or HfOptions.of(run.options).wide_logits)
    if run.loss in PREFERENCE:
        return preference_loss(tape, run, block.vocab, wide=block.upcast or is_autocast(run))
    if run.loss == "values":
        return _values_loss(tape, run)
    logits: Tensor | None = _scalar(tape, run) if cut else hidden_state(tape, run, run.seq, block.vocab,
                                                                                run.compute)
    assert logits is not None
    leaf = logits.node
    if block.upcast and not cut:
        logits = aten.cast(tape, logits, "fp32")
    loss = (aten.mul_scalar(tape, logits) if cut else _padded_loss(tape, logits) if run.loss == PADDED else
            _flash_loss(tape, run.loss, logits) if run.loss in _FLASH else
            top_k_loss(tape, logits) if run.loss == TOP_K else _causal_loss(tape, run, logits))
    forward = tape.cut()
    outputs = [logits] if run.loss == "hf_keep_logits" else []
    logits = None
    after = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    outputs.clear()
    return RecordedLayer(forward, backward, after, tape.cut(), seed)


def _flash_loss(tape: Tape, name: str, logits: Tensor) -> Tensor:
    """Loss, a scalar in fp32, of logits that are divided by the temperature in place: see [Note: in place].

    [Note: in place] verl b178a3cd `workers/actor/dp_actor.py` _forward_micro_batch, flash-attn 2.8 `ops/triton/
    cross_entropy.py` with inplace_backward: the gradient takes the place of the logits. `logits.squeeze(0).div_(t)`
    changes a view, so that autograd copies a gradient of the base twice and divides it: four of the logits' size at
    once (`tests/truth/probe_verl.py`). With an entropy in the loss (`name` flash_entropy) both gradients are tensors of
    their own, and the entropy's comes first: that of a compiled one is all that it makes of the logits' size.
    """
    shape, dtype = logits.shape, logits.dtype

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        size = logits_bytes
        before = _grad_of_entropy(tape, saved, shape, dtype, is_eager=name in EAGER) if name in _ENTROPY else None
        if before is not None:
            _scores = aten.new(tape, shape, dtype, "grad_of_scores", size)
            del _scores
            saved.clear()
        wide = aten.new(tape, shape, dtype, "grad_of_view", 2 * size)
        saved.clear()
        before = None
        made = aten.new(tape, shape, dtype, "grad_of_base", 2 * size)
        _copy = aten.new(tape, shape, dtype, "grad_copied", 2 * size)
        _quotient = aten.new(tape, shape, dtype, "grad_divided", 2 * size)
        tape.compute(Kernel.ELEMENTWISE, 0, 2 * size)
        del wide, _copy, _quotient
        return [made]

    logits_bytes = logits.nbytes
    tape.compute(Kernel.ELEMENTWISE, logits.numel, 2 * logits_bytes)
    rows = logits.numel // shape[-1]
    node = tape.node((logits,), (logits,), backward)
    lse = aten.new(tape, (rows,), "fp32", "log_sum_exp")
    losses = aten.new(tape, (rows,), "fp32", "losses", logits_bytes, Kernel.LOSS)
    tape.save(node, lse)
    if name in _ENTROPY:
        _entropy(tape, node, shape, logits_bytes, is_eager=name in EAGER)
    out = aten.new(tape, (), "fp32", "loss", losses.nbytes, Kernel.LOSS)
    out.node = node
    return out


def _padded_loss(tape: Tape, logits: Tensor) -> Tensor:
    """Loss, a scalar in fp32, of padded rows of logits [b, s, vocab], whose answers are scored in place.

    verl b178a3cd `workers/actor/dp_actor.py` _forward_micro_batch without `use_remove_padding`: logits are divided in
    place, and the answers' part of several rows is copied for the cross entropy, whose gradient takes the copy's place.
    Backward makes a gradient of all rows of it, then divides it. All tokens of a row are counted as its answer; the
    highest moments are the same.
    """
    shape, dtype, size, rows = logits.shape, logits.dtype, logits.nbytes, logits.numel // logits.shape[-1]

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        whole = aten.new(tape, shape, dtype, "grad_of_rows", 2 * size)
        saved.clear()
        made = aten.new(tape, shape, dtype, "grad_divided", 2 * size)
        del whole
        return [made]

    tape.compute(Kernel.ELEMENTWISE, logits.numel, 2 * size)
    copied = shape[0] > 1
    node = tape.node((logits,), () if copied else (logits,), backward)
    if copied:
        answers = aten.new(tape, shape, dtype, "answers", size)
        tape.save(node, answers)
        del answers
    return sum_of_rows(tape, node, rows, size)


def _entropy(tape: Tape, node: Node | None, shape: tuple[int, ...], size: int, *, is_eager: bool) -> None:
    """Records the entropy of logits of `size` bytes, and what `node` keeps of it: see [Note: eager entropy].

    [Note: eager entropy] verl b178a3cd `utils/torch_functional.py:224` entropy_from_logits. Autocast on CUDA takes
    softmax, logsumexp and sum in fp32 (torch 2.13 `ATen/autocast_mode.h` AT_FORALL_FP32), and each casts the logits for
    itself. Backward of logsumexp makes three tensors of that size. Compiled it is one kernel over rows, forward and
    backward.
    """
    tape.compute(Kernel.ELEMENTWISE, size, size)
    if not is_eager:
        return
    wide = aten.new(tape, shape, "fp32", "wide_logits", size)
    shares = aten.new(tape, shape, "fp32", "shares", 2 * size)
    del wide
    tape.save(node, shares)
    del shares
    wide = aten.new(tape, shape, "fp32", "wide_logits", size)
    _powers = aten.new(tape, shape, "fp32", "powers", 2 * size)
    del _powers
    tape.save(node, wide)
    del wide
    _product = aten.new(tape, shape, "fp32", "weighed_logits", 3 * size)


def _grad_of_entropy(tape: Tape, saved: list[Tensor], shape: tuple[int, ...], dtype: str, *, is_eager: bool) -> Tensor:
    """Gradient of the entropy [..., vocab] in the logits' `dtype`; takes what `_entropy` kept from `saved`."""
    if not is_eager:
        return aten.new(tape, shape, dtype, "grad_of_entropy", saved[0].nbytes)
    size = saved[0].nbytes
    wide: Tensor | None = saved.pop()
    shares: Tensor | None = saved.pop()
    to_shares: Tensor | None = aten.new(tape, shape, "fp32", "grad_of_shares", size)
    grad: Tensor | None = aten.new(tape, shape, "fp32", "grad_of_product", 2 * size)
    made = aten.new(tape, shape, dtype, "grad_of_entropy", 2 * size)
    grad = None
    powers = [aten.new(tape, shape, "fp32", name, 2 * size) for name in ("differences", "powers")]
    grad = aten.new(tape, shape, "fp32", "grad_of_sum", 4 * size)
    powers.clear()
    wide = None
    for name in ("grad_of_sum", "grad_of_softmax"):
        if name == "grad_of_softmax":
            grad = aten.new(tape, shape, "fp32", name, 4 * size)
            shares = to_shares = None
        _narrow = aten.new(tape, shape, dtype, "grad_of_entropy", 2 * size)
        grad = None
        del _narrow
    assert wide is shares is to_shares is grad is None
    return made


def _values_loss(tape: Tape, run: LayerWorkload) -> RecordedLayer:
    """Recording of the clipped loss of values [b, s, 1], in the compute dtype: see [Note: loss of values].

    [Note: loss of values] verl b178a3cd `workers/critic/dp_critic.py` _forward_micro_batch puts the values of a row in
    places of a padded batch, so that they are copied; `trainer/ppo/core_algos.py:1832` compute_value_loss clips them
    between the old values less and plus a number, and takes the larger of both squared differences from the returns,
    which are fp32. A sequence is counted as if all of its tokens were answers. Backward is given the most
    that it has at once (`tests/truth/probe_critic.py`).
    """
    values = hidden_state(tape, run, run.seq, 1, run.compute)
    leaf, shape, dtype, tokens = values.node, values.shape, values.dtype, run.tokens

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        wide = [aten.new(tape, (tokens,), "fp32", "grad_squares", 8 * tokens) for _ in range(_WIDE_GRADS)]
        narrow = [aten.new(tape, (tokens,), dtype, "grad_clipped", 6 * tokens) for _ in range(_NARROW_GRADS)]
        del wide
        made = aten.new(tape, shape, dtype, "grad_values", narrow[0].nbytes)
        del narrow
        return [made]

    rows = aten.new(tape, (tokens,), "int64", "rows", 8 * tokens)
    node = tape.node((values,), (rows,), backward)
    padded = aten.new(tape, (tokens,), dtype, "padded_values", values.nbytes)
    low, high, least, clipped = (aten.new(tape, (tokens,), dtype, name, 2 * padded.nbytes)
                                 for name in ("lower_bound", "upper_bound", "least", "clipped_values"))
    kept = [aten.new(tape, (tokens,), "fp32", name, 6 * tokens) for name in ("difference", "square") * 2]
    counts = aten.new(tape, (tokens,), "uint8", "counts", 8 * tokens)
    masked = [aten.new(tape, (tokens,), "fp32", name, 8 * tokens) for name in (
        "larger", "is_clipped", "counted", "weighed")]
    tape.save(node, padded, low, high, least, *kept, counts)
    del padded, low, high, least, clipped, kept, rows, values, masked, counts
    loss = aten.new(tape, (), "fp32", "loss", 4 * tokens)
    loss.node = node
    forward = tape.cut()
    seed, undone, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    return RecordedLayer(forward, undone, Section(()), tape.cut(), seed)


def _log_probs_loss(tape: Tape, block: Loss, run: LayerWorkload) -> RecordedLayer:
    """Recording of the loss of each token by the trainer itself, behind the model's own, which nothing reads.

    LLaMA-Factory ff6d4d12 `v1/core/base_trainer.py`, compute_log_probs: the model gets the labels too, so that it makes
    its loss, whose graph lives as long as its output, until the trainer's losses are there. Ranks that share sequences
    shift labels alone (`v1/plugins/model_plugins/parallelization/sequence_parallel.py`, sequence_parallel_loss).
    """
    if block.upcast or is_of_hub(run):
        raise NotYet(Problem("training.loss", "not yet: log_probs of logits that the model casts, or of a repository"))
    logits = hidden_state(tape, run, run.seq, block.vocab, run.compute)
    leaf = logits.node
    of_model = _causal_loss(tape, run, logits)
    wide = aten.cast(tape, logits, "fp32")
    shifted = wide if run.cp > 1 else remote_code.shifted(tape, wide)
    count = shifted.shape[0] * shifted.shape[1]
    target = aten.new(tape, (count,), "int64", "shifted_labels", 8 * run.tokens)
    losses = aten.cross_entropy(tape, shifted.view(count, block.vocab), target, each=True)
    del of_model, logits, wide, shifted, target
    weights = aten.new(tape, (1, count), "fp32", "loss_weights")
    total = aten.sum_last(tape, aten.mul(tape, aten.neg(tape, aten.neg(tape, losses)).view(1, count), weights))
    del losses, weights
    loss = aten.mul_scalar(tape, aten.mul_scalar(tape, total.view()))
    del total
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    return RecordedLayer(forward, backward, Section(()), tape.cut(), seed)


def _scalar(tape: Tape, run: LayerWorkload) -> Tensor:
    loss = tape.external((), "fp32", HIDDEN, BEFORE)
    loss.node = Node() if run.input_requires_grad else None
    return loss


def _causal_loss(tape: Tape, run: LayerWorkload, logits: Tensor) -> Tensor:
    """Logits in fp32, labels shifted by one, cross entropy."""
    logits = aten.cast(tape, logits, "fp32")
    if HfOptions.of(run.options).sequences == "ring":  # the trainer has shifted them
        return aten.cross_entropy(tape, logits.view(run.tokens, logits.shape[-1]), Tensor(None, (run.tokens,), "int64"))
    labels = aten.new(tape, (run.batch, run.seq + 1), "int64", "labels", 8 * run.tokens)
    target = labels  # a slice of one row is contiguous
    if run.batch > 1:
        target = aten.select(tape, labels, (run.batch, run.seq), "int64", "shifted_labels")
    if is_of_hub(run):
        logits = remote_code.shifted(tape, logits)
        return aten.cross_entropy(tape, logits.view(run.tokens - run.batch, logits.shape[-1]), target)
    return aten.cross_entropy(tape, logits.view(run.tokens, logits.shape[-1]), target)
