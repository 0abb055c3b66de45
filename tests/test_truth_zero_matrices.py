"""Messages and parts of ZeRO among ranks that share matrices (AutoTP): `tests/truth/probe_zero_matrices.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.frameworks.deepspeed.strategy import PERSISTENT
from simcore.frameworks.deepspeed.zero3_hooks import Zero3Hooks
from simcore.pipeline.schedule import Action
from simcore.program.program import Program

FOLDER = ROOT / "tests/truth/deepspeed"
FEW: dict[str, Any] = json.loads((FOLDER / "matrices-0.19.6.json").read_text("utf-8"))["cases"]
DRAWN: dict[str, Any] = json.loads((FOLDER / "drawn-matrices-0.19.6.json").read_text("utf-8"))["cases"]
PRESETS = {"llama": "llama-3.2-3b", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "mistral": "mistral-7b-v0.3",
           "starcoder2": "starcoder2-3b", "seed_oss": "seed-oss-36b", "granite": "granite-3.3-2b", "arcee": "afm-4.5b",
           "ernie4_5": "ernie-4.5-0.3b", "nemotron": "nemotron-mini-4b", "gemma": "gemma-7b"}
OURS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}


def asked(case: dict[str, Any]) -> dict[str, Any]:
    return {"options": case["options"], "seq_len": case["seq"], "recompute": "full" if case["checkpoint"] else "none",
            "model": {"config": PRESETS[case["type"]], "overrides": case["model"]}}


def mesh_of(case: dict[str, Any]) -> dict[str, int]:
    return {"dp_shard" if case["stage"] else "dp_replicate": case["ranks"] // case["tp"], "tp": case["tp"]}


def made(case: dict[str, Any]) -> Program:
    return small.program_of(f"zero{case['stage']}", mesh_of(case), microbatches=case["steps"], **asked(case))


def theirs(case: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(call, bytes, ranks of the group) of each call in the microbatches, without numbers of a few bytes."""
    return [(OURS[name], size, ranks) for rows in case["found"]["microbatches"] for name, size, ranks, times in rows
            for _ in range(times) if size > 8 and ranks > 1]


def ours(case: dict[str, Any], program: Program) -> list[tuple[str, int, int]]:
    size_of = {"tp": case["tp"], "dp_shard": case["ranks"] // case["tp"], "dp_replicate": case["ranks"] // case["tp"]}
    return [(call, size, size_of[axis]) for call in OURS.values() for axis, phase, size in small.calls(program, call)
            if phase != "optimizer" and size_of[axis] > 1]


def test_everything_is_sent_that_upstream_sends_call_by_call() -> None:
    wrong = {}
    for name, case in (FEW | DRAWN).items():
        sent, found = ours(case, made(case)), theirs(case)
        for call in OURS.values():
            for ranks in {row[2] for row in found}:
                mine, their = ([row for row in rows if row[0] == call and row[2] == ranks] for rows in (sent, found))
                if case["tp"] ** 2 == case["ranks"]:  # both groups are as large
                    mine, their = sorted(mine), sorted(their)
                if mine != their:
                    wrong[name] = (call, ranks, mine[:6], their[:6])
    assert wrong == {}
    assert len(DRAWN) >= 40


def test_each_rank_has_upstreams_parameters_parts_and_masters() -> None:
    for name, case in (FEW | DRAWN).items():
        plan, found = small.plan_of(f"zero{case['stage']}", mesh_of(case), **asked(case)), case["found"]
        owned = [placed for layer in plan.layers for placed in plan.of_layer(layer) if placed.spec.is_owned]
        assert sorted(placed.used for placed in owned) == sorted(found["parameters"]), name
        kept, ranks = found["kept"], case["ranks"] // case["tp"]
        if case["stage"] == 0:
            assert sum(kept["masters"]) == sum(placed.used for placed in owned), name
        elif case["stage"] < 3:
            assert [placed.used for placed in owned] == kept["order"], name
        else:
            assert sorted(placed.padded for placed in owned) == sorted(kept["parts"]), name
            assert ranks * sum(kept["parts"]) >= sum(found["parameters"]), name
            small_ones = [placed.used for placed in owned if placed.policy.name == PERSISTENT]
            assert sorted(small_ones) == sorted(kept["persistent"]), name


def test_gathered_matrices_live_until_backward_as_products_of_autotp_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of gathered copies at the end of forward; without recompute of all matrices, whatever is released.

    Here each has the padding of its parts; upstream's have it where they are gathered alone.
    """
    found: list[tuple[int, int]] = []
    end = Zero3Hooks.end_pass

    def noted(hooks: Zero3Hooks, action: Action) -> None:
        if action.forward:
            keys = {*hooks.held, *hooks.there, *hooks.leaving}
            found.append((sum(2 * hooks.elements[key] for key in keys), sum(map(hooks._whole, keys))))
        end(hooks, action)

    monkeypatch.setattr(Zero3Hooks, "end_pass", noted)
    compared = 0
    for name, case in (FEW | DRAWN).items():
        if case["stage"] == 3 and case["ranks"] > case["tp"] and "alive" in case["found"]:  # a copy, not the part
            small.forget_outlines()
            found.clear()
            made(case)
            (bare, padded), (alive, left) = found[-1], case["found"]["alive"]
            assert bare <= alive <= padded, name
            assert padded - bare < 2 * case["ranks"] * len(case["found"]["parameters"]), name
            assert left == 0, name
            compared += 1
    assert compared >= 20
