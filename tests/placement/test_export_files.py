"""Tensors that wait for their files, beside Megatron-Bridge's own `save_generator` (`truth/probe_save.py`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.placement.export_files import FILE_BYTES, waiting_bytes

BRIDGE: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/phases/save-transformers-5.23.json").read_text(encoding="utf-8"))["bridge"]
SHAPE = {"vocab_size": BRIDGE["vocab"], "hidden_size": BRIDGE["hidden"], "intermediate_size": BRIDGE["ffn"],
         "num_hidden_layers": BRIDGE["layers"], "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}


def waits(model: Any, limit: int = FILE_BYTES) -> int:
    return waiting_bytes(small.prepared("megatron", model=model)[0].graph, 2, limit)


@pytest.mark.parametrize("name", BRIDGE["cases"])
def test_tensors_wait_as_in_bridge(name: str) -> None:
    """To a matrix of fused gates and ups, which files may cut where ours does not; a head waits from first to last."""
    case = BRIDGE["cases"][name]
    found, most = waits({"config": "llama-tiny", "overrides": SHAPE}, case["limit"] or FILE_BYTES), case["found"]
    assert found == pytest.approx(most["waits"], abs=2 * 2 * BRIDGE["ffn"] * BRIDGE["hidden"])
    if case["limit"]:
        assert min(found, most["waits"]) > most["file"] + most["head"]
    else:
        assert found == most["whole"] == most["waits"]


def test_a_model_of_one_file_waits_whole() -> None:
    assert waits("llama-3.2-1b") == 2 * 1_235_814_400


def test_the_head_of_a_large_model_waits_beside_a_file() -> None:
    head = 2 * 128256 * 8192
    assert FILE_BYTES < waits("llama-3-70b") <= FILE_BYTES + head
    assert waits("llama-3-70b") > head + 0.8 * FILE_BYTES
