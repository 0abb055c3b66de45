"""States that leave the device asleep, against DeepSpeed's own engine (truth/probe_openrlhf_sleep.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.inputs.scenario import Scenario
from simcore.rl.openrlhf.sleep import sleep_of
from simcore.rl.step.forward import passes
from simcore.simulation.simulation import placed_simulation

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/openrlhf/sleep.json").read_text(encoding="utf-8"))
KINDS = {"optim_states": "opt_state", "hp_params": "main_param", "lp_grads": "main_grad",
         "contiguous_grad_buffer": "reduce_scatter_input"}
STEP = 8
"""Bytes of the counts of steps of two groups of parameters, which are on the host in any case."""
PADDED = {(1, 1): 32, (2, 1): 32}
"""Bytes more on an odd number of ranks: two groups of parameters are padded each, and one group of all is modelled."""


def rest_of(case: dict[str, Any]) -> dict[str, int]:
    """Bytes by category that rest on the device."""
    model = {"config": "llama-3.2-3b", "overrides": case["model"]}
    asked: Scenario = small.scenario(f"zero{case['stage']}", {"dp_shard": case["ranks"]}, model=model)
    return dict(passes(placed_simulation(asked), timed=False, in_place=True, trains=True).rest[0])


@pytest.mark.parametrize("name", [name for name, case in TRUTH["cases"].items() if not case["adam_offload"]])
def test_what_leaves_the_device_asleep_is_what_deepspeed_moves(name: str) -> None:
    case = TRUTH["cases"][name]
    found, asleep = case["found"], sleep_of(rest_of(case), "all" if case["stage"] == 3 else "states")
    theirs = {KINDS[kind]: size for kind, size in found["moved"].items()}
    if case["stage"] < 3:
        theirs["opt_state"] -= STEP
    ours = {**asleep.moved, **asleep.dropped}
    assert ours.keys() == theirs.keys()
    for kind, size in theirs.items():
        assert 0 <= size - ours[kind] <= PADDED.get((case["stage"], case["ranks"] % 2), 0), kind
    assert sum(asleep.released.values()) == 2 * (found["gathered"] - found["asleep_gathered"])
    assert asleep.pinned == (sum(found["pinned"].values()) if case["stage"] == 3 else 0)


def test_an_optimizer_on_the_host_does_not_sleep() -> None:
    cases = [case for case in TRUTH["cases"].values() if case["adam_offload"]]
    assert cases
    assert all(case["found"]["moved"] == {} for case in cases)
