"""Layers of NeMo Automodel whose indexer chooses keys, as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import small
from checkout import ROOT
from eventlog import grouped
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.automodel.lora import adapters
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.tensors import tensors
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-chosen-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
PRESETS = {"deepseek_v32": "deepseek-v3.2", "glm_moe_dsa": "glm-5"}


def graph(family: str, **changed: Any) -> ModelGraph:
    return build(model_config(PRESETS[family], STORED["shape"] | changed, "test"), "automodel")


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
    borrows = case.get("borrows", False)
    shared = {"indexer_types": ["full", "shared"], "first_k_dense_replace": 2} if borrows else {}
    interleaves = {"indexer_rope_interleave": case.get("interleaves", False)} if case["family"] == "glm_moe_dsa" else {}
    made = graph(case["family"], **shared, **interleaves)
    kind = made.kinds[made.layers[1 + borrows].kind]
    specs = tensors(kind)
    if "lora" in case:
        added = adapters(kind, specs, LoraChoice(case["lora"], ("*",)))
        specs = (*(replace(spec, trainable=False) for spec in specs), *added)
    params = {t.name: Param(t.name, t.shape, "bf16", trainable=t.trainable) for t in specs}
    options = AutomodelOptions(fuses_lora_mlp=False)
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, ep=2, rows_per_token=2 << 16,
                        checkpoint="full" if case.get("checkpoint") else "none", options=options)
    layer = record(kind, run, {}, {})
    assert grouped(changes(layer.forward)) == grouped(row["forward"])
    assert grouped(changes(layer.backward)) == grouped(row["backward"])
    assert {t.name for t in specs if t.trainable} == set(row["grads"])


@pytest.mark.parametrize("checkpoint", STORED["alive"])
def test_chosen_keys_live_as_long_as_in_automodel(checkpoint: str) -> None:
    made = graph("glm_moe_dsa", num_hidden_layers=len(STORED["types"]), indexer_types=STORED["types"],
                 first_k_dense_replace=len(STORED["types"]))
    layers = [recorded(made, number, checkpoint) for number in range(len(STORED["types"]))]
    alive, before, inside = 0, list[int](), list[int]()
    for layer, slot in layers:
        before.append(alive)
        alive += chosen(layer.forward, slot) + chosen(layer.after, slot)
    before.append(alive)
    alive += sum(chosen(layer.late, slot) for layer, slot in layers)
    for layer, slot in reversed(layers):
        # In Automodel they go when the layer above is done, here before the layer's own backward.
        alive += chosen_first(layer.backward, slot)
        inside.append(alive)
    assert {"forward": before, "backward": inside} == STORED["alive"][checkpoint]


def staged(*, shares: bool) -> list[int]:
    """Bytes that each of two stages sends: four layers, two microbatches."""
    second = "shared" if shares else "full"
    shape = STORED["shape"] | {"num_hidden_layers": 4, "indexer_types": ["full", second, second, "full"]}
    report = simulate(small.scenario("automodel", {"pp": 2, "ep": 2, "dp_shard": 2}, recompute="full", microbatches=2,
                                     model={"config": "glm-5", "overrides": shape}, options={"attn": "sdpa"}))
    assert report.status == "ok", report.problems
    return [sum(t.payload_bytes for t in rank.traffic if t.axis == "pp") for rank in report.ranks]


def test_stages_send_chosen_keys_on() -> None:
    """As `get_pipeline_stage_metas` declares, in fp32, and their gradient back."""
    of_hidden, of_keys = 2 * 64 * STORED["shape"]["hidden_size"], 4 * 64 * STORED["shape"]["index_topk"]
    assert set(staged(shares=False)) == {2 * of_hidden}
    assert set(staged(shares=True)) == {2 * (of_hidden + of_keys)}


def recorded(made: ModelGraph, number: int, checkpoint: str) -> tuple[RecordedLayer, int]:
    """A layer of one sequence, and the slot of its chosen keys (-1: it makes none)."""
    kind, slots = made.kinds[made.layers[1 + number].kind], dict[tuple[str, str], int]()
    params = {t.name: Param(t.name, t.shape, "bf16", trainable=t.trainable) for t in tensors(kind)}
    run = LayerWorkload(1, 64, "bf16", params, checkpoint=checkpoint, ep=2, rows_per_token=2 << 16, first=number == 0)
    layer = record(kind, run, slots, {})
    return layer, next((slot for (name, _), slot in slots.items() if name.endswith("topk_indices")), -1)


def chosen(section: Section, slot: int) -> int:
    """Tensors of chosen keys that are born, less those that are freed."""
    sizes = [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[2] == slot]
    return sum((size > 0) - (size < 0) for size in sizes)


def chosen_first(section: Section, slot: int) -> int:
    """The same of the frees with which a section begins."""
    first = next((i for i, row in enumerate(section.rows) if row[0] != Op.FREE), len(section.rows))
    return chosen(Section(section.rows[:first]), slot)
