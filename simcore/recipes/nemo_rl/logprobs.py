"""Log-probabilities: in which chunks passes and the loss make them, and what a cross entropy leaves out of the loss.

NeMo RL 7ea279ab `distributed/model_utils.py`. Workers of Megatron cut passes and every loss (`models/megatron/train.py`
LossPostProcessor, LogprobsPostProcessor), workers of DTensor passes alone (`models/automodel/train.py`).
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.nemo_rl.keys.switches import read_switches
from simcore.recipes.reader import Reader, Taken

__all__ = ["read_logprobs"]

_CHUNK: Final = "policy.logprob_chunk_size"
_DEFERRED: Final = "policy.megatron_cfg.defer_fp32_logits"
_FUSED: Final = "policy.megatron_cfg.use_fused_linear_logprobs"
_FUSED_CHUNK: Final = "policy.megatron_cfg.fused_linear_logprobs_chunk_size"


def read_logprobs(reader: Reader, draft: Draft, kind: str, *, by_megatron: bool) -> None:
    """Writes the chunks of log-probabilities, and tells how a loss without any is counted. `kind`: sft, dpo or grpo."""
    chunk = reader.integer(_CHUNK)
    if by_megatron and reader.look(_FUSED) is True:
        _read_fused_head(reader, draft, chunk)
        return
    if chunk is not None and chunk.value < 1:
        draft.fail(chunk.where, f"{_CHUNK}: expected 1 or more, got {chunk.value}")
        draft.use(chunk)
    elif kind == "sft" and not by_megatron:
        draft.idle(chunk, "the loss of DTensor's workers takes all tokens at once (models/automodel/train.py "
                          "LossPostProcessor)")
    else:
        draft.put("training.logprob_chunk_size", chunk)
    if not by_megatron:
        return
    draft.idle(reader.integer(_FUSED_CHUNK), "of log-probabilities that are fused with the head")
    if chunk is None:
        read_switches(reader, draft, {_DEFERRED: "logits are counted as the loss of Megatron takes them"})
        _read_cross_entropy(reader, draft, kind)
    else:
        _read_deferred(reader, draft, chunk.where)
        draft.idle(reader.flag(_FUSED), "the default")


def _read_deferred(reader: Reader, draft: Draft, where: str) -> None:
    deferred = reader.flag(_DEFERRED)
    draft.use(deferred, why="chunks of logits are cast to fp32")
    if deferred is None or not deferred.value:
        draft.fail(deferred.where if deferred else where, f"{_DEFERRED} is not true, and {_CHUNK} is given "
                   "[defer_fp32_logits must be True if logprob_chunk_size is set, NeMo RL 7ea279ab "
                   "models/megatron/setup.py _validate_chunking_config]")


def _read_fused_head(reader: Reader, draft: Draft, chunk: Taken[int] | None) -> None:
    """Writes log-probabilities that are fused with the head, in chunks of their own."""
    size = reader.integer(_FUSED_CHUNK)
    draft.put("training.loss", reader.flag(_FUSED), "fused_log_probs")
    if size is None or size.value < 1:
        draft.fail(size.where if size else draft.path, f"{_FUSED_CHUNK}: expected a whole number of tokens, which "
                   f"{_FUSED} asks for [NeMo RL 7ea279ab models/megatron/setup.py:1864]")
        draft.use(size)
    else:
        draft.put("training.logprob_chunk_size", size)
    draft.idle(chunk, "log-probabilities are those of the fused head")
    read_switches(reader, draft, {_DEFERRED: "there are no logits of all tokens"})


def _read_cross_entropy(reader: Reader, draft: Draft, kind: str) -> None:
    """Loss of log-probabilities; the workloads dpo and grpo say themselves that a cross entropy stands in for it.

    NeMo RL 7ea279ab distributed/model_utils.py, DistributedLogprob: logits in fp32, less their maximum, and their
    exponentials are there at once, 12 bytes a token and row of the vocabulary, where Megatron's cross entropy has 4.
    Without the key nothing is fused (algorithms/grpo.py:661, dpo.py:292).
    """
    if kind != "sft":
        draft.idle(reader.flag(_FUSED), "the default")
        return
    told = f"log-probabilities are counted as Megatron's cross entropy over tp ranks: {_more(draft)}"
    fused = reader.flag(_FUSED)
    if fused is None:
        draft.unmodelled_default(_FUSED, False, told)  # noqa: FBT003 - a value
    else:
        draft.unmodelled(fused, told)


def _more(draft: Draft) -> str:
    """Memory of log-probabilities beside that of a cross entropy."""
    training, mesh = draft.values.get("training", {}), draft.values.get("mesh", {})
    tokens, tp = (training.get("seq_len"), training.get("micro_batch_size", 1)), mesh.get("tp", 1)
    is_known, cp = all(isinstance(one, int) for one in tokens), mesh.get("cp", 1)
    count = f"{tokens[0] * tokens[1] // cp:,} tokens" if is_known else "tokens"
    rows = f"rows of the vocabulary / {tp}" if tp > 1 else "rows of the vocabulary"
    return f"while they are computed they take 8 bytes x {count} x {rows} more than is counted"
