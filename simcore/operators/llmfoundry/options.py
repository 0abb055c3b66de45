"""Options of llm-foundry's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcore.recording.options import ImplementationOptions

__all__ = ["AttentionImplementation", "LlmfoundryOptions"]

AttentionImplementation = Literal["triton", "flash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmfoundryOptions(ImplementationOptions):
    """Options of llm-foundry's layers in one run.

    `attn_impl`: attention by its Triton kernel or by flash-attn. `learned_positions`: the model has a table of them.
    `fp8`: linears of blocks are TransformerEngine's in fp8_autocast, without torch's own autocast.
    """

    attn_impl: AttentionImplementation = "triton"
    learned_positions: bool = False
    fp8: bool = False
