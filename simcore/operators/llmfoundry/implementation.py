"""llm-foundry 0.3.0 (`llmfoundry/models`) under Composer 0.16 on eager PyTorch: tensors and tapes of its MPT.

Norms run in the compute dtype (`low_precision_layernorm`), query, key and value are views of one product, dropout of
nothing passes its input on. The head is the token embedding's module called once more. Cross entropy is flash-attn's
kernel over logits as they are.

The trainer (Composer 0.16.4 `trainer/trainer.py`, _train_microbatch) drops logits only when the next forward has
returned, and after backward runs the model's two metrics, LanguageCrossEntropy and LanguagePerplexity, over them: each
a log-softmax in their type, and under autocast a copy of it in fp32 for the negative log-likelihood.

`run.checkpoint`: none or full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, Head, LayerKind, Loss
from simcore.operators.implementation import Implementation
from simcore.operators.llmfoundry.attention import flash, triton
from simcore.operators.llmfoundry.fp8 import te_linear
from simcore.operators.llmfoundry.options import LlmfoundryOptions
from simcore.operators.shared import aten
from simcore.operators.shared.features import refuse
from simcore.operators.shared.layer_borders import (
    BEFORE,
    drop_held_logits,
    hand_on,
    hidden_state,
    hold_logits,
    leave_waiting,
    meet_waiting,
    nothing,
    run_backward,
    run_backward_of_loss,
    simple_part,
)
from simcore.operators.shared.mpt_tensors import tensors
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["IMPLEMENTATION", "record", "standing", "tensors"]

SERVED: Final = frozenset({"LayerNorm", "LayerNorm without a bias", "learned positions", "a GELU MLP",
                           "biases of the MLP", "biases of attention", "ALiBi"})
"""Features (`operators/shared/features.py`) of models that these layers are recorded with."""



def standing(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """{"attn_bias": bytes} of ALiBi's bias in fp32, a number each for a head and position.

    0 without ALiBi. `modeling_mpt.py`, _attn_bias.
    """
    found = [run.seq * branch.block.num_heads * 4 for kind, run in runs for branch in kind.branches
             if isinstance(branch.block, Attention) and branch.block.alibi]
    return {"attn_bias": max(found, default=0)}


def record(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Recording, forward and backward, of one layer of `kind` (or embedding, final norm, head, loss).

    Raises NotYet for features that are not recorded. `slots`, `comms`: shared tables of storages and communications,
    see `recording.rows.Recorder`; entries are added.
    """
    refuse(kind, SERVED, "llmfoundry")
    assert run.tp == run.cp == 1, "llm-foundry 0.3.0 has neither"
    tape = Tape(slots, comms, no_grad=run.no_grad)
    if isinstance(kind.block, Embedding):
        return _embedding(tape, kind.block, run)
    if isinstance(kind.block, Loss):
        return _loss(tape, kind.block, run)
    if isinstance(kind.block, FinalNorm):
        return simple_part(tape, run, nothing, kind.hidden, partial(_norm, tape, run, ""))
    if isinstance(kind.block, Head):
        weight = run.params["weight"]
        return simple_part(tape, run, leave_waiting if weight.tied else nothing, kind.hidden,
                           lambda x: aten.linear(tape, x, weight, "logits"))
    return _layer(tape, kind, run)


def _norm(tape: Tape, run: LayerWorkload, at: str, x: Tensor) -> Tensor:
    """`LPLayerNorm`: under FSDP's mixed precision weights and input have autocast's type already."""
    return aten.layer_norm(tape, x, run.params[f"{at}weight"], run.params.get(f"{at}bias"))


# ---- layers ---------------------------------------------------------------------------------------------------------
def _layer(tape: Tape, kind: LayerKind, run: LayerWorkload) -> RecordedLayer:
    """`MPTModel.forward` holds the embeddings of tokens and positions until it returns; the first layer posts that."""
    x: Tensor | None = hidden_state(tape, run, run.seq, kind.hidden)
    assert x is not None
    leaf = x.node
    held = _stem(tape, run, kind.hidden)
    body = partial(_body, tape, kind, run, x, _bias(tape, kind, run))
    x = None
    out = tape.checkpoint(body) if run.checkpoint == "full" else body()
    hand_on(tape, out)
    forward = tape.cut()
    del body
    after = tape.cut()
    held.clear()
    late = tape.cut()
    return RecordedLayer(forward, run_backward(tape, out, leaf, nothing), after, late, grads=tape.release_grads())


def _stem(tape: Tape, run: LayerWorkload, width: int) -> list[Tensor]:
    """Outputs of the embeddings that the stem's local variables hold; [] except in the first layer.

    Without learned positions the embedding of tokens is the first layer's input itself.
    """
    if not run.first or not LlmfoundryOptions.of(run.options).learned_positions:
        return []
    return [tape.external((batch, run.seq, width), run.compute, tape.slot(name, "activation"), BEFORE)
            for name, batch in (("tok_emb", run.batch), ("pos_emb", 1))]


def _bias(tape: Tape, kind: LayerKind, run: LayerWorkload) -> Tensor | None:
    """ALiBi's bias in the compute dtype: FSDP casts what a block is given (`cast_forward_inputs`)."""
    block = kind.branches[0].block
    if not (isinstance(block, Attention) and block.alibi):
        return None
    shape = (1, block.num_heads, 1, run.seq)
    return Tensor(None, shape, "fp32") if run.compute == "fp32" else aten.new(tape, shape, run.compute, "attn_bias")


def _body(tape: Tape, kind: LayerKind, run: LayerWorkload, x: Tensor, bias: Tensor | None) -> Tensor:
    """`MPTBlock.forward`."""
    attention, mlp = kind.branches
    a = _norm(tape, run, "norm_1.", x)
    b = _attention(tape, kind, run, attention, a, bias)
    x = aten.add(tape, x, b, "residual")
    m = _norm(tape, run, "norm_2.", x)
    n = _mlp(tape, kind, run, mlp, m)
    return aten.add(tape, x, n, "residual")


def _linear(tape: Tape, kind: LayerKind, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    weight, bias = run.params[f"{name}.weight"], run.params.get(f"{name}.bias")
    label = name.rpartition(".")[2]
    if kind.fp8:
        return te_linear(tape, x, weight, bias, label)
    return aten.linear(tape, x, weight, label, bias=bias)


def _attention(tape: Tape, kind: LayerKind, run: LayerWorkload, branch: Branch, x: Tensor,
               bias: Tensor | None) -> Tensor:
    """`GroupedQueryAttention.forward`."""
    block = branch.block
    assert isinstance(block, Attention)
    qkv = _linear(tape, kind, run, f"{branch.name}.Wqkv", x)
    out = (flash(tape, run, block, qkv) if LlmfoundryOptions.of(run.options).attn_impl == "flash" else
           triton(tape, run, block, qkv, bias))
    return _linear(tape, kind, run, f"{branch.name}.out_proj", out)


def _mlp(tape: Tape, kind: LayerKind, run: LayerWorkload, branch: Branch, x: Tensor) -> Tensor:
    """`MPTMLP.forward`."""
    activated = aten.gelu(tape, _linear(tape, kind, run, f"{branch.name}.up_proj", x))
    return _linear(tape, kind, run, f"{branch.name}.down_proj", activated)


# ---- parts around the layers ----------------------------------------------------------------------------------------
def _embedding(tape: Tape, block: Embedding, run: LayerWorkload) -> RecordedLayer:
    """`wte(input_ids) + wpe(pos)`: the sum is the first layer's, its parts are variables of the stem."""
    token = run.params["wte.weight" if block.positions else "weight"]
    out = aten.embedding(tape, token, run.batch, run.seq)
    if block.positions:
        parts = {"tok_emb": out, "pos_emb": _positions(tape, run)}
        out = aten.add(tape, parts["tok_emb"], parts["pos_emb"], "embedding_sum")
        for name, part in parts.items():
            tape.rename(part.storage, tape.slot(name, "activation"))
            part.disown()
        parts.clear()
    hand_on(tape, out)
    forward = tape.cut()
    return RecordedLayer(forward, run_backward(tape, out, None, meet_waiting if token.tied else nothing),
                     grads=tape.release_grads())


def _positions(tape: Tape, run: LayerWorkload) -> Tensor:
    """The embedding of the numbers of positions, which its node keeps."""
    numbers = aten.new(tape, (run.seq,), "int64", "pos")
    table = replace(run.params["wpe.weight"], tied=False)  # whatever the table beside it is
    out = aten.embedding(tape, table, 1, run.seq)
    tape.save(out.node, numbers)
    return out


# ---- loss -----------------------------------------------------------------------------------------------------------
def _loss(tape: Tape, block: Loss, run: LayerWorkload) -> RecordedLayer:
    """`self.state.outputs` has the logits of the microbatch before until this one's are there."""
    rest = drop_held_logits(tape, run, block.vocab)
    logits: Tensor | None = hidden_state(tape, run, run.seq, block.vocab)
    assert logits is not None
    leaf = logits.node
    loss = _fused_cross_entropy(tape, logits.view(run.tokens, block.vocab))
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    for _ in range(2):
        _metric(tape, logits.view(run.tokens, block.vocab), in_fp32=not LlmfoundryOptions.of(run.options).fp8)
    logits = None
    hold_logits(tape, run, block.vocab)
    return RecordedLayer(forward, backward, late=tape.cut(), seed=seed, rest=rest)


def _fused_cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """flash-attn 1.0.9 `losses/cross_entropy.py`, SoftmaxCrossEntropyLossFn: logits and one number a row are kept."""
    shape, dtype, moved, rows = logits.shape, logits.dtype, logits.nbytes, logits.shape[:1]

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        _grad_loss = aten.new(tape, rows, "fp32", "grad_losses")
        aten.new(tape, rows, "uint8", "ignored", 8 * rows[0])
        return [aten.new(tape, shape, dtype, "grad_logits", moved, Kernel.LOSS)]

    targets = aten.new(tape, rows, "int64", "targets", 8 * rows[0])
    node = tape.node((logits,), (logits,), backward)
    log_sum_exp = tape.empty(rows, "fp32", "log_sum_exp")
    losses = aten.new(tape, rows, "fp32", "losses", moved, Kernel.LOSS)
    tape.save(node, log_sum_exp, targets)
    for _ in range(2):  # losses of targets that are ignored, and the number of all others
        aten.new(tape, rows, "uint8", "ignored", 8 * rows[0])
    out = aten.new(tape, (), "fp32", "loss", losses.nbytes)
    out.node = node
    return out


def _metric(tape: Tape, logits: Tensor, *, in_fp32: bool) -> None:
    """Composer 0.16.4 `metrics/nlp.py`, LanguageCrossEntropy.update: `torch.nn.CrossEntropyLoss`, without gradients.

    torch's autocast keeps log_softmax in the logits' type, because cross entropy names it, and runs nll_loss in fp32.
    """
    likelihoods = aten.select(tape, logits.detach(), logits.shape, logits.dtype, "log_softmax")
    if in_fp32:
        likelihoods = aten.select(tape, likelihoods, logits.shape, "fp32", "to_fp32")
    aten.new(tape, (), "fp32", "metric", 8 * logits.shape[0])


IMPLEMENTATION: Final = Implementation(record=record, tensors=tensors, standing=standing)
