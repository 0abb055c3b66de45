"""A reference model's pass inside the loss: what it holds, frees and computes, and which jobs have none."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import small
from checkout import ROOT
from simcore.errors import RankscopeError
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.memory.ledger import running
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.program.tile import AMOUNT, OP, SLOT
from simcore.recording.tape import Kernel, Op
from simcore.simulate import simulate

LORA: dict[str, Any] = {"method": "lora", "lora": {"target_modules": ["q_proj", "v_proj"]}}
DPO: dict[str, Any] = LORA | {"loss": "preference_rows", "micro_batch_size": 2}


SMALL = {"config": "llama-3.2-3b", "overrides": {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128, "tie_word_embeddings": False}}
RNG_STATE = 5056
"""Bytes of the state of a CPU's random numbers, which each checkpoint keeps, on the host."""


def program(model: Any = "llama-tiny", options: dict[str, Any] | None = None, microbatches: int = 2,
            **training: Any) -> Program:
    job, table = prepare(small.scenario("ddp", model=model, options=options, **training))
    plan = place(job.graph, job.mesh, table, 0)
    return lower(plan, Workload(2, 64, 2 << 16), actions(table.schedule, 0, microbatches), hooks_of(table))


def flops(found: Program) -> int:
    """FLOPs of products before the backward of the first microbatch."""
    rows = found.columns[:int(np.argmax(found.phase == Phase.BACKWARD))]
    return int(rows[(rows[:, OP] == Op.COMPUTE) & (rows[:, SLOT] == Kernel.GEMM)][:, AMOUNT].sum())


def test_the_reference_computes_the_model_without_its_adapters() -> None:
    """Before backward are the policy's products, with adapters, and as many again as the model has without."""
    assert flops(program(**DPO)) == flops(program(**LORA)) + flops(program())


def test_in_full_a_second_model_rests_beside_it_and_passes_once() -> None:
    """The reference has as many parameters as the model, no gradients and no states, and is not saved."""
    full: dict[str, Any] = {"micro_batch_size": 2}
    report, plain = (simulate(small.scenario("ddp", model="llama-tiny", **full, loss=loss))
                     for loss in ("preference_rows", "hf"))
    rest, own = (one.ranks[0].at_rest for one in (report, plain))
    assert rest["reference"].params_bytes == sum(part.params_bytes for part in own.values())
    assert {name: part for name, part in rest.items() if name != "reference"} == dict(own)
    assert flops(program(**full, loss="preference_rows")) == 2 * flops(program(**full))
    files = [next(phase for phase in one.host.phases if phase.phase == "save").host_bytes for one in (report, plain)
             if one.host is not None]
    assert files[0] == files[1]
    worked = [one.time.mfu * one.time.step_s for one in (report, plain) if one.time is not None]
    assert worked[0] == pytest.approx(worked[1])


def test_the_reference_reads_originals_of_modules_that_train_beside_adapters() -> None:
    """The same products; of a model whose head was tied the originals are not all there."""
    saved = {"lora": {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}}
    assert flops(program(**DPO | saved)) == flops(program(**DPO))
    with pytest.raises(RankscopeError, match="whose head was tied"):
        program("llama-3.2-1b", **DPO | saved)


def test_a_tower_passes_without_gradients_and_leaves_nothing() -> None:
    """A frozen tower makes the same tensors in both passes."""
    given: dict[str, Any] = {"images": 1, "image_height": 448, "image_width": 448, "seq_len": 512}
    ends = [simulate(small.scenario("ddp", model="qwen2.5-vl-3b", **given, **one)).ranks[0].end_bytes
            for one in (DPO | {"loss": "preference_softmax"}, LORA | {"micro_batch_size": 2})]
    assert ends[0] is not None
    assert ends[0] == ends[1]


def test_deepspeeds_engine_passes_its_model_twice_where_parameters_are_whole() -> None:
    """ZeRO-3 would gather each unit again, in another order than its trace has."""
    wrong = []
    for framework, serves in {"zero0": True, "zero1": True, "zero2": True, "zero3": False}.items():
        report = simulate(small.scenario(framework, model="llama-tiny", **DPO))
        plain = simulate(small.scenario(framework, model="llama-tiny", **LORA, micro_batch_size=2))
        if (report.status == "ok") != serves or (report.status == "ok" and (
                report.ranks[0].end_bytes != plain.ranks[0].end_bytes)):
            wrong.append((framework, report.status, report.problems))
    assert not wrong


def test_a_second_model_is_whole_on_every_rank_beside_zero_1_and_2() -> None:
    """TRL 1.16.0 `models/utils.py` prepare_deepspeed: an engine of stage 0, in the format of products."""
    wrong = []
    for framework in ("zero0", "zero1", "zero2"):
        mesh = {"dp_replicate": 4} if framework == "zero0" else {"dp_shard": 4}
        report, plain = (simulate(small.scenario(framework, mesh, model="llama-tiny", loss=loss, micro_batch_size=2))
                         for loss in ("preference_fused", "preference_fused_alone"))
        whole = report.ranks[0].at_rest["reference"].params_bytes
        ends = [one.ranks[0].end_bytes or 0 for one in (report, plain)]
        if ends[0] - ends[1] != whole or whole != 2 * 3_414_272:
            wrong.append((framework, whole, ends))
    assert not wrong


def test_a_step_ends_with_what_it_began_with() -> None:
    """But for gradients, which are there from the second step on; checkpoints are off in the reference's pass."""
    wrong = []
    for recompute in ("none", "full"):
        ends = [running(program(recompute=recompute, **given))[-1] for given in (DPO, LORA)]
        if ends[0] != ends[1]:
            wrong.append((recompute, ends))
    assert not wrong


def test_the_bytes_held_around_the_references_pass_are_those_of_a_real_step() -> None:
    """A step of TRL's trainer on a CPU (`probe_preference.py`), but for ids and labels of 64 tokens."""
    cases = json.loads((ROOT / "tests/truth/losses/preference-axolotl-067b021c.json").read_text(
        encoding="utf-8"))["steps"]
    wrong = []
    for case in cases:
        whole = case["method"] == "full"
        adapters = {} if whole else {"lora": {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"],
                                              "dtype": "fp32"}}
        found = program(SMALL, {"autocast": True} if case["mixed"] else {}, 1, **DPO | adapters | {
            "method": case["method"], "recompute": "full" if case["replays"] else "none",
            "precision": {"params": "fp32" if whole and case["mixed"] else "bf16"}})
        held, loss = running(found), found.phase == Phase.LOSS
        first = int(np.argmax(loss))
        begin = first + int(np.argmax(~loss[first:]))
        end = begin + int(np.argmax(loss[begin:]))
        rest = held[int(np.argmax(found.phase != Phase.BUILD)) - 1]
        places = {"begin": begin, "end": end, "backward": int(np.argmax(found.phase == Phase.BACKWARD))}
        states = 4 * RNG_STATE * case["replays"]
        off = {name: int(held[place - 1] - rest) - case[name] + states for name, place in places.items()}
        off["end"] += 2 * 2 * 64 * 512 * (whole and case["mixed"])  # the mark of a second model ends behind the cast
        if max(map(abs, off.values())) > 16 * 2 * 64:
            wrong.append((case, off))
    assert not wrong


def test_what_is_not_modelled_beside_pairs_is_refused_by_name() -> None:
    wrong = []
    for training, told in (({"method": "full", "precision": {"params": "fp32"}, "loss": "preference_softmax",
                             "options": {"autocast": True}},  # LLaMA-Factory leaves the reference in 16 bits
                            "of parameters in fp32 beside a reference in bf16"),
                           ({"micro_batch_size": 3}, "micro_batch_size: expected an even number"),
                           ({"lengths": "packed"}, "packed or drawn lengths"),
                           ({"offload": {"activations": "host"}, "recompute": "full"}, "activations on the host")):
        try:
            program(**DPO | training)
            wrong.append((training, "runs"))
        except RankscopeError as error:
            wrong += [(training, str(error))] if told not in str(error) else []
    assert not wrong


def test_a_reward_model_is_a_number_for_each_sequence() -> None:
    """Parameters and bytes of TRL's own step on a CPU, but for ids and labels of 64 tokens; no head of a vocabulary."""
    truth = json.loads((ROOT / "tests/truth/losses/preference-axolotl-067b021c.json").read_text(encoding="utf-8"))
    given: dict[str, Any] = {"micro_batch_size": 2, "loss": "rewards", "precision": {"params": "bf16"}}
    job, _ = prepare(small.scenario("ddp", model=SMALL, **given))
    assert job.graph.count() == truth["rewards"]["parameters"]
    found = program(SMALL, {}, 1, **given)
    held = running(found) - running(found)[int(np.argmax(found.phase != Phase.BUILD)) - 1]
    begin, end = (int(np.argmax(found.phase == phase)) for phase in (Phase.BACKWARD, Phase.OPTIMIZER))
    off = held[begin - 1] - truth["rewards"]["backward"], max(held[:end]) - truth["rewards"]["highest"]
    assert max(map(abs, off)) <= 18 * 2 * 64
    with pytest.raises(RankscopeError, match="a loss of rewards with adapters"):
        program(**LORA | given)
