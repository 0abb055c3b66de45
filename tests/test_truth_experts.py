"""QLoRA of experts that are modules, against bitsandbytes, PEFT, transformers 4.57.1: `truth/probe_experts.py`."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout
from simcore.models.blocks import Branch, Moe
from simcore.operators.hf import remote_code
from simcore.operators.hf.moe import moe, returning_logits
from simcore.operators.hf.options import HfOptions
from simcore.program.record_layers import Workload, keys_of, run_of
from simcore.recording.layer import LayerWorkload
from simcore.recording.number_formats import PackedWeights
from simcore.recording.tape import Node, Op, Param, Section, Tape, Tensor
from simcore.results.report import Report
from simcore.simulate import simulate

LOOPS, ROUTED, BLOCKS, STEPS = (json.loads((ROOT / f"tests/truth/bitsandbytes/{name}-0.50.2.json").read_text(
    encoding="utf-8"))["cases"] for name in ("loop", "routed", "blocks", "experts"))
PRESETS = {"qwen3_moe": "qwen3-30b-a3b", "mixtral": "mixtral-8x7b"}
TOKENS = 64


# ---- the loop of Nemotron's repository -------------------------------------------------------------------------------
def params_of(case: dict[str, Any]) -> dict[str, Param]:
    """Eight experts; adapters of rank 8."""
    packed = PackedWeights("nf4", 64, double_quant=case.get("double_quant", True)) if case.get("packed", True) else None
    made = {}
    for part, (rows, columns) in {"up_proj": (128, 256), "down_proj": (256, 128)}.items():
        at, targets = f"m.experts.{part}", case.get("targets", ())
        made[f"{at}.weight"] = Param(f"{at}.weight", (8, rows, columns), "bf16", trainable=False, packed=packed)
        for end, shape in (("a", (8, 8, columns)), ("b", (8, rows, 8))) if part in targets else ():
            name = f"{at}.lora_{end}.weight"
            made[name] = Param(name, shape, case.get("adapters", "bf16"), trainable=True)
    return made


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_over_packed_experts_is_torch_s_own_birth_by_birth(name: str) -> None:
    case, tape = LOOPS[name], Tape({}, {})
    hidden, weights, indices = (tape.external(shape, dtype, tape.slot(dtype, "activation"), -1) for shape, dtype in (
        ((TOKENS, 256), "bf16"), ((TOKENS, 2), "fp32"), ((TOKENS, 2), "int64")))
    hidden.node, weights.node = Node(), Node()
    run = LayerWorkload(1, TOKENS, "bf16", params_of(case))
    out = remote_code.experts(tape, run, "m", Moe(256, 8, 2, 128, 0), hidden, indices, weights)
    assert passes(tape, out, hidden) == case["found"]


@pytest.mark.parametrize("name", ROUTED)
def test_a_block_of_the_repository_under_autocast_is_torch_s_own_birth_by_birth(name: str) -> None:
    """Router and loop; `truth/probe_routed.py`. Copies that autocast keeps die with its region, an expert's each."""
    case, tape = {"packed": False} | ROUTED[name], Tape({}, {})
    if "stops" in case["found"]:
        expect_stopped(case)
        return
    wide = case.get("autocast", True)
    gate = Param("m.gate.weight", (8, 256), "bf16", trainable=False)
    params = {gate.name: gate, **params_of(case | {"adapters": "fp32" if wide else "bf16"})}
    run = LayerWorkload(1, TOKENS, "bf16", params, options=HfOptions(
        is_of_hub=True, autocast=wide, lora_dropout="pre" if "dropout" in case else ""))
    hidden = tape.external((1, TOKENS, 256), "bf16", tape.slot("hidden", "activation"), -1)
    hidden.node = Node()
    out = moe(tape, run, Branch("norm", "m", Moe(256, 8, 2, 128, 0)), hidden)
    tape.casts.clear()
    assert passes(tape, out, hidden) == case["found"]


def expect_stopped(case: dict[str, Any]) -> None:
    """Refused in torch's words; the same adapters on 16 bits are not, nor packed ones without autocast."""
    given: dict[str, Any] = {"model": "nemotron-3-tiny", "implementation": "hub", "loss": "auto", "lora": {
        "rank": 8, "target_modules": ["q_proj", *case.get("targets", ())]}}
    with pytest.raises(IllegalLayout, match=re.escape(case["found"]["stops"])):
        small.prepared("ddp", method="qlora", options={"FastLanguageModel": True}, **given)
    small.prepared("ddp", method="lora", options={"FastLanguageModel": True}, **given)
    small.prepared("ddp", method="qlora", **given)


def passes(tape: Tape, out: Tensor, hidden: Tensor) -> dict[str, Any]:
    """Bytes of every birth in order, each pass apart; bytes kept after forward; the most in either pass."""
    forward = amounts(tape.cut())
    tape.seed(out, hidden)
    tape.backward()
    backward = amounts(tape.cut())
    return {"forward": [size for size in forward if size > 0], "backward": [size for size in backward if size > 0],
            "kept": sum(forward), "peaks": [max(accumulate(forward)), max(accumulate(backward))]}


def amounts(section: Section) -> list[int]:
    return [amount for op, _, _, amount, _, _ in section.rows if op in (Op.ALLOC, Op.FREE)]


# ---- transformers 4 --------------------------------------------------------------------------------------------------
def asked(case: dict[str, Any]) -> dict[str, Any]:
    fields = dict(case["model"])
    family = fields.pop("model_type")
    return {"model": {"config": PRESETS[family], "overrides": fields}, "implementation": "hf4", "method": "qlora",
            "quantization": {"double_quant": case.get("double_quant", True)},
            "lora": {"rank": 8, "target_modules": case["targets"], "dtype": case.get("adapters", "auto")},
            "optimizer": {"implementation": "fused"}, "recompute": "full" if case.get("recompute") else "none"}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_transformers_4_is_torch_s_own_birth_by_birth(name: str) -> None:
    """Router, loop and sum; its logits are held."""
    case, tape, plan = BLOCKS[name], Tape({}, {}), small.plan_of("ddp", **asked(BLOCKS[name]))
    key = next(key for key in keys_of(plan).values() if plan.graph.kinds[key[0]].block is None)
    run = run_of(plan, key, Workload(1, TOKENS, 2 << 16))
    run = replace(run, options=replace(HfOptions.of(run.options), has_expert_modules=True))
    branch = next(branch for branch in plan.graph.kinds[key[0]].branches if isinstance(branch.block, Moe))
    hidden = tape.external((1, TOKENS, 256), "bf16", tape.slot("hidden", "activation"), -1)
    hidden.node = Node()
    out, _logits = returning_logits(tape, run, branch, hidden)
    assert passes(tape, out, hidden) == case["found"]


def stepped(case: dict[str, Any]) -> Report:
    return simulate(small.scenario("ddp", **asked(case)))


@pytest.mark.parametrize("name", STEPS)
def test_a_step_allocates_what_transformers_4_bitsandbytes_and_peft_allocate(name: str) -> None:
    found = small.allocated(stepped(STEPS[name]))
    del found["trained"]  # not stored
    assert found == STEPS[name]["found"]


@pytest.mark.parametrize("name", STEPS)
def test_the_linears_that_are_packed_are_those_that_transformers_4_replaces(name: str) -> None:
    plan, found = small.plan_of("ddp", **asked(STEPS[name])), Counter[str]()
    for placed in (placed for layer in plan.layers for placed in plan.of_layer(layer)):
        found[placed.spec.path.rpartition(".")[2]] += placed.spec.copies * (placed.policy.at_rest.packed is not None)
    assert +found == {path: count for path, count in STEPS[name]["packed"].items() if path != "base_layer"}
