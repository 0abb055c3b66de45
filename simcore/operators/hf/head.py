"""The last norm and the output projection of a transformers model, also where the loss makes the logits itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Head, LayerKind
from simcore.operators.hf.autocast import is_autocast
from simcore.operators.hf.chunked import FUSED, LM_HEAD, chunked_loss, fused_head, fused_lm_head
from simcore.operators.hf.families import norm
from simcore.operators.hf.layers import linear
from simcore.operators.hf.liger import liger_loss
from simcore.operators.hf.losses import cut_loss
from simcore.operators.hf.options import HfOptions
from simcore.operators.hf.unsloth import fast_norm, has_fast_layers
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import gather_last
from simcore.operators.shared.layer_borders import leave_waiting, nothing, simple_part
from simcore.operators.shared.logits import changes_logits, finished_logits
from simcore.operators.shared.pairs.kept_logits import kept_rows
from simcore.recording.layer import FUSED_PAIRS, KEPT, LayerWorkload, RecordedLayer
from simcore.recording.tape import Tape, Tensor

__all__ = ["VALUE_HEADS", "final_norm", "head"]

VALUE_HEADS: Final = (
    "arcee", "deepseek_v3", "gemma", "gemma2", "glm", "glm4", "gpt_oss", "llama", "mistral", "mixtral", "nemotron",
    "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "seed_oss", "starcoder2")
"""Model types whose ForTokenClassification is the generic one: transformers 5.23 `modeling_layers.py`
GenericForTokenClassification, a linear `score` with a bias behind the decoder."""


def final_norm(tape: Tape, kind: LayerKind, run: LayerWorkload) -> RecordedLayer:
    """Recording, forward and backward, of the norm before the output projection.

    Over tp it is given whole sequences.
    """
    weight, run = run.params["weight"], replace(run, tp=1)
    if has_fast_layers(run):
        return simple_part(tape, run, nothing, kind.hidden, lambda hidden: fast_norm(tape, hidden, weight, last=True))
    return simple_part(tape, run, nothing, kind.hidden, lambda hidden: norm(tape, run, "", hidden, kind.family),
                       "fp32" if HfOptions.of(run.options).wide_outputs else _stream(kind))


def _stream(kind: LayerKind) -> str:
    """The type of a hidden state that is not the compute dtype's."""
    return "fp32" if kind.wide else ""


def head(tape: Tape, kind: LayerKind, block: Head, run: LayerWorkload) -> RecordedLayer:
    """Recording, forward and backward, of the output projection: of logits, or of the loss itself.

    The losses `cut`, `liger`, `chunked`, `fused_linear` and `fused_lm_head` make the logits themselves. For these it
    raises NotYet if the head has an adapter, if the hidden state is fp32 (but for `cut`), or if logits are scaled or
    capped, of which `fused_lm_head` alone knows.
    """
    weight = run.params["weight"]
    body = {"cut": cut_loss, "liger": liger_loss, "chunked": chunked_loss, FUSED: fused_head,
            **dict.fromkeys((LM_HEAD, *FUSED_PAIRS), fused_lm_head)}.get(run.loss, _logits)
    if body != _logits and ("lora_a.weight" in run.params or block.bias):
        raise NotYet(Problem("training.loss", f"not yet: {run.loss} with an adapter or a bias of lm_head"))
    caps = run.loss == "liger" and kind.family == "gemma2" and not kind.wide  # its kernel keeps them below the cap
    knows = caps or body == fused_lm_head
    is_wide = kind.wide or (run.given == "fp32" and body != cut_loss)  # which casts what it is given, as products do
    if ((changes_logits(kind) and not knows) or is_wide) and body != _logits:
        raise NotYet(Problem("training.loss", f"not yet: {run.loss} of scaled or capped logits or a hidden state in "
                             "fp32"))
    whole = replace(run, tp=1)  # over tp it is given whole sequences too
    finish = _unchanged if knows else finished_logits
    return simple_part(tape, whole, leave_waiting if weight.tied else nothing, block.hidden,
                       lambda hidden: finish(tape, kind, body(
                           tape, run, aten.cast(tape, hidden, run.compute) if kind.wide or (
                               run.given and body == cut_loss) else hidden)), _stream(kind))


def _unchanged(_tape: Tape, _kind: LayerKind, loss: Tensor) -> Tensor:
    """`finished_logits` of a loss whose own kernel has changed them (Liger-Kernel 0.7.0 `model/gemma2.py`)."""
    return loss


def _logits(tape: Tape, run: LayerWorkload, hidden: Tensor) -> Tensor:
    """Logits of the whole vocabulary, which a head that tp splits gathers (`colwise_gather_output`).

    One that is the embedding's weight is whole where parts of matrices are plain tensors.
    """
    if run.loss in KEPT:
        hidden = kept_rows(tape, run, hidden, casts=is_autocast(run) and hidden.dtype != run.compute)
    logits = linear(tape, run, "", hidden)
    is_whole = run.params["weight"].tied and HfOptions.of(run.options).shards == "tensors"
    return logits if run.tp == 1 or is_whole else gather_last(tape, run, logits)
