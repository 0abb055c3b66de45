"""Small models with a vision tower that are drawn beside text alone: one of each family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["bases"]

TAPE = Path(__file__).resolve().parent / "tape"


def bases() -> list[dict[str, Any]]:
    """Gemma 3, Mistral 3 and Qwen 3.5, as stored cases have them."""
    seeing = json.loads((TAPE / "cases-vision.json").read_text(encoding="utf-8"))
    return [next(one for one in seeing if one["name"] == "gemma3-vision"),
            *json.loads((TAPE / "cases-resting.json").read_text(encoding="utf-8"))]
