"""Layers of NeMo Automodel whose indexer chooses keys, as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkout import ROOT
from eventlog import grouped
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.tensors import tensors
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-chosen-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
PRESETS = {"deepseek_v32": "deepseek-v3.2", "glm_moe_dsa": "glm-5"}


def graph(family: str) -> ModelGraph:
    return build(model_config(PRESETS[family], STORED["shape"], "test"), "automodel")


@pytest.mark.parametrize("family", PRESETS)
def test_tensors_are_those_that_automodel_registers(family: str) -> None:
    made, stored = graph(family), STORED["registered"][family]
    found: list[Any] = []
    for layer in made.layers:
        prefix = f"{layer.path}." if made.kinds[layer.kind].block is None else ""
        found += [[prefix + t.name, list(t.shape)] for t in made.tensors[layer.kind] if not t.is_buffer]
    assert found == stored["parameters"]


def changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_dense_layer_allocates_what_automodel_s_does(name: str) -> None:
    row = STORED["layers"][name]
    case = row["case"]
    made = graph(case["family"])
    kind = made.kinds[made.layers[1].kind]
    params = {t.name: Param(t.name, t.shape, "bf16", trainable=t.trainable) for t in tensors(kind)}
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, ep=2, rows_per_token=2 << 16,
                        checkpoint="full" if case.get("checkpoint") else "none", options=AutomodelOptions())
    layer = record(kind, run, {}, {})
    assert grouped(changes(layer.forward)) == grouped(row["forward"])
    assert grouped(changes(layer.backward)) == grouped(row["backward"])
    assert {t.name for t in tensors(kind) if t.trainable} == set(row["grads"])
