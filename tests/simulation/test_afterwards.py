"""Phases beside the steps: their order, where none is asked for, and other workloads."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from simcore.inputs.document import parse_document
from simcore.inputs.evaluation import Evaluation
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check, simulate


def test_phases_are_in_the_order_in_which_they_happen() -> None:
    plain = small.scenario("ddp", model="llama-tiny", method="lora", lora={"target_modules": ["q_proj", "o_proj"]})
    chosen = plain.checkpoint.model_copy(update={"merge": "device"})
    asked = plain.model_copy(update={"evaluation": Evaluation(generate_tokens=4), "checkpoint": chosen})
    host, before = simulate(asked, timed=False).host, simulate(plain, timed=False).host
    assert host is not None
    assert before is not None
    assert [p.phase for p in host.phases] == ["load", "first_step", "evaluation", "generate", "save", "merge"]
    assert [p.phase for p in before.phases] == ["load", "first_step", "save"]
    assert [p for p in host.phases if p.phase in ("load", "first_step", "save")] == list(before.phases)


@pytest.mark.parametrize("more", [{"evaluation": {}}, {"checkpoint": {"merge": "host"}},
                                  {"checkpoint": {"export": "host"}}])
def test_other_workloads_refuse_them(more: dict[str, Any]) -> None:
    data = {"name": "a", "workload": "serve", "model": "llama-3-8b", "topology": "dgx-h100",
            "generation": {"max_model_len": 1024}, **more}
    scenario = parse_scenario(parse_document(json.dumps(data), "a.json"))
    for answer in (simulate(scenario), check(scenario)):
        (problem,) = answer.problems
        assert "with the workload serve (served: train)" in problem.message
