"""Evaluation, generation and merging beside real ones: transformers, PEFT and bitsandbytes, `truth/probe_phases.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.inputs.evaluation import Evaluation
from simcore.results.report import HostPhase, Report
from simcore.simulate import simulate

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/phases/transformers-5.23.json").read_text(encoding="utf-8"))
CASES: dict[str, Any] = TRUTH["cases"]
ADAPTED = [name for name, case in CASES.items() if "merge" in case["found"]]
PACKED = [name for name in ADAPTED if "qlora" in name]
LARGEST = 256 * 688
"""Elements of down_proj, the largest linear with an adapter."""


def evaluated(name: str, **asked: Any) -> Report:
    case = CASES[name]
    shape = {"vocab_size": 512, "num_hidden_layers": 3}
    named = {"autocast": "autocast", "prepare_model_for_kbit_training": "kbit"}
    lora = {"rank": 8, "target_modules": case.get("targets"), "dtype": case.get("adapters", "auto")}
    method: dict[str, Any] = {"precision": {"params": "bf16" if case.get("narrow") else "fp32"}} if case.get(
        "full") else {"method": "lora" if case.get("plain") else "qlora", "lora": lora}
    scenario = small.scenario(
        "ddp", model={"config": "llama-tiny", "overrides": shape}, optimizer={"implementation": "fused"},
        recompute="full" if case.get("recompute") else "none",
        options={option: True for option, word in named.items() if case.get(word)}, **method)
    block = Evaluation(micro_batch_size=TRUTH["batch"], seq_len=TRUTH["seq"],
                       **{key: value for key, value in asked.items() if key != "merge"})
    kept = scenario.checkpoint.model_copy(update={"merge": asked.get("merge", "none")})
    report = simulate(scenario.model_copy(update={"evaluation": block, "checkpoint": kept}))
    assert report.status == "ok", report.problems
    return report


def phase(report: Report, name: str) -> HostPhase:
    assert report.host is not None
    return next(one for one in report.host.phases if one.phase == name)


def above_rest(report: Report, name: str) -> int:
    """Allocated bytes of a phase above what rests on the device, library workspaces among it."""
    (rank,) = report.ranks
    assert rank.end_bytes is not None
    return sum(phase(report, name).by_category.values()) - rank.end_bytes


@pytest.mark.parametrize("name", CASES)
def test_a_pass_holds_what_a_real_one_holds(name: str) -> None:
    found = CASES[name]["found"]
    loss = 4  # of the pass before, which is measured in the second
    assert above_rest(evaluated(name), "evaluation") - loss == found["evaluation"] - found["rest"]


@pytest.mark.parametrize("name", CASES)
def test_kept_logits_are_those_of_the_trainer(name: str) -> None:
    """Beside them the Trainer keeps labels and losses, and counts examples: some kilobytes."""
    found = CASES[name]["found"]
    report = evaluated(name, keep_logits=True, sequences=TRUTH["batch"] * TRUTH["batches"])
    assert found["logits"] - found["rest"] == pytest.approx(above_rest(report, "evaluation"), abs=8192)


@pytest.mark.parametrize("name", CASES)
def test_generation_holds_its_cache_beside_a_pass(name: str) -> None:
    """Masks and positions of `generate`, and new keys beside their copy in the cache, are not counted."""
    found, off = CASES[name]["found"], 0.07 if CASES[name].get("autocast") else 0.02
    report = evaluated(name, generate_tokens=TRUTH["new"])
    assert found["generation"] - found["rest"] == pytest.approx(above_rest(report, "generate"), rel=off)


def merged(name: str) -> int:
    """Bytes on the device beside what rests there."""
    return phase(evaluated(name, merge="device"), "merge").by_category["one tensor"]


def test_a_merge_holds_two_deltas() -> None:
    """Adapters in fp32; those in 16 bits are cast on a CPU, which a GPU does not do."""
    found = CASES["lora, adapters in fp32"]["found"]
    assert merged("lora, adapters in fp32") == found["merge"] - found["rest"] == 2 * 4 * LARGEST
    assert merged("lora") == 2 * 2 * LARGEST


@pytest.mark.parametrize("name", PACKED)
def test_a_merge_into_4_bits_unpacks_and_packs_a_linear(name: str) -> None:
    """On a CPU the sum is not copied to the host and back; maxima of blocks are not counted while they are packed."""
    found, wide = CASES[name]["found"], 4 if CASES[name].get("adapters") == "fp32" else 2
    assert found["merge"] - found["rest"] == pytest.approx(merged(name) - wide * LARGEST, rel=0.04)
