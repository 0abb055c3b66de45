"""Parameters that DeepSpeed's ZeRO-3 has gathered at every call of a module: `tests/truth/probe_zero_fetched.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
import zero3_calls
from checkout import ROOT

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/fetched-0.19.6.json").read_text(encoding="utf-8"))["cases"]
PRESETS = {"llama": "llama-3.2-3b", "qwen2": "qwen2.5-3b", "qwen3": "qwen3-8b", "qwen3_moe": "qwen3-30b-a3b",
           "granitemoehybrid": "granite-4.0-h-tiny"}
FULL_BUCKET = ["qwen2, lora, plain", "qwen2, lora, replayed"]
PAIRS = [name.removesuffix(", plain") for name in TRUTH
         if name.endswith(", plain") and "dora" not in TRUTH[name] and TRUTH[name]["type"] != "qwen3_moe"]
"""Without those whose gathers are all of single parameters or of whole blocks."""


def asked(name: str) -> dict[str, Any]:
    case = TRUTH[name]
    return {"microbatches": 1, "model": {"config": PRESETS[case["type"]], "overrides": case["model"]},
            "options": case["options"], "method": case["method"], "seq_len": 4,
            "lora": {"use_dora": case.get("dora", False)} if case["method"] != "full" else {},
            "recompute": "full" if case["recompute"] else "none"}


def fetched(name: str, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    return zero3_calls.fetched(lambda: small.program_of("zero3", {"dp_shard": 4}, **asked(name)), monkeypatch)


def upstream(name: str) -> list[list[int]]:
    return [rest for _, *rest in TRUTH[name]["found"]["fetched"]]


@pytest.mark.parametrize("name", [name for name in TRUTH if name not in FULL_BUCKET])
def test_every_call_has_gathered_what_upstreams_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetched(name, monkeypatch) == upstream(name)


@pytest.mark.parametrize("name", FULL_BUCKET)
def test_beside_a_full_bucket_one_adapter_may_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream remembers what it released at a call of the first recorded pass, where less was on its way."""
    ours, theirs = fetched(name, monkeypatch), upstream(name)
    adapter = 8 * (TRUTH[name]["model"]["intermediate_size"] + TRUTH[name]["model"]["hidden_size"])
    assert len(ours) == len(theirs)
    assert max(abs(a[0] - b[0]) for a, b in zip(ours, theirs, strict=True)) <= adapter
    assert [max(column) for column in zip(*ours, strict=True)] == [max(column) for column in zip(*theirs, strict=True)]


@pytest.mark.parametrize("name", PAIRS)
def test_upstream_itself_has_more_gathered_in_a_backward_that_replays(name: str) -> None:
    """Why recompute may raise a peak of ZeRO-3 at short sequences: it is so in DeepSpeed's own registry."""
    plain, replayed = ([row for row in TRUTH[f"{name}, {how}"]["found"]["fetched"] if not row[0]]
                       for how in ("plain", "replayed"))
    assert max(row[1] for row in replayed) >= max(row[1] for row in plain)
    assert max(row[3] for row in replayed) > max(row[3] for row in plain)
