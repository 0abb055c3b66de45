"""Automodel's dense families under its tensor parallel plans as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import pytest

from checkout import ROOT
from eventlog import grouped
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.automodel.lora import adapters
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import RELEASE_0_7_0, AutomodelOptions
from simcore.operators.automodel.tensors import tensors
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.options import HfOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-tp-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
PRESETS = {"llama": "llama-3.1-8b", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "phi": "phi-2",
           "seed_oss": "seed-oss-36b", "mixtral": "mixtral-8x7b", "phi3": "phi-4"}
WITHOUT_DROPOUT: dict[str, dict[str, float]] = {
    "phi": {"resid_pdrop": 0.0}, "seed_oss": {"residual_dropout": 0.0, "attention_dropout": 0.0}}
BY_THEIR_PLAN = ("mixtral", "seed_oss")
SEQ, TP = STORED["seq"], STORED["tp"]
NUMBERS = 2 * 8 * SEQ
"""Bytes of indices of the largest batch: indices, their masks and single numbers are left out."""
TABLE = 4 * SEQ * STORED["shape"]["head_dim"]
"""Rotary tables, which the engine counts with the embedding; behind the table's gradient FSDP2 copies its rows."""
ROWS = ("o_proj", "down_proj", "dense", "fc2")
BETWEEN_NODES = int(87.7 * 2**30 / 10**6) * 22 // 100 * TP // (TP - 1)
"""A CPU's ranks are reckoned as if each had a node of its own."""
A_SIZES = {parts * 8 * STORED["shape"][name] // TP * 2 for name in ("hidden_size", "intermediate_size")
           for parts in (1, TP)}
PLACES = {"embedding": 0, "head": -2, "loss": -1}


def graph(family: str, layers: str = "automodel") -> ModelGraph:
    shape = STORED["shape"] | WITHOUT_DROPOUT.get(family, {})
    if family == "phi":  # its heads have the size that is left
        shape = {key: value for key, value in shape.items() if key != "head_dim"} | {"partial_rotary_factor": 0.5}
    return build(model_config(PRESETS[family], shape, "test"), layers)


def local(name: str, shape: tuple[int, ...], rows: tuple[str, ...] = ROWS) -> tuple[int, ...]:
    """This rank's part: norms and experts are whole, outputs of the last linears of a block too."""
    whole = any(part in name for part in ("norm", ".experts.", ".gate."))
    if whole or (len(shape) == 1 and any(part in name for part in rows)):
        return shape
    if any(part in name for part in rows):
        return (shape[0], shape[1] // TP)
    return (shape[0] // TP, *shape[1:])


def recorded(family: str, place: int, case: dict[str, Any], names: dict[tuple[str, str, str], int]) -> RecordedLayer:
    by_hf = case.get("hf", False)
    made = graph(family, "hf" if by_hf else "automodel")
    kind = made.kinds[made.layers[place].kind]
    specs = (hf.tensors if by_hf else tensors)(kind)
    lora = LoraChoice(case["lora"]["dim"]) if "lora" in case else None
    extra = adapters(kind, specs, lora) if lora else ()
    rows = ("qkv_proj", "down_proj") if family == "phi3" else ROWS
    params = {t.name: Param(t.name, local(t.name, t.shape, rows), "bf16", trainable=not extra or t in extra)
              for t in (*specs, *extra)}
    eager: Literal["eager", "sdpa"] = "eager" if "attention" in case else "sdpa"
    measured = AutomodelOptions(attn_implementation=eager, fuses_lora_mlp=False, turns_adapters_from=BETWEEN_NODES)
    run = LayerWorkload(case["batch"], SEQ, "bf16", params, tp=TP,
                        options=HfOptions(automodel=replace(measured, gathers_logits=family in BY_THEIR_PLAN),
                                          grouped_experts=True) if by_hf else
                        measured if kind.block is None else RELEASE_0_7_0,
                        loss="masked_fp32" if case.get("upcast", True) else "masked",
                        checkpoint="full" if case.get("checkpoint") else "none")
    return (hf.record if by_hf else record)(kind, run, {}, names)


def changes(*sections: Section, least: int = 0) -> list[int]:
    return [row[3] for section in sections for row in section.rows
            if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) > least]


def sent(section: Section, names: dict[tuple[str, str, str], int]) -> list[str]:
    """Collectives; what is gathered is counted whole here, and as it was sent there."""
    kinds = {number: name[0] for name, number in names.items()}
    found = [(kinds[row[2]], row[3]) for row in section.rows if row[0] == Op.COLLECTIVE]
    words = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
    return [f"{words.get(kind, kind)} {size // TP if kind == 'all_gather' else size}" for kind, size in found]


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_layer_allocates_and_sends_what_automodel_s_does(name: str) -> None:
    names: dict[tuple[str, str, str], int] = {}
    row = STORED["layers"][name]
    layer = recorded(row["case"]["family"], 1, row["case"], names)
    if row["case"]["family"] == "phi":
        skipped = {width * row["case"]["batch"] * SEQ for width in (2, 4)} | {2 * STORED["shape"]["hidden_size"]}
        _same_but(skipped, layer, row, names)
        return
    assert grouped(changes(layer.forward)) == grouped(row["forward"])
    backward, sends = changes(layer.backward), sent(layer.backward, names)
    if "lora" in row["case"]:  # FSDP2's post-backward, which the probe does not run, scatters whole gradients of B
        width = row["case"]["lora"]["dim"] * STORED["shape"]["hidden_size"] * 2
        if row["case"]["family"] == "phi3":  # and exchanges A of the last linear
            backward, sends = backward[:-14], sends[:-3]
        else:
            count = 1 if row["case"]["family"] == "mixtral" else 2  # its experts have none
            assert backward[-4 * count:] == [width, width // TP, -width, -width] * count
            assert sends[-count:] == [f"reduce_scatter_tensor {width}"] * count
            backward, sends = backward[:-4 * count], sends[:-count]
    elif row["case"]["family"] == "phi3":  # and cuts the whole gradient of the last linear
        backward = backward[:-2]
    if row["case"]["batch"] > 2:  # a CPU gathers A and cuts it where a GPU exchanges it
        mine, theirs = ([change for change in one if abs(change) not in A_SIZES] for one in (backward, row["backward"]))
        assert grouped(mine) == grouped(theirs)
        sends = [one.replace("all_to_all", "all_gather_into_tensor") for one in sends]
    else:
        assert grouped(backward) == grouped(row["backward"])
    assert [sent(layer.forward, names), sends] == row["sent"]


def _same_but(skipped: set[int], layer: RecordedLayer, row: dict[str, Any],
              names: dict[tuple[str, str, str], int]) -> None:
    """Statistics of LayerNorm are fp32 on CUDA alone; a bias is divided behind what a replay still makes."""
    for section, theirs in ((layer.forward, row["forward"]), (layer.backward, row["backward"])):
        mine, stored = ([change for change in one if abs(change) not in skipped]
                        for one in (changes(section), theirs))
        assert grouped(mine) == grouped(stored)
    assert [sent(section, names) for section in (layer.forward, layer.backward)] == row["sent"]


@pytest.mark.parametrize("name", STORED["parts"])
def test_what_is_split_by_vocabulary_allocates_and_sends_what_automodel_s_does(name: str) -> None:
    names: dict[tuple[str, str, str], int] = {}
    row = STORED["parts"][name]
    case = row["case"]
    layer = recorded(case.get("family", "llama"), PLACES[case["part"]], case, names)
    for section, at in ((layer.forward, "forward"), (layer.backward, "backward")):
        stored = [change for change in row[at] if abs(change) > NUMBERS]
        found = [change for change in changes(section, least=NUMBERS) if abs(change) != TABLE]
        assert grouped(found if case["part"] != "embedding" else found[:len(stored)]) == grouped(stored)
    assert [sent(section, names) for section in (layer.forward, layer.backward)] == row["sent"]
