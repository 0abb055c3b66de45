"""Llama, Qwen2 and Qwen3 in Automodel: names, events and units beside its own, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import small
from eventlog import grouped
from simcore.graph import ModelGraph, build, model_config
from simcore.operators.automodel import RELEASE_0_7_0, record
from simcore.recording import LayerTape, Run
from simcore.rows import Op
from simcore.scenario import Scenario
from simcore.setup import prepare
from simcore.tape import Param, Section

TRUTH = Path(__file__).parent / "truth" / "tape" / "automodel-dense-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
PRESETS = {"llama": "llama-tiny", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "qwen3_moe": "qwen3-30b-a3b",
           "mixtral": "mixtral-8x7b"}
DENSE = ("llama", "qwen2", "qwen3")


def _graph(family: str) -> ModelGraph:
    fields = STORED["shape"] | (STORED["experts"] if family == "qwen3_moe" else {})
    return build(model_config(PRESETS[family], fields, "test"), "automodel")


@pytest.mark.parametrize("family", DENSE)
def test_tensors_are_those_that_automodel_registers(family: str) -> None:
    graph = _graph(family)
    found = []
    for layer in graph.layers:
        prefix = f"{layer.path}." if graph.kinds[layer.kind].block is None else ""
        found += [[prefix + t.name, list(t.shape)] for t in graph.tensors[layer.kind]]
    assert found == STORED["registered"][family]


def _record(family: str, batch: int, seq: int, checkpoint: str, options: tuple[tuple[str, str], ...] = ()) -> LayerTape:
    graph = _graph(family)
    kind = graph.layers[1].kind
    params = {t.name: Param(t.name, t.shape, "bf16", trainable=True) for t in graph.tensors[kind]}
    run = Run(batch, seq, "bf16", params, checkpoint=checkpoint, options=options)
    return record(graph.kinds[kind], run, {}, {})


def _changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_layer_allocates_what_automodel_s_does(name: str) -> None:
    row = STORED["layers"][name]
    case = row["case"]
    layer = _record(case["family"], case["batch"], case["seq"], "full" if case["checkpoint"] else "none")
    assert grouped(_changes(layer.forward)) == grouped(row["forward"])
    assert grouped(_changes(layer.backward)) == grouped(row["backward"])


@pytest.mark.parametrize("family", DENSE)
def test_a_checkpointed_layer_keeps_what_its_four_parts_are_given(family: str) -> None:
    """Inputs of two norms, attention and MLP; of these the output of the layer before is counted there."""
    kept = sum(_changes(_record(family, 1, 192, "full", RELEASE_0_7_0).forward))
    assert kept == 4 * 2 * 192 * STORED["shape"]["hidden_size"]


# ---- units -----------------------------------------------------------------------------------------------------------
def _units(case: dict[str, Any]) -> list[list[Any]]:
    overrides = STORED["shape"] | {"tie_word_embeddings": case.get("tied", False)}
    given: dict[str, Any] = {"model": {"config": PRESETS[case["family"]], "overrides": overrides}}
    if "reshard_after_forward" in case:
        given["options"] = {"reshard_after_forward": case["reshard_after_forward"]}
    if case.get("frozen"):
        given |= {"method": "lora", "lora": {"target_modules": ["*_proj"]}}
    asked = small.scenario("automodel", {"dp_shard": 8}, **given).normalised()
    job, table = prepare(Scenario.model_validate(asked | ({"implementation": "hf"} if case.get("hf") else {})))
    own = STORED["own"] if not case.get("hf") else ()
    assert job.graph.implementation == ("automodel" if any(a.lower().startswith(case["family"]) for a in own) else "hf")
    return sorted([u.name, bool(u.reshard_after_forward)] for u in table.units)


@pytest.mark.parametrize("name", [name for name, row in STORED["wrapped"].items()
                                  if row["case"]["family"] != "qwen3_moe" and "ahead" not in name])
def test_units_are_those_that_automodel_wraps(name: str) -> None:
    row = STORED["wrapped"][name]
    assert _units(row["case"]) == sorted([u["unit"] or "root", u["reshards"]] for u in row["units"])


def test_nothing_is_cast_on_the_way_in_or_out() -> None:
    units = [unit for row in STORED["wrapped"].values() for unit in row["units"]]
    assert {(tuple(u["policy"]), u["casts"]) for u in units} == {(("bfloat16", "float32", "None"), False)}


def test_what_a_checkpoint_wraps() -> None:
    parts = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
    for family in (*DENSE, "qwen3_moe"):
        assert STORED["wrapped"][family]["checkpoints"] == [f"model.layers.{i}.{p}" for i in range(3) for p in parts]
    for name in ("mixtral", "qwen3 by transformers"):
        assert STORED["wrapped"][name]["checkpoints"] == [f"model.layers.{i}" for i in range(3)]
