"""The blocks `generation` and `rl`: what they do nothing for is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simcore.batch.gate import gates
from simcore.batch.run import Outcome
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import simulate

BASE = {"name": "t", "model": "nemotron-3-tiny", "framework": "fsdp2", "topology": "dgx-h100", "mesh": {"dp_shard": 8},
        "training": {"seq_len": 64}}  # fmt: skip


def told(**changed: Any) -> list[tuple[str, int]]:
    report = simulate(parse_scenario(parse_document(json.dumps(BASE | changed), "t.json")))
    assert report.status == "ok"
    outcome = Outcome(report, "t.json:1", 0)
    return [(finding.message, finding.code) for gate in gates() for finding in gate(outcome)]


@pytest.mark.parametrize(("changed", "expected"), [
    ({}, []),
    ({"generation": {}}, [("generation: changes nothing in a training step", 0)]),
    ({"generation": {"kv_dtype": "fp8"}},
     [("generation: changes nothing in a training step; kv_dtype fp8 neither: there is no KV cache in it", 0)]),
    ({"rl": {"prompts": 1, "generations": 1}}, [("rl: changes nothing in a training step", 0)])])
def test_what_changes_nothing_in_training_is_told(changed: dict[str, Any], expected: list[tuple[str, int]]) -> None:
    assert told(**changed) == expected


def test_an_fp8_cache_changes_no_byte_of_a_training_step() -> None:
    plain, asked = (simulate(parse_scenario(parse_document(json.dumps(BASE | changed), "t.json")))
                    for changed in ({}, {"generation": {"kv_dtype": "fp8"}}))
    assert plain.ranks == asked.ranks
