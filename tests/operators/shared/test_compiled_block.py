"""Tapes of transformers' layers that are compiled alone, against Inductor's own code: tests/truth/tape/README.md."""

from __future__ import annotations

import json
from functools import cache
from math import prod
from typing import Any

import pytest

from checkout import ROOT
from compiled_tape import changes_of, measured_of, top
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.options import HfOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Param

TRUTH = ROOT / "tests/truth" / "tape" / "layer-compiled-torch-2.13.0-transformers-5.23.0.json"
CASES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
COLUMNS = 0.004
"""Small tensors, left out of the highest moment: inverse norms, and sums over rows."""
PLACES = [(name, at) for name in CASES for at in ("forward", "backward")]
GIVEN = ("position_ids", "cos", "sin")


@cache
def recorded(name: str) -> tuple[RecordedLayer, dict[tuple[str, str], int]]:
    case = CASES[name]["case"]
    graph = build(model_config(case["preset"], case["overrides"], "test"), "hf")
    number = next(i for i, kind in enumerate(graph.kinds) if kind.block is None)
    lora = case.get("lora")
    params = {spec.name: Param(spec.name, spec.shape, "bf16", trainable=lora is None) for spec in graph.tensors[number]}
    for spec in graph.tensors[number]:
        if lora and spec.module == "linear" and spec.path.rpartition(".")[2] in lora["targets"]:
            names = (f"{spec.path}.lora_a.weight", f"{spec.path}.lora_b.weight")
            shapes = ((lora["r"], spec.shape[1]), (spec.shape[0], lora["r"]))
            params |= {n: Param(n, s, "bf16", trainable=True) for n, s in zip(names, shapes, strict=True)}
    run = LayerWorkload(case.get("batch", 1), case["seq"], "bf16", params, options=HfOptions(compiled_layers=True))
    slots: dict[tuple[str, str], int] = {}
    return hf.record(graph.kinds[number], run, slots, {}), slots


def changes(name: str, at: str) -> list[int]:
    """Births and deaths, without what is made outside the layer: its input, its output's gradient, rotary tables."""
    tape, slots = recorded(name)
    outside = {slots.get((label, "activation")) for label in GIVEN}
    return changes_of(getattr(tape, at), outside)


def measured(name: str, at: str) -> list[int]:
    return measured_of(CASES[name], at)


@pytest.mark.parametrize(("name", "at"), PLACES)
def test_net_bytes_are_those_of_inductor_s_code(name: str, at: str) -> None:
    mine, truth = changes(name, at), measured(name, at)
    assert abs(sum(mine) - sum(truth)) <= COLUMNS * top(measured(name, "forward"))


@pytest.mark.parametrize(("name", "at"), PLACES)
def test_the_most_that_is_there_is_that_of_inductor_s_code(name: str, at: str) -> None:
    mine, truth = top(changes(name, at)), top(measured(name, at))
    assert abs(mine - truth) <= COLUMNS * truth


@pytest.mark.parametrize("name", CASES)
def test_what_is_kept_beside_inputs_has_the_measured_sizes(name: str) -> None:
    """Numbers of rows apart, which are not modelled."""
    sizes = {"bfloat16": 2, "float32": 4}
    kept = sum(prod(shape) * sizes[dtype] for tensor, dtype, shape in CASES[name]["kept"]
               if not tensor.startswith("primals") and shape[-1] > 1)
    out = next(change for change in reversed(measured(name, "forward")) if change > 0)
    assert sum(changes(name, "forward")) == out + kept
