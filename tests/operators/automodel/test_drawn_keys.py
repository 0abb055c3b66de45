"""Drawn layers of NeMo Automodel's GLM-5 whose indexer chooses keys, see tests/truth/README.md."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from typing import Any

from checkout import ROOT
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.automodel.lora import adapters
from simcore.models.graph import build, model_config
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.tensors import tensors
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import Param

TRUTH = ROOT / "tests/truth" / "tape" / "drawn-chosen-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))


def layer_of(case: dict[str, Any]) -> RecordedLayer:
    shape = STORED["shape"] | case["shape"] | {
        "indexer_rope_interleave": case["interleaves"], "first_k_dense_replace": 2,
        "indexer_types": ["full", "shared"] if case["borrows"] else None}
    made = build(model_config("glm-5", shape, "test"), "automodel")
    kind = made.kinds[made.layers[1 + case["borrows"]].kind]
    specs = tensors(kind)
    if "lora" in case:
        targets = tuple(STORED["targets"]) if case["sparse"] else ("*",)
        added = adapters(kind, specs, LoraChoice(case["lora"], targets))
        specs = (*(replace(spec, trainable=False) for spec in specs), *added)
    params = {spec.name: Param(spec.name, spec.shape, "bf16", trainable=spec.trainable) for spec in specs}
    run = LayerWorkload(case.get("batch", 1), case.get("tokens", case.get("seq", 0)), "bf16", params, ep=2,
                        rows_per_token=2 << 16, checkpoint="full" if case["checkpoint"] else "none",
                        cp=case.get("cp", 1), options=AutomodelOptions(sparse=case["sparse"], fuses_lora_mlp=False))
    return record(kind, run, {}, {})


def test_drawn_layers_allocate_what_automodel_s_do() -> None:
    different = []
    for number, row in enumerate(STORED["rows"]):
        layer = layer_of(row["case"])
        forward, backward = ([op[3] for op in section.rows if op[0] in (Op.ALLOC, Op.FREE)] for section in (
            layer.forward, layer.backward))
        found = {"case": row["case"], "peak": max(accumulate([*forward, *backward])), "left": sum(forward),
                 "allocated": [sum(size for size in part if size > 0) for part in (forward, backward)]}
        different += [(number, {key: (found[key], row[key]) for key in row if found[key] != row[key]})] * (found != row)
    assert different == []
    assert len(STORED["rows"]) == 48
