"""Automodel's multi-token prediction as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

import small
from checkout import ROOT
from eventlog import grouped
from simcore.errors import NotYet
from simcore.models.blocks import LayerKind, Moe, Mtp
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel import moe as module
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.layers import mlp
from simcore.operators.automodel.options import RELEASE_0_7_0
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op, Row
from simcore.recording.tape import Param, Tensor
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-mtp-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
S, SEQ = STORED["shape"], STORED["seq"]
SMALL = 4 * SEQ * S["n_routed_experts"]
"""A few bytes a token: masks, ids and the load of experts."""
OPTIONS = replace(RELEASE_0_7_0, keeps_norm_rstd=True, wide_norms=False)
"""The norm that was measured is torch's."""


def fields(depths: int) -> dict[str, Any]:
    return {**S, "hybrid_override_pattern": "*", "num_hidden_layers": 1, "mtp_num_layers": depths}


def graph(depths: int) -> ModelGraph:
    return build(model_config("nemotron-3-super-120b-a12b", fields(depths), "test"), "automodel")


def test_tensors_are_those_that_automodel_registers() -> None:
    made = graph(1)
    (index,) = made.branches
    assert [made.layers[place].path for place in (index - 1, index, index + 1)] == ["lm_head", "mtp.layers.0", "loss"]
    specs = made.tensors[made.layers[index].kind]
    assert sorted([t.name.removeprefix("mtp."), list(t.shape)] for t in specs if not t.tied) == sorted(
        STORED["registered"])
    assert {t.name for t in specs if t.tied} == {"model.embed_tokens.weight", "lm_head.weight"} == made.used_twice


def _stand_in(env: Env, x: Tensor, _weights: Tensor, _indices: Tensor, _block: Moe, path: str) -> Tensor:
    return mlp(env, x, path, gated=False)


@pytest.fixture(autouse=True)
def _no_experts(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "name" in request.fixturenames:
        monkeypatch.setattr(module, "_experts", _stand_in)


def recorded(made: ModelGraph, index: int, case: dict[str, Any], slots: dict[tuple[str, str], int]) -> RecordedLayer:
    kind: LayerKind = made.kinds[made.layers[index].kind]
    at = "mtp.layers.1.mixer.experts."
    instead = {f"{at}up_proj.weight": (S["moe_intermediate_size"], S["moe_latent_size"]),
               f"{at}down_proj.weight": (S["moe_latent_size"], S["moe_intermediate_size"])}
    shapes = {t.name: t.shape for t in made.tensors[made.layers[index].kind] if not t.is_buffer} | (
        instead if isinstance(kind.block, Mtp) else {})
    frozen = case.get("frozen", False)
    params = {key: Param(key, shape, "bf16", trainable=not frozen or kind.block is None, tied=key in made.used_twice)
              for key, shape in shapes.items() if "_projs" not in key}
    run = LayerWorkload(1, SEQ, "bf16", params, options=OPTIONS, ep=2, first=index == 1,
                        loss="masked_fp32" if case.get("upcast", True) else "masked",
                        checkpoint="full" if case.get("checkpoint") and kind.block is not None else "none",
                        input_requires_grad=index > frozen)
    return record(kind, run, slots, {})


@pytest.mark.parametrize("name", STORED["layers"])
def test_events_are_those_that_were_measured(name: str) -> None:
    row = STORED["layers"][name]
    case, made = row["case"], graph(row["case"]["depths"])
    slots: dict[tuple[str, str], int] = {}
    layer = recorded(made, made.branches[0], case, slots)
    passing = {number for (found, _), number in slots.items() if found.endswith("hidden_states")}
    given = [2 * SEQ * S["hidden_size"]] * case.get("frozen", False)  # a frozen head does not keep its input
    logits = 2 * SEQ * S["vocab_size"]  # those of the last token go with the next layer
    for section, end, stored in ((layer.forward, [-logits], [*given, *row["forward"]]),
                                 (layer.backward, [], row["backward"])):
        mine = [found[3] for found in section.rows if _changes(found) > SMALL and found[2] not in passing]
        assert grouped([*mine, *end]) == grouped([change for change in stored if abs(change) > SMALL])


def _changes(row: Row) -> int:
    return abs(row[3]) if row[0] in (Op.ALLOC, Op.FREE) else 0


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_step_takes_what_was_measured_in_upstream_s_order(name: str) -> None:
    """Within 1 %: inputs of a frozen head, 1 of 16 of its logits here, are left out while the last loss runs."""
    case, slots = STORED["layers"][name]["case"], dict[tuple[str, str], int]()
    made = graph(case["depths"])
    layers = [recorded(made, layer.index, case, slots) for layer in made.layers]
    forward = [row for layer in layers for row in (*layer.forward.rows, *layer.after.rows)]
    backward = [row for layer in reversed(layers) for row in (*layer.seed.rows, *layer.backward.rows)]
    held = list(accumulate(row[3] if _changes(row) else 0 for row in (*forward, *backward)))
    peaks = [max(held[:len(forward)]), max(held[len(forward):])]
    assert peaks == pytest.approx(STORED["peaks"][name], rel=0.01)


def scenario(ep: int, depths: int = 2, **given: Any) -> dict[str, Any]:
    model = {"config": "nemotron-3-super-120b-a12b", "overrides": fields(depths)}
    options = {"moe.reshard_after_forward": True} if ep > 1 else {}
    return {"mesh": {"dp_shard": 8, "ep": ep}, "model": model, "options": options} | given


@pytest.mark.parametrize("ep", [1, 4])
def test_units_are_those_that_automodel_wraps(ep: int) -> None:
    job, table = small.prepared("automodel", **scenario(ep))
    specs = [job.graph.tensors[layer.kind] for layer in job.graph.layers]
    found = {unit.name: [sum(specs[layer][number].numel for layer, numbers in unit.members for number in numbers) // (
        ep if unit.inner else 1), unit.reshard_after_forward] for unit in table.units if unit.members}
    assert found == {name or "root": rest for name, *rest in STORED["units"][str(ep)]}


def test_a_head_that_runs_again_has_its_adapters_once() -> None:
    """Without targets every linear is adapted, lm_head among them (0.7.0 _peft/module_matcher.py)."""
    given: dict[str, Any] = {"method": "lora", "lora": {"rank": 4, "exclude_modules": ["*.out_proj"]}}
    job, _ = small.prepared("automodel", **scenario(4, **given))
    specs = [t for layer in job.graph.layers for t in job.graph.tensors[layer.kind] if t.module == "adapter"]
    assert [t.tied for t in specs if t.name == "lm_head.lora_A.weight"] == [False, True]
    assert "mtp.layers.0.eh_proj.lora_B.weight" in {t.name for t in specs if t.is_owned}
    assert "lm_head.lora_B.weight" in job.graph.used_twice
    peaks = [found.peak.allocated_bytes for depths in (0, 1, 2) if (found := simulate(small.scenario(
        "automodel", **scenario(4, depths, **given))).peak_rank) and found.peak]
    assert len(peaks) == 3
    assert peaks == sorted(set(peaks))


@pytest.mark.parametrize(("changed", "told"), [
    ({"mesh": {"dp_shard": 4, "pp": 2, "ep": 4}}, "stages with"), ({"loss": "te_inplace"}, "loss te_inplace with")])
def test_what_was_not_measured_beside_it_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(NotYet, match=told):
        small.prepared("automodel", **scenario(4) | changed)
