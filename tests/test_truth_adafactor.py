"""Adafactor of transformers under each framework: `tests/truth/probe_adafactor.py`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout
from simcore.frameworks.common.steps import adafactor
from simcore.frameworks.fsdp1.flat_parameters import exact_in_units, parts_updated
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.recording.tape import Op

TRUTH: Final[dict[str, Any]] = {name: case for file in ("adafactor", "drawn-adafactor") for name, case in json.loads(
    (ROOT / f"tests/truth/optimizers/{file}-5.23.0.json").read_text(encoding="utf-8"))["cases"].items()}
RAN: Final = {name: case for name, case in TRUTH.items() if "refused" not in case["found"]}
FLAT: Final = [name for name, case in RAN.items() if case["framework"][-1] in "123"
               and case["options"].get("strategy") != "NO_SHARD"]
WHOLE: Final = [name for name in RAN if name not in FLAT]
FORMS: Final = {"bfloat16": "bf16", "float32": "fp32"}


def given(case: dict[str, Any]) -> tuple[str, dict[str, int], dict[str, Any]]:
    """Framework, mesh and all else of a scenario."""
    framework, asked, options = case["framework"], case["options"], {}
    axis = "dp_replicate" if framework in ("ddp", "zero0") else "dp_shard"
    rest: dict[str, Any] = {"precision": {"params": FORMS[case["stored"]]} if framework in ("ddp", "fsdp1") else {}}
    if framework == "ddp" and case["stored"] == "float32":
        rest["precision"]["compute"] = "fp32"
    if framework == "fsdp1":
        options = {"use_orig_params": asked.get("use_orig_params", False)}
        options |= {"sharding_strategy": asked["strategy"]} if "strategy" in asked else {}
        axis = "dp_replicate" if "strategy" in asked else axis
    elif framework == "zero3":
        options = {name: asked[name] for name in ("sub_group_size",) if name in asked}
    if case["lora"]:
        form = FORMS[asked.get("adapters", case["stored"])]
        rest |= {"method": "lora", "lora": {"rank": case["lora"], "target_modules": ["q_proj", "v_proj"], **(
            {"dtype": form} if framework == "ddp" else {})}}
    if "offload_optimizer" in asked:
        rest["offload"] = {"optimizer": "host"}
    return framework, {axis: case["ranks"]}, {
        **rest, "model": {"config": case["preset"], "overrides": case["model"]}, "options": options,
        "rank": case["rank"], "optimizer": {"name": "adafactor"}}


def made(case: dict[str, Any]) -> Program:
    framework, mesh, rest = given(case)
    small.forget_outlines()
    return small.program_of(framework, mesh, **rest)


def allocated(program: Program, category: str, phase: Phase) -> list[int]:
    """Bytes of each allocation of a category in a phase."""
    names = list(program.tables.slots)
    return [size for (op, _, slot, size, *_), at in zip(program.columns.tolist(), program.phase.tolist(), strict=True)
            if op == Op.ALLOC and size and at == phase and names[slot][1] == category]


def held(program: Program) -> list[int]:
    """Bytes that each call of the optimizer holds."""
    names = list(program.tables.slots)
    return [size for op, _, slot, size, *_ in program.columns.tolist()
            if op == Op.ALLOC and size and names[slot][0] == "sqrt_exp_avg_sq"]


@pytest.mark.parametrize("name", WHOLE)
def test_states_of_each_tensor_are_upstreams(name: str) -> None:
    case = RAN[name]
    framework, mesh, rest = given(case)
    plan = small.plan_of(framework, mesh, **rest)
    ours = Counter(tuple(sorted((state, size // 4 // p.used_copies) for state, size in p.states
                                if state != "master_param"))
                   for layer in plan.layers for p in plan.of_layer(layer) for _ in range(p.used_copies) if p.states)
    assert ours == Counter(tuple(sorted(states.items())) for states in case["found"]["states"])


@pytest.mark.parametrize("name", FLAT)
def test_states_of_flat_parts_are_upstreams(name: str) -> None:
    """Without the one number that it keeps of each part."""
    case = RAN[name]
    theirs = sum(states.get("exp_avg_sq", 0) for states in case["found"]["states"])
    framework, mesh, rest = given(case)
    if case["options"].get("use_orig_params"):  # the ledger has a mean over the ranks
        plan = small.plan_of(framework, mesh, **rest)
        assert sum(one.optimizer_bytes for one in exact_in_units(plan).values()) == 4 * theirs
    else:
        assert sum(allocated(made(case), "opt_state", Phase.BUILD)) == 4 * theirs


@pytest.mark.parametrize("name", RAN)
def test_the_step_holds_what_upstreams_second_one_does(name: str) -> None:
    case = RAN[name]
    ours = held(made(case))
    if case["options"].get("use_orig_params") and name in FLAT:  # of the rank that holds most
        framework, mesh, rest = given(case)
        plan = small.plan_of(framework, mesh, **rest)
        every = [adafactor.held(parts_updated(plan, at)) for at in range(case["ranks"])]
        assert every[case["rank"]] == case["found"]["peaks"][1][0]
        assert ours == [max(every)]
    else:
        assert ours == case["found"]["peaks"][1]


@pytest.mark.parametrize("name", [name for name in TRUTH if name not in RAN])
def test_what_upstream_refuses_is_refused(name: str) -> None:
    framework, mesh, rest = given(TRUTH[name])
    with pytest.raises(IllegalLayout):
        small.plan_of(framework, mesh, **rest)


@pytest.mark.parametrize("name", RAN)
def test_the_first_step_makes_the_states_beside_what_it_holds(name: str) -> None:
    """The ledger has all states from the begin, so that its first step is upstream's or a little more."""
    found = RAN[name]["found"]
    born = [4 * sum(states.values()) for states in found["states"]]
    calls = born if len(found["peaks"][0]) > 1 else [sum(born)]
    for first, second, states in zip(*found["peaks"], calls, strict=True):
        assert second <= first <= second + states
