"""Parameters that an engine of ZeRO-3 for a reference model has gathered: `tests/truth/probe_zero_reference.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
import zero3_calls
from checkout import ROOT
from simcore.simulate import simulate

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/reference-0.19.6.json").read_text(encoding="utf-8"))["cases"]
PRESETS = {"qwen2": "qwen2.5-3b", "qwen3": "qwen3-8b"}


@pytest.mark.parametrize("name", list(TRUTH))
def test_every_call_of_the_reference_has_gathered_what_its_engine_has(
        name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TRUTH[name]
    found = zero3_calls.fetched(lambda: small.program_of("zero3", {"dp_shard": 4}, model={
        "config": PRESETS[case["type"]], "overrides": case["model"]}, options=case["options"], seq_len=4,
        loss="preference_whole", micro_batch_size=2), monkeypatch, of=lambda engine: not any(
            kind.is_trained for kind in engine.plan.kinds))
    assert found == [rest for _, *rest in case["found"]["fetched"]]


def test_a_reference_rests_in_parts_and_leaves_nothing() -> None:
    """A rank's part of as many parameters again, in the format of products; small ones stay gathered."""
    given: dict[str, Any] = {"model": "llama-tiny", "micro_batch_size": 2}
    pair, alone = (simulate(small.scenario("zero3", {"dp_shard": 4}, **given, loss=loss)).ranks[0]
                   for loss in ("preference_whole", "preference_whole_alone"))
    assert pair.at_rest["reference"].params_bytes == sum(part.params_bytes for part in alone.at_rest.values())
    assert (pair.end_bytes or 0) - (alone.end_bytes or 0) >= pair.at_rest["reference"].params_bytes
    adapted = simulate(small.scenario("zero3", {"dp_shard": 4}, **given, loss="preference_whole", method="lora"))
    assert "whose engine passes twice" in adapted.problems[0].message
