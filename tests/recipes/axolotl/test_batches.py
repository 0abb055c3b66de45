"""Batches and lengths of axolotl's recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes.axolotl.test_recipe import QLORA, changed, imported

NANO = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
OLDER = "nvidia/Nemotron-H-8B-Base-8K"


@pytest.mark.parametrize(("keys", "told"), [
    ({"base_model": NANO}, "unsupported operand type(s) for +: 'Tensor' and 'tuple'"),
    ({"base_model": OLDER, "gradient_checkpointing": False}, "unsupported operand type(s) for +"),
    ({"base_model": OLDER, "sample_packing": False}, "gradient_checkpointing for nemotron_h requires sample_packing"),
])
def test_nemotron_h_stops_where_axolotl_stops(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    """Packed by axolotl's own layers, which call attention by the name of an older transformers; or by validation."""
    found = imported(tmp_path, changed(QLORA, lora_target_linear=None, lora_target_modules=["q_proj"], **keys), 1)
    assert [told in str(problem) for problem in found.wrong] == [True]


@pytest.mark.parametrize("keys", [{"base_model": NANO, "sample_packing": False}, {
    "base_model": OLDER, "sample_packing": False, "gradient_checkpointing": False}])
def test_nemotron_h_runs_without_packs(tmp_path: Path, keys: dict[str, Any]) -> None:
    text = changed(QLORA, lora_target_linear=None, lora_target_modules=["q_proj"], **keys)
    assert not imported(tmp_path, text, 1).wrong
