"""GLM-4.5, GLM-4.7-Flash, Ling and MiniMax-M2 in Automodel as measured, see tests/truth/tape/README.md."""

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
from simcore.models.blocks import Mlp
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.sparse import SPARSE
from simcore.operators.automodel.tensors import tensors
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-sparse-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
PRESETS = {"glm4_moe": "glm-4.7", "glm4_moe_lite": "glm-4.7-flash", "bailing_moe": "ling-mini-2.0",
           "hy_v3": "hy3-preview", "minimax_m2": "minimax-m2"}


def graph(family: str, **overrides: Any) -> ModelGraph:
    return build(model_config(PRESETS[family], STORED["shapes"][family] | overrides, "test"), "automodel")


def test_every_family_is_measured_here_or_by_a_probe_of_its_own() -> None:
    assert {*PRESETS, "deepseek_v3", "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "gpt_oss", "mimo_v2_flash",
            "mistral4", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next", "qwen3_vl_moe_text",
            "step3p5"} == set(SPARSE)


@pytest.mark.parametrize("family", PRESETS)
def test_tensors_are_those_that_automodel_registers(family: str) -> None:
    made, stored = graph(family), STORED["registered"][family]
    found: list[Any] = []
    buffers: list[Any] = []
    for layer in made.layers:
        prefix = f"{layer.path}." if made.kinds[layer.kind].block is None else ""
        for t in made.tensors[layer.kind]:
            (buffers if t.is_buffer else found).append([prefix + t.name, list(t.shape)])
    assert found == stored["parameters"]
    assert set(stored["fp32"]) == {
        f"{layer.path}.{t.name}" for layer in made.layers for t in made.tensors[layer.kind]
        if t.stored == "fp32" and not t.is_buffer}
    assert buffers == [b[:2] for b in stored["buffers"]]


def layer_of(case: dict[str, Any]) -> RecordedLayer:
    """MiniMax-M2 has an MLP in the place of experts, as the probe's has."""
    shape = STORED["shapes"][case["family"]]
    made = graph(case["family"], **case.get("overrides", {}))
    kind = made.kinds[made.layers[1].kind]
    mlp = Mlp(shape["hidden_size"], shape["intermediate_size"])
    kind = replace(kind, branches=(kind.branches[0], replace(kind.branches[1], block=mlp)))
    params = {t.name: Param(t.name, t.shape, "bf16", trainable=True) for t in tensors(kind)}
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, ep=2, rows_per_token=2 << 16,
                        checkpoint="full" if case.get("checkpoint") else "none", options=AutomodelOptions())
    return record(kind, run, {}, {})


def changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_dense_layer_allocates_what_automodel_s_does(name: str) -> None:
    row = STORED["layers"][name]
    layer = layer_of(row["case"])
    assert grouped(changes(layer.forward)) == grouped(row["forward"])
    assert grouped(changes(layer.backward)) == grouped(row["backward"])


@pytest.mark.parametrize("family", PRESETS)
@pytest.mark.parametrize("checkpoint", ["none", "full"])
def test_backward_of_experts_leaves_only_gradients(family: str, checkpoint: str) -> None:
    expect_gradients_alone(graph(family), 2, checkpoint)


def test_a_gate_in_fp32_makes_its_block_a_unit_inside_the_layer() -> None:
    """MiniMax-M2's: gathered where the block runs, between the layer and its experts, and reduced behind them."""
    for name, units in STORED["wrapped"].items():
        job, table = prepare(small.scenario("automodel", {"dp_shard": 8, "ep": int(name.split()[-1])}, seq_len=512,
                                            model={"config": PRESETS["minimax_m2"],
                                                   "overrides": STORED["shapes"]["minimax_m2"]}))
        specs = [job.graph.tensors[layer.kind] for layer in job.graph.layers]
        found = [["" if unit.is_root else unit.name, sum(specs[layer][number].numel for layer, numbers in unit.members
                                                         for number in numbers)] for unit in table.units]
        assert sorted(found) == sorted(units), name
        assert {unit.name.rpartition(".")[2]: unit.inner for unit in table.units if unit.inner} == {
            "mlp": "fp32"} | ({"experts": "experts"} if name == "over 4" else {})
