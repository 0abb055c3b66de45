"""Evaluation beside the training's tensors: by hand, and by what must hold under every framework."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.inputs.evaluation import Evaluation
from simcore.inputs.scenario import Scenario
from simcore.models.blocks import Attention, Mamba2
from simcore.results.report import HostPhase, Report
from simcore.simulate import check, simulate

LLAMA = {"config": "llama-tiny", "overrides": {"vocab_size": 50000}}
VOCAB, SEQ = 50000, 64


def asked(framework: str, mesh: dict[str, int] | None = None, block: dict[str, Any] | None = None,
          **given: Any) -> Scenario:
    return small.scenario(framework, mesh, **({"model": LLAMA} | given)).model_copy(
        update={"evaluation": Evaluation(**block or {})})


def run(*given: Any, timed: bool = False, **named: Any) -> Report:
    report = simulate(asked(*given, **named), timed=timed)
    assert report.status == "ok", report.problems
    return report


def phase(report: Report, name: str = "evaluation") -> HostPhase:
    assert report.host is not None
    return next(one for one in report.host.phases if one.phase == name)


def refusal(*given: Any, **named: Any) -> str:
    scenario = asked(*given, **named)
    report = simulate(scenario, timed=False)
    (problem,) = report.problems
    assert report.status in ("illegal", "error")
    assert "\n" not in problem.message
    return f"{problem.where}: {problem.message}"


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 4}), ("automodel", {"dp_shard": 4}), ("megatron", {"dp_shard": 4}), ("ddp", {}),
    ("megatron_fsdp", {"dp_shard": 4}), ("zero1", {"dp_shard": 4}), ("zero3", {"dp_shard": 4}),
    ("fsdp1", {"dp_shard": 4}), ("megatron", {"pp": 2, "dp_shard": 2})])
def test_a_pass_keeps_nothing_for_backward(framework: str, mesh: dict[str, int]) -> None:
    """At the training's sizes it needs less than a step, and more than what the step leaves."""
    block = {} if framework.startswith("megatron") else {"micro_batch_size": 2}
    report = run(framework, mesh, block, model="llama-3.2-3b", seq_len=512, micro_batch_size=2)
    held = sum(phase(report).by_category.values())
    tops = [rank.peak.allocated_bytes for rank in report.ranks if rank.peak]
    assert max(rank.end_bytes or 0 for rank in report.ranks) < held < max(tops)


def test_what_training_keeps_is_still_there() -> None:
    held = phase(run("megatron", {"dp_shard": 4})).by_category
    assert held["main_grad"] > 0
    assert held["opt_state"] > 0


def test_layers_are_not_replayed() -> None:
    once, replayed = (phase(run("ddp", {}, {"micro_batch_size": 4}, recompute=how)) for how in ("none", "full"))
    assert once.by_category == replayed.by_category


@pytest.mark.parametrize(("framework", "size"), [("ddp", 8), ("automodel", 1), ("megatron", 1)])
def test_the_batch_is_the_trainers_by_default(framework: str, size: int) -> None:
    mesh = {} if framework == "ddp" else {"dp_shard": 1}
    assert phase(run(framework, mesh)).by_category == phase(
        run(framework, mesh, {"micro_batch_size": size})).by_category


def test_a_pass_has_its_own_length() -> None:
    short, long = (phase(run("ddp", {}, {"seq_len": length})).device_bytes for length in (64, 1024))
    assert long > short
    assert phase(run("ddp", {}, {"seq_len": 64})).device_bytes == short


def kept(num_ranks: int, **block: Any) -> tuple[int, HostPhase]:
    """Bytes on the device beside those of a pass that keeps nothing."""
    mesh, given = {"dp_replicate": num_ranks}, {"micro_batch_size": 2, **block}
    found = phase(run("ddp", mesh, {**given, "keep_logits": True}))
    return found.by_category["kept logits"], found


def test_logits_of_all_ranks_and_passes_are_on_each_rank() -> None:
    """bf16: two passes of two sequences on two ranks; while they are joined there are the parts and the whole."""
    one = 2 * 2 * SEQ * VOCAB * 2
    size, found = kept(2, sequences=8)
    assert size == 2 * 2 * one
    assert found.by_owner["kept logits"] == 2 * (8 * SEQ * VOCAB * 4 + 8 * SEQ * VOCAB * 2)  # fp32, as numpy has it


def test_logits_that_go_to_the_host_are_gone_from_the_device() -> None:
    """A pass and its loss are then the fullest moment; on the host old and new are joined."""
    found = phase(run("ddp", {"dp_replicate": 2}, {"micro_batch_size": 2, "keep_logits": True, "sequences": 16,
                                                   "accumulation_steps": 1}))
    plain = phase(run("ddp", {"dp_replicate": 2}, {"micro_batch_size": 2}))
    assert found.by_category == plain.by_category
    assert found.by_owner["kept logits"] == 2 * 2 * (16 * SEQ * VOCAB * 4)


def test_logits_of_mixed_precision_are_fp32() -> None:
    narrow, wide = (phase(run("ddp", {}, {"keep_logits": True, "sequences": 256}, precision={"params": dtype}))
                    for dtype in ("bf16", "fp32"))
    assert wide.by_category["kept logits"] == 2 * narrow.by_category["kept logits"]


def test_a_phase_that_does_not_fit_is_told_with_what_makes_it_fit() -> None:
    block = {"keep_logits": True, "sequences": 8192, "micro_batch_size": 8}
    found = phase(run("ddp", {}, block, seq_len=512))
    assert found.device_verdict == "oom"
    assert found.change == {"evaluation.accumulation_steps": 1}
    again = phase(run("ddp", {}, {**block, "accumulation_steps": 1}, seq_len=512))
    assert (again.device_verdict, again.change) == ("fits", {})
    huge = phase(run("ddp", {}, {"micro_batch_size": 512, "seq_len": 4096}))
    assert huge.device_verdict == "oom"
    assert 0 < huge.change["evaluation.micro_batch_size"] < 512


def test_generation_fills_a_cache() -> None:
    """Keys and values of 4 heads of 32 in 4 layers; of Mamba-2 a state in fp32 and the convolution's inputs."""
    found = phase(run("ddp", {}, {"micro_batch_size": 2, "generate_tokens": 2000}), "generate")
    assert found.by_category["kv_cache"] == 2 * (SEQ + 2000) * 4 * 2 * 4 * 32 * 2
    nano = phase(run("ddp", {}, {"micro_batch_size": 2, "generate_tokens": 10**5}, model=small.TINY), "generate")
    job, _ = small.prepared("ddp")
    blocks = [b.block for layer in job.graph.layers for b in job.graph.kinds[layer.kind].branches]
    states = sum(b.conv_dim * b.conv_kernel * 2 + b.inner * b.state * 4 for b in blocks if isinstance(b, Mamba2))
    keys = sum(2 * b.kv_size * 2 for b in blocks if isinstance(b, Attention))
    assert nano.by_category["kv_cache"] == 2 * (states + keys * (SEQ + 10**5))


def test_more_sequences_and_more_tokens_take_longer() -> None:
    seconds = [phase(run("ddp", {}, {"sequences": number}, timed=True)).seconds or 0 for number in (8, 16, 24)]
    assert seconds[2] - seconds[1] == pytest.approx(seconds[1] - seconds[0])
    new = [phase(run("ddp", {}, {"generate_tokens": number}, timed=True), "generate").seconds or 0
           for number in (8, 16)]
    assert new[0] < new[1] < 2 * new[0]
    assert phase(run("ddp")).seconds is None


@pytest.mark.parametrize(("given", "told"), [
    (("megatron", {"dp_shard": 2}, {"micro_batch_size": 4}), "evaluation runs with the micro batch of the training, 1"),
    (("automodel", {"dp_shard": 2}, {"keep_logits": True}), "the evaluation loop keeps losses alone"),
    (("megatron", {"dp_shard": 2}, {"generate_tokens": 4}), "the evaluation loop generates nothing"),
    (("ddp", {}, {"accumulation_steps": 4}), "accumulation_steps: changes nothing without keep_logits"),
    (("ddp", {}, {"micro_batch_size": 2**15, "seq_len": 2**15}), "evaluation: expected at most")])
def test_what_a_loop_does_not_do_is_refused(given: Any, told: str) -> None:
    assert told in refusal(*given)


def test_a_loss_without_logits_keeps_none() -> None:
    assert "not yet: logits of a model with loss: cut" in refusal("ddp", {}, {"keep_logits": True}, loss="cut")


def test_a_check_refuses_it_too() -> None:
    (problem,) = check(asked("automodel", {"dp_shard": 2}, {"keep_logits": True})).problems
    assert "keeps losses alone" in problem.message
