"""ZeRO-1, 2 and 3 over Gemma 4 with experts beside an MLP: `tests/truth/probe_zero_gemma4_experts.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
import zero3_calls
from checkout import ROOT
from truth_cases import told_layouts

FOLDER = ROOT / "tests/truth/deepspeed"
FEW, DRAWN = (json.loads((FOLDER / f"{name}-0.19.6.json").read_text("utf-8"))["cases"]
              for name in ("gemma4-experts", "drawn-gemma4-experts"))
RUN: dict[str, Any] = FEW | DRAWN
OURS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}


def asked(case: dict[str, Any]) -> dict[str, Any]:
    method = {"method": "lora", "lora": {"target_modules": case["targets"]}} if case["targets"] else {}
    return {"microbatches": case["steps"], "options": case["options"] | {"attn_implementation": "sdpa"}, "seq_len": 32,
            "model": {"config": "gemma-4-26b-a4b-text", "overrides": case["model"]}, **method,
            "recompute": "full" if case["checkpoint"] else "none"}


def theirs(case: dict[str, Any]) -> list[tuple[str, int]]:
    """(call, bytes) of each call in the microbatches, without numbers of a few bytes."""
    return [(OURS[name], size) for rows in case["found"]["microbatches"] for name, size, ranks, times in rows
            for _ in range(times) if size > 8 and ranks > 1]


@pytest.mark.parametrize("name", RUN)
def test_everything_is_sent_that_upstream_sends_call_by_call(name: str) -> None:
    case = RUN[name]
    program = small.program_of(f"zero{case['stage']}", {"dp_shard": case["ranks"]}, **asked(case))
    ours = [(call, size) for call in OURS.values() for _, phase, size in small.calls(program, call)
            if phase != "optimizer"]
    for call in OURS.values():
        assert [row for row in ours if row[0] == call] == [row for row in theirs(case) if row[0] == call], call


@pytest.mark.parametrize("name", [name for name, case in RUN.items() if case["stage"] == 3])
def test_every_call_has_gathered_what_upstreams_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = RUN[name]
    ours = zero3_calls.fetched(lambda: small.program_of("zero3", {"dp_shard": case["ranks"]}, **asked(
        case | {"steps": 1})), monkeypatch)
    assert ours == [rest for _, *rest in case["found"]["fetched"]]


def test_all_drawn_layouts_are_told() -> None:
    assert told_layouts("deepspeed/drawn-gemma4-experts-*") == (len(DRAWN), len(DRAWN)) == (44, 44)
