"""Layers of NeMo Automodel's GLM-5 that read chosen keys alone, as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from checkout import ROOT
from eventlog import grouped
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.automodel.lora import adapters
from simcore.models.graph import build, model_config
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.tensors import tensors
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-absorbed-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))


def changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_dense_layer_allocates_what_automodel_s_does(name: str) -> None:
    row = STORED["layers"][name]
    case = row["case"]
    shape = STORED["shape"] | {"indexer_types": ["full", "shared"] if case.get("borrows") else None,
                               "indexer_rope_interleave": case.get("interleaves", False), "first_k_dense_replace": 2}
    made = build(model_config("glm-5", shape, "test"), "automodel")
    kind = made.kinds[made.layers[1 + case.get("borrows", False)].kind]
    specs = tensors(kind)
    if "lora" in case:
        added = adapters(kind, specs, LoraChoice(case["lora"], tuple(STORED["targets"])))
        specs = (*(replace(spec, trainable=False) for spec in specs), *added)
    params = {spec.name: Param(spec.name, spec.shape, "bf16", trainable=spec.trainable) for spec in specs}
    options = AutomodelOptions(sparse=True, fuses_lora_mlp=False)
    run = LayerWorkload(1, case["tokens"], "bf16", params, ep=2, rows_per_token=2 << 16, sequences=1,
                        cp=case.get("cp", 1), checkpoint="full" if case.get("checkpoint") else "none", options=options)
    layer = record(kind, run, {}, {})
    assert grouped(changes(layer.forward)) == grouped(row["forward"])
    assert grouped(changes(layer.backward)) == grouped(row["backward"])
    assert {spec.name for spec in specs if spec.trainable} == set(row["grads"])
