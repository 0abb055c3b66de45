"""States of 8 and 4 bits and paged states under DeepSpeed: `tests/truth/probe_zero_states.py`."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.memory.ledger import balance
from simcore.placement.plan import Plan
from simcore.simulate import simulate

FILES: Final = ("states", "drawn-states", "drawn4-states")
TRUTH: dict[str, Any] = {name: case for file in FILES for name, case in json.loads(
    (ROOT / f"tests/truth/deepspeed/{file}-0.19.6.json").read_text(encoding="utf-8"))["cases"].items()}
PLACED: Final = {name: case for name, case in TRUTH.items() if "refused" not in case["found"]}
OPTIMIZERS: Final[dict[str, dict[str, Any]]] = {
    "bnb8": {"moments": "int8"}, "bnb8_paged": {"moments": "int8", "paged": True},
    "bnb32": {"implementation": "bitsandbytes"}, "bnb32_paged": {"implementation": "bitsandbytes", "paged": True},
    "ao8": {"moments": "int8", "implementation": "torchao"}, "ao4": {"moments": "int4"}}


def asked(case: dict[str, Any]) -> tuple[str, dict[str, int], dict[str, Any]]:
    """Framework, mesh and all else of a scenario."""
    axis = "dp_shard" if case["stage"] else "dp_replicate"
    trained = {"method": "lora", "lora": {"rank": case["lora"], "target_modules": ["q_proj", "v_proj"]}}
    options = {name: value for name, value in case["options"].items() if name != "offload_optimizer"}
    return f"zero{case['stage']}", {axis: case["ranks"]}, {
        "rank": case["rank"], "model": {"config": "llama-3.2-3b", "overrides": case["model"]}, "options": options,
        "optimizer": {"name": "adamw", **OPTIMIZERS[case["optimizer"]]},
        **({"offload": {"optimizer": "host"}} if "offload_optimizer" in case["options"] else {}),
        **(trained if case["lora"] else {})}


def plan_of(case: dict[str, Any]) -> Plan:
    framework, mesh, given = asked(case)
    return small.plan_of(framework, mesh, **given)


def of(case: dict[str, Any], *, managed: bool) -> int:
    return sum(size for states in case["found"]["states"] for size, away in states.values() if away == managed)


@pytest.mark.parametrize("name", PLACED)
def test_masters_and_states_on_the_device_are_upstreams(name: str) -> None:
    case = PLACED[name]
    framework, mesh, given = asked(case)
    small.forget_outlines()
    program = small.program_of(framework, mesh, **given)
    found = small.taken(program, "main_param", "opt_state")
    assert found == {"main_param": 4 * sum(case["found"]["masters"]), "opt_state": of(case, managed=False)}
    assert balance(program).peak_bytes > sum(found.values())


def test_paged_states_are_upstreams_but_for_alignment() -> None:
    """A mean of each tensor is counted, which is rounded down; upstream's parts are aligned."""
    paged = 0
    for name, case in PLACED.items():
        plan, theirs = plan_of(case), of(case, managed=True)
        tensors = sum(count * len(plan.kinds[kind]) for kind, count in plan.kind_counts)
        assert 0 <= theirs - plan.elsewhere().get("managed", 0) <= 8 * (tensors + 2), name
        paged += bool(theirs)
    assert paged == 12


def test_bytes_at_rest_hold_the_scales() -> None:
    """The mean of a class, within the alignment of the masters, which no component counts."""
    for name, case in PLACED.items():
        framework, mesh, given = asked(case)
        del given["rank"]
        (rank, *_) = simulate(small.scenario(framework, mesh, **given)).ranks
        ours = sum(component.optimizer_bytes for component in rank.at_rest.values())
        theirs = 4 * sum(case["found"]["masters"]) + of(case, managed=False)
        assert abs(ours - theirs) <= 16 * len(rank.at_rest) + 8 * case["ranks"] + 600, name


def test_states_on_the_host_are_refused_as_deepspeed_refuses_them() -> None:
    refused = [case for case in TRUTH.values() if case not in PLACED.values()]
    assert len(refused) == 2
    for case in refused:
        assert "ZeRO-Offload with a client provided optimizer" in case["found"]["refused"]
        with pytest.raises(IllegalLayout, match="ZeRO-Offload with a client provided optimizer"):
            plan_of(case)


def test_sub_groups_on_both_sides_of_the_least_paged_part_are_refused() -> None:
    case = PLACED["3, groups"]
    assert sorted(numel >= 100_000 for numel in case["found"]["masters"]) == [False, True, True, True]
    with pytest.raises(NotYet, match="some have fewer than 100,000 elements"):
        plan_of(case | {"optimizer": "bnb8_paged"})
