"""The command as a user calls it: its exit code and output."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Ran", "Run"]


class Ran(NamedTuple):
    code: object
    out: str
    err: str


Run = Callable[..., Ran]
