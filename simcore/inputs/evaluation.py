"""The block `evaluation` of a scenario: passes over held-out sequences between the steps of a training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simcore.inputs.block import Block
from simcore.inputs.bounds import SEQ_LEN, SEQUENCES
from simcore.inputs.training import Length, Sequences

__all__ = ["Evaluation"]

_Number = Annotated[int, Field(ge=1, le=SEQUENCES)]


class Evaluation(Block):
    """Evaluation during training: forward passes without gradients, while the training's tensors stay there."""

    micro_batch_size: Sequences | None = Field(
        default=None, description="Sequences per rank of one evaluation pass; left out: the trainer's default"
    )
    seq_len: Length | None = Field(
        default=None, description="Tokens of an evaluated sequence; left out: training.seq_len"
    )
    sequences: _Number | None = Field(
        default=None, description="Sequences of the evaluation set, over all ranks; left out: one pass on each rank"
    )
    keep_logits: bool = Field(
        default=False, description="Logits of all ranks are gathered and kept for metrics, as the Trainer of "
        "transformers does with compute_metrics"
    )
    accumulation_steps: _Number | None = Field(
        default=None, description="Passes after which kept logits go to the host (eval_accumulation_steps); left out: "
        "at the end"
    )
    generate_tokens: Annotated[int, Field(ge=0, le=SEQ_LEN)] = Field(
        default=0, description="Tokens that are generated for each sequence (predict_with_generate); 0: none"
    )
