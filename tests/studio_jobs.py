"""A small job and a recipe of the studio's tests, and how they ask about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simcore.studio.searching import Ready
from simcore.studio.server import Lanes

__all__ = ["HERE", "JOB", "RECIPE", "Asked", "NoLanes"]

HERE: Final = "http://127.0.0.1:8765"
JOB: Final[dict[str, Any]] = {
    "name": "mine", "model": "llama-3.2-1b", "topology": "dgx-h100", "framework": "fsdp2", "mesh": {"dp_shard": 8},
    "training": {"seq_len": 2048, "global_batch_size": 8, "method": "full"}}
RECIPE: Final = """\
base_model: Qwen/Qwen3-8B
datasets: [{path: mine}]
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
attn_implementation: flash_attention_2
optimizer: adamw_torch_fused
"""
"""A recipe of axolotl that leaves GPUs and machine open."""
Asked = Callable[..., Any]


class NoLanes(Lanes):
    """A studio without worker processes."""

    def __init__(self) -> None:
        self._lanes, self.searches, self.ready = {}, set(), Ready()

    def of(self, kind: str) -> None:
        return None
