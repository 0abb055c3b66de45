"""Layers with Liger's kernels as measured: in fp32 under autocast, in bf16, with adapters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkout import ROOT
from eventlog import grouped
from simcore.models.graph import build, model_config
from simcore.operators.hf import liger as hf_liger
from simcore.operators.hf.implementation import record
from simcore.operators.hf.options import HfOptions, LigerKernels
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section

STORED: dict[str, Any] = json.loads((ROOT / "tests/truth/liger/layers-0.7.0.json").read_text(encoding="utf-8"))["cases"]
BATCH, SEQ, RANK = 2, 192, 8
LINEARS = ("_proj.weight",)


@pytest.fixture(autouse=True)
def _one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU that was asked counts as one."""
    monkeypatch.setattr(hf_liger, "_NUM_SMS", 1)


def params_of(case: dict[str, Any], kind: Any, tensors: Any) -> dict[str, Param]:
    """Parameters of a layer, and PEFT's of its linears where the case has adapters."""
    way = case["way"]
    stored, trains = ("fp32" if way == "wide" else "bf16"), way != "adapters"
    made = {t.name: Param(t.name, t.shape, stored, trainable=trains) for t in tensors if not t.is_buffer}
    if way == "adapters":
        for name, one in list(made.items()):
            if name.endswith(LINEARS):
                at, (out, into) = name.removesuffix("weight"), one.shape
                made[f"{at}lora_a.weight"] = Param(f"{at}lora_a.weight", (RANK, into), "fp32", trainable=True)
                made[f"{at}lora_b.weight"] = Param(f"{at}lora_b.weight", (out, RANK), "fp32", trainable=True)
    return made


def layer_of(case: dict[str, Any]) -> RecordedLayer:
    graph = build(model_config(case["preset"], case["shape"], "test"), "hf")
    number = graph.layers[2].kind
    rope, rms_norm, gated, _ = case["kernels"]
    kernels = LigerKernels(rope=rope, rms_norm=rms_norm, gated=gated, in_classes=case["place"] == "classes")
    wide = case["way"] != "narrow"
    eager = graph.architecture.family == "gemma2"
    options = HfOptions(autocast=wide, hidden="fp32" if case["way"] == "wide" else "", liger=kernels,
                        attn_implementation="eager" if eager else "sdpa")
    run = LayerWorkload(BATCH, SEQ, "bf16", params_of(case, graph.kinds[number], graph.tensors[number]),
                        options=options)
    return record(graph.kinds[number], run, {}, {})


def changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


@pytest.mark.parametrize("name", STORED)
def test_every_event_is_the_measured_one(name: str) -> None:
    layer = layer_of(STORED[name])
    for section in ("forward", "casts", "backward"):
        assert grouped(changes(getattr(layer, section))) == grouped(STORED[name]["found"][section]), section
