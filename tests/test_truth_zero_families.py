"""Order of modules under ZeRO-2 and ZeRO-3 with norms behind blocks: `tests/truth/probe_zero_families.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
import zero3_calls
from checkout import ROOT

FOLDER = ROOT / "tests/truth/deepspeed"
FEW: dict[str, Any] = json.loads((FOLDER / "families-0.19.6.json").read_text("utf-8"))["cases"]
DRAWN: dict[str, Any] = json.loads((FOLDER / "drawn-families-0.19.6.json").read_text("utf-8"))["cases"]
PRESETS = {"gemma2": "gemma-2-2b", "gemma3_text": "gemma-3-1b", "gemma4_text": "gemma-4-31b-text",
           "glm4": "glm-4-32b-0414", "olmo2": "olmo-2-1b", "olmo3": "olmo-3-7b",
           "cohere2": "command-r7b", "phi": "phi-2", "falcon_h1": "falcon-h1-0.5b",
           "bamba": "bamba-9b", "nemotron_h": "nemotron-3-nano-30b-a3b"}
OURS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}


def asked(case: dict[str, Any]) -> dict[str, Any]:
    method = {"method": "lora", "lora": {"target_modules": case["targets"]}} if case["targets"] else {}
    own = {"attn_implementation": case.get("attn_implementation", "sdpa")}
    return {"microbatches": case["steps"], "options": case["options"] | own, "seq_len": 32, **method,
            "model": {"config": PRESETS[case["type"]], "overrides": case["model"]},
            "recompute": "full" if case["checkpoint"] else "none"}


def theirs(case: dict[str, Any]) -> list[tuple[str, int]]:
    """(call, bytes) of each call in the microbatches, without numbers of a few bytes."""
    return [(OURS[name], size) for rows in case["found"]["microbatches"] for name, size, ranks, times in rows
            for _ in range(times) if size > 8 and ranks > 1]


@pytest.mark.parametrize("name", [*FEW, *DRAWN])
def test_everything_is_sent_that_upstream_sends_call_by_call(name: str) -> None:
    case = (FEW | DRAWN)[name]
    program = small.program_of(f"zero{case['stage']}", {"dp_shard": case["ranks"]}, **asked(case))
    ours = [(call, size) for call in OURS.values() for _, phase, size in small.calls(program, call)
            if phase != "optimizer"]
    for call in OURS.values():
        assert [row for row in ours if row[0] == call] == [row for row in theirs(case) if row[0] == call], call


@pytest.mark.parametrize("name", [name for name, case in (FEW | DRAWN).items() if case["stage"] == 3])
def test_every_call_has_gathered_what_upstreams_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = (FEW | DRAWN)[name]
    ours = zero3_calls.fetched(lambda: small.program_of("zero3", {"dp_shard": case["ranks"]}, **asked(
        case | {"steps": 1})), monkeypatch)
    assert ours == [rest for _, *rest in case["found"]["fetched"]]
