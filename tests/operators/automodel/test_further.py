"""Mistral 4 in Automodel as measured: tensors, dense layers and gates, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import small
from automodel_experts import expect_gradients_alone
from checkout import ROOT
from eventlog import grouped
from simcore.frameworks.setup import prepare
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.router import corrected_gate
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import Op
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Node, Param, Section, Tape, Tensor

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-further-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
PRESETS = {"mistral4": "mistral-small-4-119b-text"}


def graph(family: str, **overrides: Any) -> ModelGraph:
    return build(model_config(PRESETS[family], STORED["shapes"][family] | overrides, "test"), "automodel")


def changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


@pytest.mark.parametrize("family", PRESETS)
def test_tensors_are_those_that_automodel_registers(family: str) -> None:
    made, stored = graph(family), STORED["registered"][family]
    names = [(f"{layer.path}." if made.kinds[layer.kind].block is None else "", t) for layer in made.layers
             for t in made.tensors[layer.kind]]
    found, buffers = ([[at + t.name, list(t.shape)] for at, t in names if t.is_buffer == asked]
                      for asked in (False, True))
    assert found == stored["parameters"]
    assert buffers == [b[:2] for b in stored["buffers"] if b[0] != "model.freqs_cis"]


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_dense_layer_allocates_what_automodel_s_does(name: str) -> None:
    row = STORED["layers"][name]
    case = row["case"]
    made = graph(case["family"], **case.get("overrides", {}))
    kind = made.layers[1].kind
    params = {t.name: Param(t.name, t.shape, "bf16", trainable=True) for t in made.tensors[kind]}
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, ep=2, rows_per_token=2 << 16,
                        checkpoint="full" if case.get("checkpoint") else "none", options=AutomodelOptions())
    layer = record(made.kinds[kind], run, {}, {})
    assert grouped(changes(layer.forward)) == grouped(row["forward"])
    assert grouped(changes(layer.backward)) == grouped(row["backward"])


@pytest.mark.parametrize("name", STORED["gates"])
def test_a_gate_allocates_what_automodel_s_does(name: str) -> None:
    row = STORED["gates"][name]
    made = graph(row["case"]["family"], **row["case"].get("overrides", {}))
    case, block = row["case"], made.kinds[made.layers[2].kind].branches[1].block
    assert isinstance(block, Moe)
    block = replace(block, router="sigmoid" if "gate" in case else block.router)
    weight = Param("gate.weight", (block.num_experts, block.hidden), "bf16", trainable=True)
    tape = Tape({}, {})
    x: Tensor | None = tape.external((192, block.hidden), "bf16", HIDDEN, -1)
    assert x is not None
    x.node = leaf = Node()
    env = Env(tape, LayerWorkload(1, 192, "bf16", {"gate.weight": weight}), AutomodelOptions())
    wide = case.get("gate", {}).get("router_weights_fp32", True)
    weights: Tensor | None = corrected_gate(env, x, block, "gate", "fp32" if wide else "bf16",
                                            case.get("product", "bf16"))[0]
    assert weights is not None
    forward = changes(tape.cut())
    tape.seed(weights, tape.external(weights.shape, weights.dtype, GRAD_HIDDEN, 1))
    node, weights = weights.node, None
    assert node is not None
    tape.cut()
    tape.backward()
    assert leaf.grads
    assert grouped(forward) == grouped(row["forward"])
    assert grouped(changes(tape.cut())) == grouped(row["backward"])


@pytest.mark.parametrize("family", PRESETS)
@pytest.mark.parametrize("checkpoint", ["none", "full"])
def test_backward_of_experts_leaves_only_gradients(family: str, checkpoint: str) -> None:
    expect_gradients_alone(graph(family), 2, checkpoint)


@pytest.mark.parametrize("name", STORED["wrapped"])
def test_a_tower_at_rest_is_two_units_of_mistral_4(name: str) -> None:
    """Tower and projector, which no pass gathers; the decoder's units are those of text."""
    text = {**STORED["shapes"]["mistral4"], "model_type": "mistral4"}
    job, table = prepare(small.scenario("automodel", {"dp_shard": 8, "ep": int(name[-1])}, images=0, model={
        "config": "mistral-small-4-119b", "overrides": {"text_config": text, "vision_config": STORED["tower"]}}))
    specs = [job.graph.tensors[layer.kind] for layer in job.graph.layers]
    found = [[sum(specs[layer][number].numel for layer, numbers in unit.members for number in numbers), unit.rests]
             for unit in table.units if unit.members]
    stored = [[size, at.startswith(("model.vision", "model.multi"))] for at, size in STORED["wrapped"][name] if size]
    assert sorted(found) == sorted(stored)
