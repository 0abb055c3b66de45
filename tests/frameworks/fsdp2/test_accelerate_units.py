"""Units of accelerate's FSDP 2 against the calls of its own `fsdp2_prepare_model` (`probe_accelerate_units.py`)."""

from __future__ import annotations

import json
from typing import Any

import small
from checkout import ROOT
from simcore.placement.framework import Unit
from simcore.placement.plan import Plan

CASES: list[dict[str, Any]] = json.loads(
    (ROOT / "tests/truth/fsdp2/accelerate-1.15.0.json").read_text(encoding="utf-8"))["cases"]
LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 1000}


def planned(case: dict[str, Any], **more: Any) -> Plan:
    method: dict[str, Any] = {"method": "lora", "lora": {"target_modules": ["q_proj"]}} if case["adapters"] else {}
    return small.plan_of("fsdp2", {"dp_shard": 4}, options={"wrap": "embedding_tail", "reshard_after_forward": True},
                         model={"config": "llama-3.2-3b", "overrides": LLAMA | {"tie_word_embeddings": case["tied"]}},
                         **method, **more)


def parts_of(plan: Plan, unit: Unit) -> set[str]:
    """Names of the modules in whose place a unit stands; a tied head has the embedding's parameter."""
    found = {plan.graph.layers[layer].path for layer, _ in unit.members}
    return found | ({"lm_head"} if "model.embed_tokens" in found and plan.graph.has_tied_head else set())


def test_the_units_are_those_that_accelerate_makes() -> None:
    """The root's own call has the norm of a model with adapters, and nothing else."""
    wrong = []
    for case in CASES:
        plan = planned(case)
        ours = {frozenset(parts_of(plan, unit)): unit.reshard_after_forward
                for unit in plan.framework.units if unit.members}
        theirs = {frozenset(name.removeprefix("base_model.model.") for name in call["modules"]): call["reshard"]
                  for call in case["calls"] if call["modules"] != [""]}
        whole = {"model.layers.0", "model.layers.1", "model.embed_tokens", "model.norm", "lm_head"}
        if rest := whole - {name for names in theirs for name in names}:
            theirs[frozenset(rest)] = False
        if ours != theirs:
            wrong.append((case["tied"], case["adapters"], ours, theirs))
    assert not wrong


def test_a_root_that_never_reshards_stands_for_the_tail_of_a_tied_model() -> None:
    """One gathering a step of what the embedding, norm and head hold."""
    tied = next(case for case in CASES if case["tied"] and not case["adapters"])
    root = planned(tied).framework.units[0]
    assert (root.is_root, root.reshard_after_forward) == (True, False)
