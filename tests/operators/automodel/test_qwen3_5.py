"""Qwen 3.5 and Qwen3-Next in Automodel as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from eventlog import grouped
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.models.blocks import Moe, Mtp
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel import moe
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.tensors import tensors
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


def further_of(case: dict[str, Any]) -> tuple[RecordedLayer, set[int]]:
    """The module of multi-token prediction of a model with experts that sees, and the slots of what passes it by."""
    made = graph("qwen3_5_moe_text", mtp_num_layers=1)
    kind = made.layers[made.branches[0]].kind
    block = made.kinds[kind].block
    assert isinstance(block, Mtp)
    of_images = replace(made.kinds[kind], block=replace(block, sees=True))
    params = {t.name: Param(t.name, t.shape, "bf16", trainable=True) for t in tensors(of_images)}
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, ep=2, loss="masked_fp32",
                        checkpoint="full" if case.get("checkpoint") else "none",
                        options=AutomodelOptions(sdpa=True, trains_stem=True))
    slots: dict[tuple[str, str], int] = {}
    layer = record(of_images, run, slots, {})
    return layer, {number for (found, _), number in slots.items() if found.endswith("hidden_states")}


@pytest.mark.parametrize("name", [name for name, row in STORED["layers"].items() if row["case"].get("further")])
def test_a_further_token_of_images_takes_the_embeddings_moved_by_one(name: str,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a router and experts that make nothing; tables of angles and numbers of tokens are left out."""
    monkeypatch.setattr(moe, "softmax_gate", lambda *_: (None, None))
    monkeypatch.setattr(moe, "_experts", lambda env, given, *_: env.tape.empty(given.shape, "bf16", "experts"))
    row = STORED["layers"][name]
    layer, passing = further_of(row["case"])
    small, logits = 9216, 2 * row["case"]["seq"] * STORED["shapes"]["qwen3_5_moe_text"]["vocab_size"]
    taken = 2 * row["case"]["seq"] * STORED["shapes"]["qwen3_5_moe_text"]["hidden_size"]  # what waits, by its taker
    for section, end, stored in ((layer.forward, [-logits], row["forward"]),
                                 (layer.backward, [-taken], row["backward"])):
        mine = [found[3] for found in section.rows if found[0] in (Op.ALLOC, Op.FREE) and abs(found[3]) > small
                and found[2] not in passing]
        assert grouped([*mine, *end]) == grouped([change for change in stored if abs(change) > small])


SEEING = {"images": 1, "image_height": 160, "frozen": ["model.visual"]}


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


def test_units_of_experts_behind_a_tower_are_those_that_automodel_wraps(tmp_path: Path) -> None:
    """A frozen tower is the root's, the decay in fp32 a unit in its layer, experts one where several ranks share them.

    A tower that is given text alone does not run. It is a unit of its own, but the root's where adapters leave it out.
    """
    text = {**STORED["shapes"]["qwen3_5_moe_text"], "model_type": "qwen3_5_moe_text", "mtp_num_hidden_layers": 0}
    config = tmp_path / "config.json"
    for name, row in STORED["wrapped"].items():
        if row["case"].get("next"):
            continue
        config.write_text(json.dumps({
            "model_type": "qwen3_5_moe", "tie_word_embeddings": False, "text_config": text, "vision_config": STORED[
                "vision"], "mtp_num_layers": row["case"].get("mtp", 0)}), encoding="utf-8")
        assert not row.get("calls"), name
        job, table = prepare(Scenario.model_validate({
            "name": "wraps", "model": {"config": str(config)}, "framework": "automodel", "topology": "dgx-h100",
            "mesh": {"dp_shard": 8, "ep": row["case"]["ep"]}, "training": {
                "seq_len": 512, "recompute": "full" if row["case"].get("checkpoint") else "none",
                **({"images": 0} if row["case"].get("text") else SEEING),
                **({"method": "lora", "lora": {"rank": 8} | {name: row["case"][name] for name in (
                    "target_modules", "exclude_modules") if name in row["case"]}} if "lora" in row["case"] else {}),
                }}))
        graph = job.graph
        found = [["" if unit.is_root else unit.name, sum(
            graph.tensors[graph.layers[layer].kind][number].numel for layer, numbers in unit.members
            for number in numbers)] for unit in table.units]
        assert sorted(found) == sorted(row["units"]), name
