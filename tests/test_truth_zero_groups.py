"""Messages of ZeRO-3 over fewer ranks than all (hpZ): `tests/truth/probe_zero_groups.py`."""

from __future__ import annotations

import json
from typing import Any

import small
from checkout import ROOT
from simcore.program.program import Program

DRAWN: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/drawn-hpz-0.19.6.json").read_text("utf-8"))["cases"]
PRESETS = {"llama": "llama-3.2-3b", "qwen2": "qwen2.5-7b"}
OURS = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}


def made(case: dict[str, Any]) -> Program:
    adapters: dict[str, Any] = {"method": "lora", "lora": {"rank": 8, "target_modules": ["q_proj", "v_proj"]}}
    return small.program_of("zero3", {"dp_shard": case["ranks"]}, microbatches=case["steps"], options=case["options"],
                            recompute="full" if case["checkpoint"] else "none", **adapters if "lora" in case else {},
                            model={"config": PRESETS[case["type"]], "overrides": case["model"]})


def theirs(case: dict[str, Any], call: str) -> list[tuple[int, int]]:
    """(ranks of the group, bytes) of each call in the microbatches."""
    return [(ranks, size) for rows in case["found"]["microbatches"] for name, size, ranks, times in rows
            for _ in range(times) if name == call]


def ours(case: dict[str, Any], program: Program, call: str) -> list[tuple[int, int]]:
    return [(int(axis.partition("/")[2] or case["ranks"]), size)
            for axis, phase, size in small.calls(program, OURS[call]) if phase != "optimizer"]


def test_everything_is_sent_in_upstreams_groups_call_by_call() -> None:
    wrong = {name: call for name, case in DRAWN.items() for call in OURS
             if ours(case, made(case), call) != theirs(case, call)}
    assert wrong == {}
    assert len(DRAWN) >= 44 + 6


def test_second_shards_are_as_long_as_upstreams() -> None:
    wrong = {}
    for name, case in DRAWN.items():
        held, theirs_held = (sum(size for *_, size in small.postings(made(case), "secondary_part") if size > 0),
                             2 * sum(case["found"]["secondary"]))
        if held != theirs_held:
            wrong[name] = (held, theirs_held)
    assert wrong == {}
