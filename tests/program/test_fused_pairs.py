"""DPO of TRL 1.16.0, whose head scores tokens itself, against a real step on a CPU (`probe_trl_preference.py`)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import small
from checkout import ROOT
from simcore.errors import RankscopeError
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.memory.ledger import running
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.options import HfOptions
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.record_layers import Workload
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Op, Param, Section

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2,
         "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 8192, "tie_word_embeddings": False}
MANY, FEW = 32, 64
"""Bytes a token of what the probe keeps, and of what is not recorded one by one: labels, masks, statistics."""
RNG_STATE = 5056
"""Bytes of the state of a CPU's random numbers, which each checkpoint keeps, on the host."""
FILES = ["preference-trl-1.16.0.json", "preference-drawn-trl-1.16.0.json"]


def truth(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((ROOT / f"tests/truth/losses/{name}").read_text(encoding="utf-8"))["cases"]
    return cases


def wide(case: dict[str, Any]) -> bool:
    return bool(case["method"] == "full" and case["mixed"])


def heads(case: dict[str, Any]) -> dict[str, list[int]]:
    """Signed bytes of what the head makes, in the policy's forward, the reference's, and backward."""
    graph = build(model_config("llama-3.2-3b", SIZES | {"vocab_size": case["vocab"]}, "test"), "hf")
    kind = next(kind for kind in graph.kinds if kind.name == "head")
    stored = "fp32" if wide(case) else "bf16"
    run = LayerWorkload(2 * case["pairs"], case["seq"], "bf16", {"weight": Param(
        "weight", (case["vocab"], 64), stored, case["method"] == "full")}, "preference_fused", options=HfOptions(
            autocast=case["mixed"], hidden=stored))
    made = hf.record(kind, run, {}, {})
    given = hf.record(kind, replace(run, no_grad=True, input_requires_grad=False), {}, {})
    return {"policy": _large(case, made.forward, made.after), "backward": _large(case, made.backward),
            "reference": [] if case["before"] else _large(case, given.forward, given.after)}


def _large(case: dict[str, Any], *sections: Section) -> list[int]:
    least = MANY * 2 * case["pairs"] * (case["seq"] - 1)
    return [row[3] for section in sections for row in section.rows
            if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) > least]


def moments(case: dict[str, Any], loss: str = "preference_fused") -> dict[str, int]:
    """Bytes above those before the step where the reference begins, where backward begins, and the highest."""
    adapters: dict[str, Any] = {} if case["method"] == "full" else {"lora": {
        "rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"], "dtype": "fp32"}}
    asked = small.scenario(
        "ddp", model={"config": "llama-3.2-3b", "overrides": SIZES | {"vocab_size": case["vocab"]}},
        options={"autocast": True} if case["mixed"] else {}, method=case["method"], seq_len=case["seq"],
        loss=f"{loss}_alone" if case["before"] else loss, micro_batch_size=2 * case["pairs"],
        recompute="full" if case["replays"] else "none", precision={"params": "fp32" if wide(case) else "bf16"},
        **adapters)
    job, table = prepare(asked)
    found = lower(place(job.graph, job.mesh, table, 0), Workload(2 * case["pairs"], case["seq"], 2 << 16),
                  actions(table.schedule, 0, 1), hooks_of(table))
    held, scored = running(found), found.phase == Phase.LOSS
    rest = int(held[int(np.argmax(found.phase != Phase.BUILD)) - 1])
    first, begun, ended = (int(np.argmax(found.phase == phase)) for phase in (
        Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER))
    begin = begun if case["before"] else first + int(np.argmax(~scored[first:]))
    return {"begin": int(held[begin - 1]) - rest, "backward_begin": int(held[begun - 1]) - rest,
            "highest": int(held[:ended].max()) - rest}


@pytest.mark.parametrize("name", FILES)
def test_what_the_head_makes_is_that_of_trls_own_step(name: str) -> None:
    """Event by event, in three parts; the probe's policy and reference go on behind the head."""
    wrong = []
    for case in truth(name):
        ours = heads(case)
        theirs = {part: case[part] if part == "backward" else case[part][:len(sizes)] for part, sizes in ours.items()}
        if ours != theirs:
            wrong.append((case, ours))
    assert not wrong


@pytest.mark.parametrize("name", FILES)
def test_the_bytes_of_a_step_are_those_of_trls_own(name: str) -> None:
    """But for a few numbers a token."""
    wrong = []
    for case in truth(name):
        states = 4 * RNG_STATE * case["replays"]
        off = {part: size + states - case[part] for part, size in moments(case).items()}
        if max(map(abs, off.values())) > FEW * 2 * case["pairs"] * case["seq"]:
            wrong.append((case, off))
    assert not wrong


def test_a_head_with_an_adapter_is_refused_as_trl_refuses_it() -> None:
    given: dict[str, Any] = {"method": "lora", "lora": {"target_modules": ["q_proj", "lm_head"]}, "micro_batch_size": 2}
    with pytest.raises(RankscopeError, match="lm_head"):
        prepare(small.scenario("ddp", model="llama-tiny", loss="preference_fused", **given))
