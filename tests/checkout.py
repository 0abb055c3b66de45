"""The folder that this checkout lies in, for tests that read its files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["ROOT"]

ROOT: Final = Path(__file__).resolve().parents[1]
