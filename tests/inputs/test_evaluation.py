"""The block `evaluation` of a scenario: what it takes, and one line for what it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simcore.errors import InputError
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario


def parsed(block: Any, **more: Any) -> Scenario:
    data = {"name": "a", "model": "llama-tiny", "framework": "ddp", "topology": "dgx-h100", "training": {"seq_len": 8},
            "evaluation": block, **more}
    return parse_scenario(parse_document(json.dumps(data), "a.json"))


def test_it_is_left_out_by_default() -> None:
    assert parsed(None).evaluation is None
    block = parsed({}).evaluation
    assert block is not None
    assert (block.micro_batch_size, block.keep_logits, block.generate_tokens) == (None, False, 0)


@pytest.mark.parametrize(("block", "told"), [
    ({"micro_batch": 4}, "did you mean 'micro_batch_size'"), ({"micro_batch_size": 0}, "micro_batch_size"),
    ({"seq_len": 0}, "seq_len"), ({"sequences": -1}, "sequences"), ({"keep_logits": "yes"}, "keep_logits"),
    ({"accumulation_steps": 0}, "accumulation_steps"), ({"generate_tokens": -1}, "generate_tokens"), (3, "evaluation")])
def test_what_it_does_not_take_is_one_problem(block: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        parsed(block)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("key", ["merge", "export"])
def test_a_place_that_there_is_not_is_one_problem(key: str) -> None:
    with pytest.raises(InputError, match=key) as caught:
        parsed(None, checkpoint={key: "moon"})
    assert len(caught.value.problems) == 1
