"""Order of modules under ZeRO-2 and ZeRO-3: `tests/truth/probe_zero_families.py` and `probe_zero_models.py`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import small
import zero3_calls
from checkout import ROOT

FOLDER = ROOT / "tests/truth/deepspeed"
FEW: dict[str, Any] = json.loads((FOLDER / "families-0.19.6.json").read_text("utf-8"))["cases"]
DRAWN: dict[str, Any] = json.loads((FOLDER / "drawn-families-0.19.6.json").read_text("utf-8"))["cases"]
EVERY: dict[str, Any] = json.loads((FOLDER / "drawn-models-0.19.6.json").read_text("utf-8"))["cases"]
PRESETS = {"llama": "llama-3.2-1b", "mistral": "mistral-7b-v0.1", "qwen2": "qwen2.5-0.5b", "qwen3": "qwen3-0.6b",
           "arcee": "afm-4.5b", "ernie4_5": "ernie-4.5-0.3b", "gemma": "gemma-7b", "glm": "glm-4-9b-chat",
           "granite": "granite-3.3-2b", "hunyuan_v1_dense": "hunyuan-0.5b", "nemotron": "nemotron-mini-4b",
           "phi3": "phi-3-mini-4k", "seed_oss": "seed-oss-36b", "starcoder2": "starcoder2-3b",
           "mixtral": "mixtral-8x7b", "olmoe": "olmoe-1b-7b", "qwen2_moe": "qwen1.5-moe-a2.7b",
           "qwen3_moe": "qwen3-30b-a3b", "gpt_oss": "gpt-oss-20b", "glm4_moe": "glm-4.5-air",
           "glm4_moe_lite": "glm-4.7-flash", "deepseek_v2": "deepseek-v2-lite", "deepseek_v3": "deepseek-v3",
           "mistral4": "mistral-small-4-119b-text", "llama4_text": "llama-4-scout-text",
           "qwen3_next": "qwen3-next-80b-a3b", "qwen3_5_text": "qwen3.5-0.8b-text",
           "qwen3_5_moe_text": "qwen3.5-35b-a3b-text", "granitemoehybrid": "granite-4.0-h-tiny",
           "minimax_m2": "minimax-m2", "exaone4": "exaone-4.0-1.2b", "exaone_moe": "k-exaone-236b-a23b",
           "mamba2": "mamba2-130m", "gemma2": "gemma-2-2b", "gemma3_text": "gemma-3-1b",
           "gemma4_text": "gemma-4-31b-text",
           "glm4": "glm-4-32b-0414", "olmo2": "olmo-2-1b", "olmo3": "olmo-3-7b",
           "cohere2": "command-r7b", "phi": "phi-2", "falcon_h1": "falcon-h1-0.5b",
           "bamba": "bamba-9b", "nemotron_h": "nemotron-3-nano-30b-a3b"}
APART = ("m2",)
"""Mamba-2 under ZeRO-2: in the lowest layer two small gradients come behind the last product's, in autograd's heap.

[Note: parameters that a kernel reads]: nodes of equal rank. One call is 1,560 bytes smaller, a later one larger.
"""
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


RUN = FEW | DRAWN | EVERY


@pytest.mark.parametrize("name", RUN)
def test_everything_is_sent_that_upstream_sends_call_by_call(name: str) -> None:
    case = RUN[name]
    program = small.program_of(f"zero{case['stage']}", {"dp_shard": case["ranks"]}, **asked(case))
    ours = [(call, size) for call in OURS.values() for _, phase, size in small.calls(program, call)
            if phase != "optimizer"]
    for call in OURS.values():
        mine, upstreams = ([row for row in rows if row[0] == call] for rows in (ours, theirs(case)))
        if name in APART and call == "all_reduce":
            moved = [a[1] - b[1] for a, b in zip(mine, upstreams, strict=True) if a != b]
            assert moved == [1_560, -1_560]
        else:
            assert mine == upstreams, call


@pytest.mark.parametrize("name", [name for name, case in RUN.items() if case["stage"] == 3])
def test_every_call_has_gathered_what_upstreams_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = RUN[name]
    ours = zero3_calls.fetched(lambda: small.program_of("zero3", {"dp_shard": case["ranks"]}, **asked(
        case | {"steps": 1})), monkeypatch)
    theirs = [rest for _, *rest in case["found"]["fetched"]]
    assert ours == theirs


def test_every_family_is_drawn_twice() -> None:
    drawn = Counter(case["type"] for case in EVERY.values())
    assert drawn.keys() == PRESETS.keys()
    assert set(drawn.values()) == {2}
