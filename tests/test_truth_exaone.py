"""EXAONE 4 and K-EXAONE, drawn: steps of FSDP2 and messages of ZeRO-2 and ZeRO-3, against the libraries themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
import test_truth_zero_families as zero
import truth_cases
import zero3_calls
from checkout import ROOT
from test_truth_drawn_fsdp2 import differences

STEPS = {row["name"]: row for row in truth_cases.rows("fsdp2/exaone-torch-2.13.0.json")}
FILE = ROOT / "tests/truth/deepspeed/exaone-0.19.6.json"
ZERO: dict[str, Any] = json.loads(FILE.read_text("utf-8"))["cases"]
"""At the first look 20 were exact: where no layer rotates, the module of rotary tables was thought not to be called."""


@pytest.fixture(autouse=True)
def _preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(zero.PRESETS, "exaone4", "exaone-4.0-32b")


HELD = ("exaone-026", "exaone-038")
"""Their first layer sees all tokens and others have a window that is shorter than the sequence: here the mask of each
microbatch, a byte for each pair of query and key, is not freed by the first layer, which does not read it. Published
models begin with a window."""


@pytest.mark.usefixtures("_fused_attention")
@pytest.mark.parametrize("name", STEPS)
def test_a_drawn_step_is_that_of_fsdp2(name: str) -> None:
    found = differences(STEPS[name])
    if name in HELD:
        sizes, spec = [tuple(map(int, text.split(" instead of "))) for text in found.values()], STEPS[name]["spec"]
        assert {ours - theirs for ours, theirs in sizes} == {spec.get("grad_accum", 1) * spec["seq"] ** 2}
        return
    assert found == {}


@pytest.mark.parametrize("name", ZERO)
def test_everything_is_sent_that_upstream_sends_call_by_call(name: str) -> None:
    case = ZERO[name]
    program = small.program_of(f"zero{case['stage']}", {"dp_shard": case["ranks"]}, **zero.asked(case))
    for call in zero.OURS.values():
        ours = [(call, size) for _, phase, size in small.calls(program, call) if phase != "optimizer"]
        assert ours == [row for row in zero.theirs(case) if row[0] == call], call


@pytest.mark.parametrize("name", [name for name, case in ZERO.items() if case["stage"] == 3])
def test_every_call_has_gathered_what_upstreams_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = ZERO[name]
    ours = zero3_calls.fetched(lambda: small.program_of("zero3", {"dp_shard": case["ranks"]}, **zero.asked(
        case | {"steps": 1})), monkeypatch)
    assert ours == [rest for _, *rest in case["found"]["fetched"]]
