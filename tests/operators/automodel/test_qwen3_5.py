"""Qwen 3.5 and Qwen3-Next in Automodel as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from eventlog import grouped
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel import moe
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.shared.layer_borders import AFTER, BEFORE
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Node, Param, Section, Tape, Tensor

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-delta-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
PRESETS = {"qwen3_5_text": "qwen3.5-9b-text", "qwen3_5_moe_text": "qwen3.5-35b-a3b-text",
           "qwen3_next": "qwen3-next-80b-a3b"}
LAYERS = {name: row for name, row in STORED["layers"].items() if "layer" in row["case"]}


def graph(family: str, **overrides: Any) -> ModelGraph:
    out = ("mtp_num_hidden_layers", *(["rope_parameters"] if family == "qwen3_next" else []))  # the preset's are older
    shape = {key: value for key, value in STORED["shapes"][family].items() if key not in out}
    return build(model_config(PRESETS[family], shape | overrides, "test"), "automodel")


@pytest.mark.parametrize("family", PRESETS)
def test_tensors_are_those_that_automodel_registers(family: str) -> None:
    made, stored = graph(family), STORED["registered"][family]
    specs = [(f"{layer.path}." if made.kinds[layer.kind].block is None else "", t) for layer in made.layers
             for t in made.tensors[layer.kind]]
    assert [[prefix + t.name, list(t.shape)] for prefix, t in specs] == stored["parameters"]
    assert [prefix + t.name for prefix, t in specs if t.stored == "fp32"] == stored["fp32"]


def layer_of(case: dict[str, Any]) -> RecordedLayer:
    dense = {"mlp_only_layers": [0, 1]} if case.get("next") else {}
    made = graph("qwen3_next" if case.get("next") else "qwen3_5_text", **dense | case.get("fields", {}))
    kind = made.layers[1 + case["layer"]].kind
    params = {t.name: Param(t.name, t.shape, t.stored or "bf16", trainable=True) for t in made.tensors[kind]}
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, ep=2 if case.get("checkpoint") == "whole" else 1,
                        checkpoint="full" if case.get("checkpoint") else "none",
                        options=AutomodelOptions(sdpa=not case.get("te"), masks_padding="mask" in case))
    return record(made.kinds[kind], run, {}, {})


def changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_allocates_what_automodel_s_does(name: str) -> None:
    row = STORED["layers"][name]
    layer = layer_of(row["case"])
    assert grouped(changes(layer.forward)) == grouped(row["forward"])
    assert grouped(changes(layer.backward)) == grouped(row["backward"])


def test_a_shared_expert_is_weighed_as_automodel_s_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a router and experts that make nothing but an output."""
    row = STORED["layers"]["shared"]
    made = graph("qwen3_5_moe_text")
    kind = made.kinds[made.layers[1].kind]
    block = kind.branches[1].block
    assert isinstance(block, Moe)
    specs = made.tensors[made.layers[1].kind]
    params = {t.name: Param(t.name, t.shape, t.stored or "bf16", trainable=True) for t in specs}
    run = LayerWorkload(row["case"]["batch"], row["case"]["seq"], "bf16", params, options=AutomodelOptions())
    tape = Tape({}, {})
    x: Tensor | None = tape.external((2, 192, 256), "bf16", HIDDEN, BEFORE)
    assert x is not None
    x.node = Node()
    monkeypatch.setattr(moe, "softmax_gate", lambda *_: (None, None))
    monkeypatch.setattr(moe, "_experts", lambda env, given, *_: env.tape.empty(given.shape, "bf16", "experts"))
    out = moe.moe(Env(tape, run, AutomodelOptions()), x, block, "mlp")
    of_mask = 2 * 192  # of the router, which is not here
    assert grouped(changes(tape.cut())) == grouped([size for size in row["forward"] if abs(size) != of_mask])
    tape.seed(out, tape.external(out.shape, out.dtype, GRAD_HIDDEN, AFTER))
    del x
    tape.backward()
    assert grouped(changes(tape.cut())) == grouped(row["backward"])


def test_units_of_qwen3_next_are_those_that_automodel_wraps() -> None:
    out = ("mtp_num_hidden_layers", "rope_parameters")
    shape = {key: value for key, value in STORED["shapes"]["qwen3_next"].items() if key not in out}
    for name in (name for name, row in STORED["wrapped"].items() if row["case"].get("next")):
        case = STORED["wrapped"][name]["case"]
        job, table = prepare(Scenario.model_validate({
            "name": "wraps", "model": {"config": "qwen3-next-80b-a3b", "overrides": shape}, "framework": "automodel",
            "topology": "dgx-h100", "mesh": {"dp_shard": 8, "ep": case["ep"]}, "training": {
                "seq_len": 512, "recompute": "full" if case.get("checkpoint") else "none"}}))
        graph = job.graph
        found = [["" if unit.is_root else unit.name, sum(
            graph.tensors[graph.layers[layer].kind][number].numel for layer, numbers in unit.members
            for number in numbers)] for unit in table.units]
        assert sorted(found) == sorted(STORED["wrapped"][name]["units"]), name


def test_units_of_experts_behind_a_frozen_tower_are_those_that_automodel_wraps(tmp_path: Path) -> None:
    """The tower is the root's, the decay in fp32 a unit in its layer, experts one where several ranks share them."""
    text = {**STORED["shapes"]["qwen3_5_moe_text"], "model_type": "qwen3_5_moe_text", "mtp_num_hidden_layers": 0}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3_5_moe", "tie_word_embeddings": False, "text_config": text,
                                  "vision_config": STORED["vision"]}), encoding="utf-8")
    for name, row in STORED["wrapped"].items():
        if row["case"].get("next"):
            continue
        job, table = prepare(Scenario.model_validate({
            "name": "wraps", "model": {"config": str(config)}, "framework": "automodel", "topology": "dgx-h100",
            "mesh": {"dp_shard": 8, "ep": row["case"]["ep"]}, "training": {
                "seq_len": 512, "images": 1, "image_height": 160, "frozen": ["model.visual"],
                "recompute": "full" if row["case"].get("checkpoint") else "none"}}))
        graph = job.graph
        found = [["" if unit.is_root else unit.name, sum(
            graph.tensors[graph.layers[layer].kind][number].numel for layer, numbers in unit.members
            for number in numbers)] for unit in table.units]
        assert sorted(found) == sorted(row["units"]), name
