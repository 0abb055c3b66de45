"""Adapters of single linears against PEFT: dropout, DoRA and rsLoRA, every allocation in its order."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

import eventlog
from checkout import ROOT
from simcore.operators.hf.layers import linear
from simcore.operators.hf.options import HfOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.number_formats import PackedWeights
from simcore.recording.tape import Op, Param, Tape, Tensor

PEFT: dict[str, Any] = json.loads((ROOT / "tests/truth/adapters/peft-0.21.2.json").read_text(encoding="utf-8"))
OUT, IN = PEFT["shape"]
RANK = 8


def params_of(case: dict[str, Any]) -> dict[str, Param]:
    kind, adapter = case.get("base", "bf16"), case.get("adapters", "bf16")
    packed = PackedWeights("nf4", 64, double_quant=case.get("double_quant", True), storage="uint8") if kind == "nf4" else None
    shapes = {"lora_a": (RANK, IN), "lora_b": (OUT, RANK)} | (
        {"lora_magnitude_vector": (OUT,)} if case.get("dora") else {})
    stored = "bf16" if kind == "nf4" else kind
    made = [Param("one.weight", (OUT, IN), stored, False, "sharded_param", packed=packed)]
    made += [Param(f"one.{name}.weight", shape, adapter, True, "sharded_grad") for name, shape in shapes.items()]
    made += [Param("one.bias", (OUT,), stored, False, "sharded_param")] * case.get("bias", False)
    return {param.name: param for param in made}


def changes(tape: Tape, start: int) -> list[int]:
    return [row[3] for row in tape.rows[start:] if row[0] in (Op.ALLOC, Op.FREE)]


def passed(case: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Signed bytes of a forward and of its backward."""
    tape, params = Tape({}, {}), params_of(case)
    options = HfOptions(autocast=case.get("autocast", False), lora_dropout="pre" if case.get("dropout") else "")
    run = LayerWorkload(2, PEFT["rows"] // 2, "fp32" if case.get("x") == "fp32" and not case.get("autocast") else
                        "bf16", params, options=options)
    x = tape.empty((2, PEFT["rows"] // 2, IN), case.get("x", "bf16"), "x")
    source = Param("x", (1,), "bf16", True, "sharded_grad")
    x.node = None if case.get("first") else tape.node((source,), (), lambda tape, grads, saved: [None])
    start = len(tape.rows)
    region = partial(linear, tape, run, "one", x)  # holds the input for as long as a replay may need it
    out = tape.checkpoint(region) if case.get("recompute") else region()
    tape.casts.clear()
    forward = changes(tape, start)
    grad = tape.empty(out.shape, out.dtype, "grad")
    start = len(tape.rows)
    tape.seed(out, grad)
    node = out.node
    del out, x, region
    tape.backward()
    del node, grad
    return forward, changes(tape, start)


@pytest.mark.parametrize("name", PEFT["cases"])
def test_a_linear_allocates_what_peft_allocates(name: str) -> None:
    case = PEFT["cases"][name]
    forward, backward = passed(case)
    assert eventlog.grouped(forward) == eventlog.grouped(case["found"]["forward"])
    assert eventlog.grouped(backward) == eventlog.grouped(case["found"]["backward"])


@pytest.mark.parametrize("name", PEFT["cases"])
def test_trained_parameters_are_those_of_peft(name: str) -> None:
    case = PEFT["cases"][name]
    ours = {tuple(p.shape): f"torch.{dict(bf16='bfloat16', fp32='float32')[p.dtype]}" for p in params_of(case).values()
            if p.trainable}
    assert ours == {tuple(shape): dtype for shape, dtype in case["found"]["parameters"].values()}
