"""The command as a user calls it: its exit code and output."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["SCENARIO", "Ran", "Run"]

SCENARIO = """\
name: mine
model: llama-3.2-1b
topology: rtx-4090
framework: ddp
training: {seq_len: 2048, global_batch_size: 8, method: lora}
"""
"""A layout of one GPU that every question of the command line takes a moment for."""


class Ran(NamedTuple):
    code: object
    out: str
    err: str


Run = Callable[..., Ran]
