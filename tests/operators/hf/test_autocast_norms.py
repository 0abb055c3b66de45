"""Layers with LayerNorm under autocast as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from typing import Any

from checkout import ROOT
from eventlog import grouped
from simcore.models.graph import build, model_config
from simcore.operators.hf.implementation import record
from simcore.operators.hf.options import HfOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section

TRUTH = ROOT / "tests/truth/tape/autocast-norms-torch-2.13.0-transformers-5.23.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
SHAPE = {"hidden_size": 256, "vocab_size": 1000, "intermediate_size": 688, "num_hidden_layers": 2,
         "num_attention_heads": 8}


def layer_of(case: dict[str, Any]) -> RecordedLayer:
    changed = {name: value for name, value in case.items() if name not in ("family", "preset")}
    graph = build(model_config(case["preset"], SHAPE | changed, "test"), "hf")
    params = {t.name: Param(t.name, t.shape, "fp32", trainable=True) for t in graph.tensors[1]}
    run = LayerWorkload(2, 192, "bf16", params, options=HfOptions(autocast=True, hidden="fp32"))
    return record(graph.kinds[1], run, {}, {})


def changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


def test_every_event_is_the_measured_one() -> None:
    for name, row in STORED.items():
        layer = layer_of(row["case"])
        for section in ("forward", "casts", "backward"):
            assert grouped(changes(getattr(layer, section))) == grouped(row[section]), (name, section)
