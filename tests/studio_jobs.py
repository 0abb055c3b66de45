"""A small job of the studio's tests, and how they ask about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["HERE", "JOB", "Asked"]

HERE: Final = "http://127.0.0.1:8765"
JOB: Final[dict[str, Any]] = {
    "name": "mine", "model": "llama-3.2-1b", "topology": "dgx-h100", "framework": "fsdp2", "mesh": {"dp_shard": 8},
    "training": {"seq_len": 2048, "global_batch_size": 8, "method": "full"}}
Asked = Callable[..., Any]
