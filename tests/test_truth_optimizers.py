"""States and steps of Lion, AdEMAMix, RMSprop, Adagrad and SGD: `tests/truth/probe_optimizers.py`."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.common.optimizer_memory import form_of, optimizer_sizes
from simcore.frameworks.deepspeed.partitions import updated_parts
from simcore.frameworks.fsdp1.flat_parameters import exact_in_units, flat_units
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.placement.optimizer_step import made_after_backward
from simcore.placement.plan import Plan

FILES: Final = ("shaped", "drawn-shaped", "drawn-flat", "drawn-decayed")
TRUTH: dict[str, Any] = {name: case for file in FILES for name, case in json.loads(
    (ROOT / f"tests/truth/optimizers/{file}.json").read_text(encoding="utf-8"))["cases"].items()}
REFUSED: Final = {name: case for name, case in TRUTH.items() if "refused" in case["found"]}
ADAGRAD: Final = {name: case for name, case in TRUTH.items() if case["found"].get("left")}
WRAPPED: Final = {name: case for name, case in TRUTH.items() if "wrap" in case and name not in REFUSED}
AWAY: Final = {name: case for name, case in TRUTH.items() if "offload_optimizer" in case["options"]
               and name not in REFUSED}
CUT: Final = {name: case for name, case in TRUTH.items() if name not in {*WRAPPED, *REFUSED, *AWAY, *ADAGRAD}
              and case["optimizer"] != "adagrad_foreach"}
FLAT: Final = {name for name, case in WRAPPED.items() if case["options"].get("use_orig_params") is False}
"""Cases with flat parameters of FSDP1, of which some are too small to be paged."""
FRAMEWORKS: Final = {"none": "ddp", "fsdp1": "fsdp1", "fsdp2": "fsdp2"}


def optimizer_of(name: str, *, away: bool = False) -> dict[str, Any]:
    """Words of a scenario for the probe's name."""
    kind, *words = name.removeprefix("own_").split("_")
    if name.startswith("own_"):
        return {"name": kind, "implementation": "auto" if away else "fused"}
    if {"8", "32"} & {*words}:
        return {"name": kind, "implementation": "bitsandbytes", "moments": "int8" if "8" in words else "auto",
                "paged": "paged" in words}
    form = next(words for words in ("fused", "foreach", "loop") if words in name)
    return {"name": kind, "implementation": "for_loop" if form == "loop" else form,
            **({"momentum": 0.9} if "momentum" in words else {}),
            **({"weight_decay": 0.1} if "decay" in words else {})}


def asked(case: dict[str, Any]) -> tuple[str, dict[str, int], dict[str, Any]]:
    """Framework, mesh and all else of a scenario."""
    stage = case.get("stage")
    framework = f"zero{stage}" if stage is not None else FRAMEWORKS[case["wrap"]]
    axis = "dp_replicate" if framework in ("zero0", "ddp") else "dp_shard"
    params = {"float32": "fp32", "bfloat16": "bf16"}.get(case.get("dtype", ""), "auto")
    return framework, {axis: case["ranks"]}, {
        "rank": case["rank"], "model": {"config": "llama-3.2-3b", "overrides": case["model"]},
        "optimizer": optimizer_of(case["optimizer"], away="offload_optimizer" in case["options"]),
        "precision": {"params": params},
        **({"options": {"use_orig_params": True} | case["options"]} if framework == "fsdp1" else {}),
        **({"offload": {"optimizer": "host"}} if "offload_optimizer" in case["options"] else {})}


def plan_of(case: dict[str, Any]) -> Plan:
    framework, mesh, given = asked(case)
    return small.plan_of(framework, mesh, **given)


@pytest.mark.parametrize("name", WRAPPED)
def test_states_are_the_librarys(name: str) -> None:
    case, plan = WRAPPED[name], plan_of(WRAPPED[name])
    found = case["found"]
    if case["wrap"] == "fsdp1":  # a plan counts the mean of all ranks
        ours = sum(one.optimizer_bytes for one in exact_in_units(plan).values())
    else:
        ours = plan.born_in_step()
        assert plan.elsewhere().get("managed", 0) == found["managed"]
    assert OPTIMIZERS[plan.framework.optimizer.name].is_early == (found["built"] > 0)
    if found["built"]:
        assert made_after_backward(plan) == 0
    if name not in FLAT:
        assert ours == found["states"]
        return
    parts, kinds = flat_units(plan), len(OPTIMIZERS[plan.framework.optimizer.name].kept(0.9))
    assert abs(ours - found["states"]) <= 64 * kinds * len(parts)
    assert abs(plan.elsewhere().get("managed", 0) - found["managed"]) <= 64 * kinds * len(parts)


@pytest.mark.parametrize("name", [name for name, case in WRAPPED.items() if "steps" in case["found"]])
def test_a_step_holds_what_the_librarys_holds(name: str) -> None:
    """The second step; the first has made its states besides at its end, and no more at any time."""
    case, plan = WRAPPED[name], plan_of(WRAPPED[name])
    first, second = case["found"]["steps"]
    held = optimizer_sizes(plan).held
    if case["wrap"] != "fsdp1":
        assert held == second
    assert first <= second + case["found"]["states"] - case["found"]["built"]


@pytest.mark.parametrize("name", CUT)
def test_flat_parts_have_upstreams_states_and_copies(name: str) -> None:
    case = CUT[name]
    framework, mesh, given = asked(case)
    small.forget_outlines()
    program = small.program_of(framework, mesh, **given)
    found = small.taken(program, "main_param", "opt_state")
    states = sum(size for state in case["found"]["states"] for size, away in state.values() if not away)
    assert found == {"main_param": 4 * sum(case["found"]["masters"]), "opt_state": states}
    if case["found"]["steps"]:
        plan = plan_of(case)
        held = [size for owner, _, size in small.postings(program, "sqrt_exp_avg_sq") if size > 0]
        own = [optimizer_sizes(plan).held] if framework == "zero0" else [
            4 * part * max(form_of(plan).at_once, form_of(plan).of_one) for part in updated_parts(plan)]
        assert own == case["found"]["steps"]
        assert held == [size for size in own if size]


@pytest.mark.parametrize("name", AWAY)
def test_deepspeeds_own_optimizers_have_more_states_on_the_host(name: str) -> None:
    """Lion for CPUs has a second moment. Gradients lie there too; parts are aligned, tensors' bytes are not."""
    case, plan = AWAY[name], plan_of(AWAY[name])
    gradients = 6 if case["stage"] == 3 else 4  # in fp32, at stage 3 also in 16 bits
    theirs = (4 + gradients) * sum(case["found"]["masters"]) + sum(
        size for state in case["found"]["states"] for size, _ in state.values())
    ours = plan.elsewhere()["host"]
    names = {state for p in plan.kinds[0] for state, _ in p.policy.optimizer_states}
    assert names - {"master_param", "grad_copy"} == {*case["found"]["states"][0]}
    assert abs(theirs - ours) <= 16 * sum(count * len(plan.kinds[kind]) for kind, count in plan.kind_counts)


@pytest.mark.parametrize("name", REFUSED)
def test_what_stops_upstream_is_refused(name: str) -> None:
    if "lion" in name and "host" in name and "8" not in name:
        return  # the scenario's Lion on the host is DeepSpeed's own, by its configuration
    with pytest.raises(IllegalLayout):
        plan_of(REFUSED[name])


def test_adagrads_first_states_are_not_modelled_under_deepspeed() -> None:
    """DeepSpeed replaces the optimizer, and still holds the first: its states of all parameters, in 16 bits."""
    assert {case["found"]["left"] for case in ADAGRAD.values()} == {2 * 1824000}
    for case in ADAGRAD.values():
        with pytest.raises(NotYet, match="keeps the states of whole parameters"):
            plan_of(case)
