"""Small scenarios that are put to a framework's table, which answers, refuses, or does not model them yet."""

from __future__ import annotations

import json
from typing import Any, Final

from simcore.errors import IllegalLayout, NotYet, RankscopeError
from simcore.frameworks.setup import prepare
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario

__all__ = ["METHODS", "asked", "scenario_of"]

METHODS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "full": ({"training": {"method": "full"}},),
    "lora": ({"training": {"method": "lora"}},
             {"training": {"method": "lora"}, "framework_options": {"use_orig_params": True}}),
    "qlora": ({"training": {"method": "qlora"}},
              {"training": {"method": "qlora", "precision": {"params": "bf16"}},
               "framework_options": {"use_orig_params": True, "bnb_4bit_quant_storage": "bfloat16"}}),
}
"""Training methods, each with the ways to ask for it; one that is served is enough."""
_WORDS: Final = {NotYet: "not yet", IllegalLayout: "refused"}


def asked(keys: dict[str, Any]) -> str:
    """Answer to a small scenario with these keys: yes, not yet, refused, or - for one that cannot be asked."""
    try:
        prepare(scenario_of(keys))
    except RankscopeError as error:
        return _WORDS.get(type(error), "-")
    return "yes"


def scenario_of(keys: dict[str, Any]) -> Scenario:
    """Scenario of 64 tokens on DGX H100 with these keys."""
    batch = {"global_batch_size": 16} if keys.get("mesh", {}).get("pp", 1) > 1 else {}  # stages need microbatches
    training = {"seq_len": 64, **batch, **keys.get("training", {})}
    whole = {"name": "support", "topology": "dgx-h100", **keys, "training": training}
    return parse_scenario(parse_document(json.dumps(whole), "support"))
