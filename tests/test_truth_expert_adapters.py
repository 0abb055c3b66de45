"""Adapters of fused experts against PEFT 0.21.2 and transformers 5.23: `truth/probe_expert_parameters.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import eventlog
import small
from checkout import ROOT
from simcore.errors import RankscopeError
from simcore.models.blocks import Moe
from simcore.operators.hf.moe import routed
from simcore.operators.hf.options import HfOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Node, Op, Param, Tape
from simcore.simulate import simulate

FOUND: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/adapters/experts-peft-0.21.2.json").read_text(encoding="utf-8"))
ADAPTERS, STEPS, EVENTS = FOUND["adapters"], FOUND["steps"], FOUND["events"]
SERVED = [name for name, case in ADAPTERS.items() if "trained" in case and name != "qwen3, router"]
REFUSED = [name for name in ADAPTERS if name not in SERVED]
RANK = 8
EXPERTS, HIDDEN, FFN, TOP_K, TOKENS = 8, 256, 128, 2, 64


# ---- which tensors ---------------------------------------------------------------------------------------------------
def asked(case: dict[str, Any]) -> dict[str, Any]:
    return {"model": {"config": case["model"], "overrides": {"num_hidden_layers": 2, **case.get("fields", {})}},
            "method": "lora", "lora": {"rank": RANK, "target_modules": case["targets"],
                                       "exclude_modules": case.get("exclude", []),
                                       "dropout": case.get("dropout", 0.0), "use_dora": case.get("dora", False)}}


def trained(case: dict[str, Any]) -> list[tuple[int, ...]]:
    """Shapes of all trained tensors, sorted."""
    graph = small.prepared("ddp", **asked(case))[0].graph
    return sorted(spec.shape for layer in graph.layers for spec in graph.tensors[layer.kind]
                  if spec.module == "adapter")


@pytest.mark.parametrize("name", SERVED)
def test_trained_tensors_are_those_of_peft(name: str) -> None:
    assert trained(ADAPTERS[name]) == sorted(tuple(shape) for shape in ADAPTERS[name]["trained"].values())


@pytest.mark.parametrize("name", REFUSED)
def test_what_peft_refuses_is_refused(name: str) -> None:
    """The router's adapter, which PEFT makes, is not modelled."""
    case = ADAPTERS[name]
    with pytest.raises(RankscopeError) as found:
        trained(case)
    (problem,) = found.value.problems
    assert "refused" in case or "not yet" in problem.message
    if name in ("qwen3, gate without up", "mixtral, w1 alone"):
        assert "cannot be adapted without" in problem.message
    elif "refused" in case:
        assert "do not work with" in problem.message


# ---- one module ------------------------------------------------------------------------------------------------------
def params_of(case: dict[str, Any]) -> dict[str, Param]:
    adapters = case.get("adapters", "bf16")
    made = {}
    for part, (rows, columns), rank in (("gate_up_proj", (2 * FFN, HIDDEN), 2 * RANK),
                                        ("down_proj", (HIDDEN, FFN), RANK)):
        name = f"mlp.experts.{part}"
        made[name] = Param(name, (EXPERTS, rows, columns), "bf16", trainable=False)
        if part == "down_proj" or len(case["targets"]) > 1:
            for end, shape in (("a", (rank * EXPERTS, columns)), ("b", (rows, rank * EXPERTS))):
                adapter = f"{name}.lora_{end}.weight"
                made[adapter] = Param(adapter, shape, adapters, True, "sharded_grad")
    return made


@pytest.mark.parametrize("name", EVENTS)
def test_a_module_allocates_what_peft_allocates(name: str) -> None:
    """Forward and backward of the experts; both begin with tensors that others hold."""
    case, tape = EVENTS[name], Tape({}, {})
    run = LayerWorkload(1, TOKENS, "bf16", params_of(case), options=HfOptions(grouped_experts=True))
    hidden, weights = (tape.empty(shape, "bf16", "input") for shape in ((TOKENS, HIDDEN), (TOKENS, TOP_K)))
    for tensor in (hidden, weights):
        tensor.node = Node((Param("leaf", tensor.shape, "bf16", True, "sharded_grad"),), (0,),
                           lambda tape, grads, saved: grads)
    indices = tape.empty((TOKENS, TOP_K), "int64", "indices")
    start = len(tape.rows)
    out = routed(tape, run, "mlp", Moe(HIDDEN, EXPERTS, TOP_K, FFN, 0, gated=True), hidden, indices, weights)
    assert eventlog.grouped(changes(tape, start)) == eventlog.grouped(case["found"]["forward"])
    grad = tape.empty(out.shape, out.dtype, "grad")
    start = len(tape.rows)
    tape.seed(out, grad)
    tape.backward()
    del out
    assert eventlog.grouped(changes(tape, start)) == eventlog.grouped(case["found"]["backward"])


def changes(tape: Tape, start: int) -> list[int]:
    return [row[3] for row in tape.rows[start:] if row[0] in (Op.ALLOC, Op.FREE)]


# ---- steps -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", STEPS)
def test_a_step_allocates_what_peft_allocates(name: str) -> None:
    """At the peaks of forward and of the step, and when it is over."""
    case = STEPS[name]
    report = simulate(small.scenario(
        "ddp", model={"config": case["preset"], "overrides": case["fields"]}, method="lora",
        lora={"rank": RANK, "target_modules": case["targets"], "dtype": case.get("adapters", "auto")},
        optimizer={"implementation": "fused"}, recompute="full" if case["recompute"] else "none",
        options={"experts_implementation": "grouped_mm"}))
    assert small.allocated(report) == case["found"]
