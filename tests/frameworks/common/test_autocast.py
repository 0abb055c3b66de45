"""Autocast: powers and LayerNorm in fp32, packed linears that hand fp32 on, and what the head is given then."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.inputs.evaluation import Evaluation
from simcore.recording.tape import Op
from simcore.simulate import simulate

FOLDER = ROOT / "tests" / "truth" / "bitsandbytes"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
SHAPE = {"vocab_size": 2048, "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512,
         "num_attention_heads": 4, "num_key_value_heads": 4}
MODELS = {"phi-2": {"partial_rotary_factor": 0.5}, "starcoder2-3b": {}, "nemotron-mini-4b": {}, "afm-4.5b": {},
          "llama-3.1-8b": {}, "command-r7b": {}}
WAYS: dict[str, dict[str, Any]] = {"lora": {"method": "lora"}, "qlora": {"method": "qlora"}, "full": {
    "precision": {"params": "fp32"}}, "full, 16 bits": {"precision": {"params": "bf16"}}}


def cases(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cases"]
    return found


FIXED, DRAWN = cases("wide-stream-0.50.2.json"), cases("wide-stream-drawn-0.50.2.json")


def options_of(case: dict[str, Any]) -> dict[str, Any]:
    """Framework options of a case of `tests/truth/probe_wide_stream.py`."""
    prepared = {"prepare_model_for_kbit_training": "cast_back"} if case.get("kbit") else {}
    packed = {"quantize_moe_experts": True} if case.get("experts") else {}
    skipped = {"llm_int8_skip_modules": case["skipped"]} if "skipped" in case else {}
    return {"autocast": True, **prepared, **packed, **skipped}


def test_a_step_with_a_stream_that_widens_allocates_what_torch_allocates() -> None:
    """At the peaks of forward and of the step, and when it is over, byte for byte."""
    for name, case in (FIXED | DRAWN).items():
        report = simulate(small.scenario(
            "ddp", model={"config": case["preset"], "overrides": case["shape"]}, optimizer={"implementation": "fused"},
            recompute="full" if case.get("recompute") else "none",
            options=options_of(case), method="qlora" if case.get("packs") else "lora",
            lora={"rank": 8, "target_modules": case.get("targets", ATTENTION), "dtype": "fp32"}))
        found = small.allocated(report)
        assert {key: found[key] for key in ("forward", "peak", "end", "trained")} == {
            key: size for key, size in case["found"].items() if key != "biases"}, name


def test_drawn_cases_have_every_family() -> None:
    assert len(DRAWN) == 48
    assert {case["preset"] for case in DRAWN.values()} == {case["preset"] for case in FIXED.values()}


@pytest.mark.parametrize("way", WAYS)
def test_what_passes_between_layers_is_freed_as_large_as_it_was_made(way: str) -> None:
    """Hidden states and their gradients: nothing is left behind, whatever their type has become."""
    for name, more in MODELS.items():
        program = small.program_of("ddp", model={"config": name, "overrides": {**SHAPE, **more}}, optimizer={
            "implementation": "fused"}, options={"autocast": True}, **WAYS[way])
        owners, left = list(program.tables.slots), Counter[tuple[int, str]]()
        for op, layer, slot, amount, *_ in program.columns.tolist():
            if op in (Op.ALLOC, Op.FREE) and owners[slot][0] in ("hidden_states", "grad_hidden_states"):
                left[layer, owners[slot][0]] += amount
        assert left, name
        assert not any(left.values()), (name, left)


def test_generation_behind_a_stream_that_widens_is_not_served() -> None:
    asked = small.scenario("ddp", model={"config": "afm-4.5b", "overrides": SHAPE}, method="qlora",
                           options={"autocast": True})
    (problem,) = simulate(asked.model_copy(update={"evaluation": Evaluation(generate_tokens=8)})).problems
    assert "generation with keys in fp32" in problem.message
