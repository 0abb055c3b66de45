"""Step 3.5 in Automodel as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from automodel_experts import expect_gradients_alone
from checkout import ROOT
from eventlog import grouped
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.layers import linear
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.tensors import tensors
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section, Tensor

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-step3p5-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))


def graph(**overrides: Any) -> ModelGraph:
    return build(model_config("step-3.5-flash", STORED["shape"] | overrides, "test"), "automodel")


@pytest.mark.parametrize("implementation", ["automodel", "hf"])
def test_counts_by_component_in_two_sizes(implementation: str) -> None:
    for name, overrides in (("step-3.5-flash", {}), ("small", STORED["shape"])):
        made = build(model_config("step-3.5-flash", overrides, "test"), implementation)
        counts = STORED["counts"][name]
        assert {part: made.count(part) for part in counts} == counts
        assert made.count() == sum(counts.values())


def test_tensors_are_those_that_automodel_registers() -> None:
    made, stored = graph(), STORED["registered"]
    found: list[Any] = []
    for layer in made.layers:
        prefix = f"{layer.path}." if made.kinds[layer.kind].block is None else ""
        found += [[prefix + t.name, list(t.shape)] for t in made.tensors[layer.kind] if not t.is_buffer]
    assert found == stored["parameters"]
    assert stored["fp32"] == []


def layer_of(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> RecordedLayer:
    """An MLP stands in the place of routed experts, as the probe's does."""
    made = graph(**case.get("overrides", {}))
    kind = made.kinds[made.layers[1 + case["layer"]].kind]
    params = {t.name: Param(t.name, t.shape, "bf16", trainable=True) for t in tensors(kind) if not t.is_buffer}
    hidden, ffn = kind.hidden, (STORED["shape"] | case.get("overrides", {}))["moe_intermediate_size"]
    for name, shape in (("gate_proj", (ffn, hidden)), ("up_proj", (ffn, hidden)), ("down_proj", (hidden, ffn))):
        params[f"moe.{name}.weight"] = Param(f"moe.{name}.weight", shape, "bf16", trainable=True)

    def dense(env: Env, x: Tensor, *_: Any) -> Tensor:
        return linear(env, aten.mul(env.tape, aten.silu(env.tape, linear(env, x, "moe.gate_proj")),
                                    linear(env, x, "moe.up_proj")), "moe.down_proj")

    monkeypatch.setattr("simcore.operators.automodel.implementation.moe_of", dense)
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, ep=2, rows_per_token=2 << 16,
                        checkpoint="full" if case.get("checkpoint") else "none", options=AutomodelOptions())
    return record(kind, run, {}, {})


def changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_layer_allocates_what_automodel_s_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = STORED["layers"][name]
    layer = layer_of(row["case"], monkeypatch)
    assert grouped(changes(layer.forward)) == grouped(row["forward"])
    assert grouped(changes(layer.backward)) == grouped(row["backward"])


@pytest.mark.parametrize("checkpoint", ["none", "full"])
def test_backward_of_experts_leaves_only_gradients(checkpoint: str) -> None:
    expect_gradients_alone(graph(), 3, checkpoint)
