"""Options of torchtitan's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.recording.options import ImplementationOptions

__all__ = ["KEEP_EXCHANGE", "TorchtitanOptions"]

KEEP_EXCHANGE: Final = ("deepseek_v2", "deepseek_v3", "llama4_text", "gpt_oss")
"""Families whose checkpoints by operator keep rows that were exchanged (0.2.2 `models/*/infra/parallelize.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchtitanOptions(ImplementationOptions):
    """Options of torchtitan's layers in one run.

    `early_stop`: a replay ends where backward has all that it needs. `keeps_logits`: a pipeline stage holds its outputs
    until its backward pass is over (torch 2.13 `distributed/pipelining/stage.py`, `fwd_cache`).
    `disable_loss_parallel`: the loss gathers the logits of all tp ranks. `whole_batch`: each context parallel rank
    loads whole sequences, [Note: context parallel inputs] in `frameworks/fsdp2/torchtitan.py`. `compiled_blocks`,
    `compiled_loss`: torch.compile runs on blocks, on the loss. `repeat_kv`: attention gets keys and values that are
    copied for every head, as up to 0.2.1. `keeps_exchange`: checkpoints by operator keep rows that were exchanged,
    where the model's list has the exchange. `async_tp`: products of compiled blocks run beside collectives of tp.
    `fp8_rows`: linears in fp8 have a scale a row. `flex`: attention is a compiled region, whose inputs a checkpoint by
    operator keeps too.
    """

    early_stop: bool = False
    keeps_logits: bool = False
    disable_loss_parallel: bool = False
    whole_batch: bool = False
    compiled_blocks: bool = False
    compiled_loss: bool = False
    repeat_kv: bool = False
    keeps_exchange: bool = True
    async_tp: bool = False
    fp8_rows: bool = False
    flex: bool = False

    def bytes_of_tokens(self, batch: int, seq: int, cp: int) -> int:
        """Bytes of a microbatch's tokens and labels.

        With `whole_batch` those of all `cp` ranks too, from which they are sliced, and their int32 positions.
        """
        return (2 * 8 + (4 + 2 * 8 * cp) * self.whole_batch) * batch * seq

    @property
    def outputs_whole_vocabulary(self) -> bool:
        """True if the last stage outputs logits of the whole vocabulary (`disable_loss_parallel`)."""
        return self.disable_loss_parallel
