"""The workloads `dpo` and `grpo` from a file to a report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.results.report import Report
from simcore.simulate import check, simulate

GRPO: dict[str, Any] = {
    "name": "g", "workload": "grpo", "model": "nemotron-3-tiny", "framework": "fsdp2", "topology": "dgx-h100",
    "mesh": {"dp_shard": 8}, "training": {"seq_len": 256, "global_batch_size": 16, "precision": {"params": "fp32"}},
    "rl": {"prompts": 4, "generations": 8, "reference": "host"},
    "generation": {"tp": 1, "gpu_memory_utilization": 0.6, "max_model_len": 256},
}  # fmt: skip
DPO = {key: GRPO[key] for key in ("name", "model", "framework", "topology", "mesh", "training")} | {"workload": "dpo"}


def asked(base: dict[str, Any] = GRPO, **changed: Any) -> Scenario:
    return parse_scenario(parse_document(json.dumps(base | changed), "g.json"))


def report(base: dict[str, Any] = GRPO, **changed: Any) -> Report:
    return simulate(asked(base, **changed))


def seconds(found: Report) -> dict[str, float]:
    return {phase.phase: phase.seconds for phase in found.phases}


def test_phases_lie_end_to_end_and_add_up_to_the_step() -> None:
    result = report()
    assert result.time is not None
    ends = [phase.start_s + phase.seconds for phase in result.phases]
    assert [phase.start_s for phase in result.phases] == pytest.approx([0.0, *ends[:-1]])
    assert result.time.step_s == pytest.approx(ends[-1])
    assert sum(result.time.parts.values()) == pytest.approx(result.time.step_s)


def test_the_peak_is_the_highest_phase_and_every_byte_has_a_category() -> None:
    result = report()
    rank = result.ranks[0]
    assert rank.peak is not None
    highest = max(result.phases, key=lambda phase: phase.device_bytes)
    assert (rank.peak.device_bytes, rank.peak.phase) == (highest.device_bytes, highest.phase) == (
        rank.peak.device_bytes, "generation")
    assert sum(rank.peak.by_category.values()) == rank.peak.allocated_bytes
    assert set(rank.peak.by_phase) >= {"refit", "generation", "logprob", "reference", "forward", "backward"}
    for phase in result.phases:
        assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes


def test_training_is_the_training_step_beside_an_engine_asleep() -> None:
    alone = simulate(parse_scenario(parse_document(json.dumps(
        {key: value for key, value in GRPO.items() if key not in ("workload", "rl", "generation")}), "t.json")))
    result = report()
    training = next(phase for phase in result.phases if phase.phase == "training")
    assert alone.ranks[0].peak is not None
    assert training.by_owner["policy"] == alone.ranks[0].peak.device_bytes
    assert training.by_owner["engine"] > 2**30
    assert alone.time is not None
    assert training.seconds > 2 * alone.time.step_s  # 32 sequences in batches of 16, and states that come back


@pytest.mark.parametrize(("framework", "inside"), [("megatron", {"dispatcher", "workspace"}), ("fsdp2", set())])
def test_what_torch_allocates_in_a_training_step_it_allocates_in_a_training_phase(framework: str, inside: set[str],
                                                                                  ) -> None:
    """Buffers of Megatron's dispatcher and its workspaces are torch's, those of other frameworks are outside."""
    base = {"name": "d", "model": "nemotron-3-tiny", "framework": framework, "topology": "dgx-h100",
            "training": {"seq_len": 4096}}
    alone, phased = (simulate(parse_scenario(parse_document(json.dumps(one), "d.json"))).ranks[0].peak
                     for one in (base, base | {"workload": "dpo"}))
    assert alone is not None
    assert phased is not None
    assert phased.outside == alone.outside
    assert inside <= set(phased.by_category)
    assert phased.allocated_bytes == sum(phased.by_category.values()) == max(phased.by_phase.values())
    assert phased.by_phase["optimizer"] == alone.by_phase["optimizer"]


@pytest.mark.parametrize("changed", [
    {}, DPO | {"rl": None, "generation": None},
    DPO | {"rl": None, "generation": None, "framework": "megatron", "training": {"seq_len": 256}},
    {"generation": GRPO["generation"] | {"colocated": False, "engines": 2}}], ids=["grpo", "dpo", "megatron", "apart"])
def test_memory_is_the_same_without_time(changed: dict[str, Any]) -> None:
    """Advice asks for memory alone, dozens of times."""
    timed, untimed = (simulate(asked(**changed), timed=timed) for timed in (True, False))
    assert timed.status == "ok"
    assert timed.time is not None
    assert untimed.time is None
    assert [rank.peak for rank in untimed.ranks] == [rank.peak for rank in timed.ranks]
    assert untimed.headroom_bytes == timed.headroom_bytes
    assert [phase.device_bytes for phase in untimed.phases] == [phase.device_bytes for phase in timed.phases]


def test_more_sequences_take_longer_and_no_more_memory() -> None:
    once, twice = report(), report(rl=GRPO["rl"] | {"prompts": 8})
    assert seconds(twice)["logprob"] > seconds(once)["logprob"]
    assert seconds(twice)["training"] > 1.5 * seconds(once)["training"]
    assert [phase.device_bytes for phase in once.phases] == [phase.device_bytes for phase in twice.phases]


def test_parameters_that_rest_on_the_host_come_for_a_refit_alone() -> None:
    """cpu_offload: 8 ranks, in fp32; gradients are there in training alone."""
    base = GRPO | {"framework": "automodel", "framework_version": "NeMo RL 7ea279ab", "model": "llama-tiny",
                   "implementation": "hf"}
    offload = dict.fromkeys(("params", "gradients", "optimizer"), "host")
    here, away = (report(base, training=GRPO["training"] | extra) for extra in ({}, {"offload": offload}))
    held = {phase.phase: phase.host_by_owner for phase in away.phases}
    copied = {phase.phase: phase.host_by_owner for phase in here.phases}["reference"]["policy, copied"]
    params = held["training"]["policy, gradients"]
    assert held["logprob"]["policy"] - held["training"]["policy"] == copied - params  # buffers, which are here for it
    assert held["training"]["policy"] == 3 * params
    assert held["reference"]["policy, copied"] == held["reference"]["reference policy"] == copied
    (back,) = [row for row in away.ranks[0].traffic if row.phase == "refit" and row.axis == "to_host"]
    assert back.payload_bytes == copied


def test_prompts_that_are_answered_and_not_kept_take_time_alone() -> None:
    plain, (more, same) = report(), (report(rl=GRPO["rl"] | {"generated_prompts": count}) for count in (8000, 4))
    assert seconds(more)["generation"] > 2 * seconds(plain)["generation"]
    assert seconds(more) | {"generation": 0} == seconds(plain) | {"generation": 0}
    assert [phase.device_bytes for phase in more.phases] == [phase.device_bytes for phase in plain.phases]
    assert seconds(same) == seconds(plain)
    assert [row.value for row in more.assumptions if row.what == "rl.generated_prompts"] == [
        "8,000 prompts are answered once, and 4 of them are trained on"]


def test_prompts_are_not_decoded() -> None:
    whole, half = report(), report(rl=GRPO["rl"] | {"prompt_tokens": 128})
    assert seconds(half)["generation"] < seconds(whole)["generation"]


def test_hosts_hold_every_rank_of_each_phase() -> None:
    result = report()
    assert result.host is not None
    by_phase = {phase.phase: phase for phase in result.host.phases}
    assert list(by_phase) == ["load", "refit", "generation", "logprob", "reference", "training", "save"]
    each = {phase.phase: phase.host_bytes for phase in result.phases}
    assert by_phase["reference"].host_bytes == 8 * each["reference"] > 0
    assert result.ranks[0].peak is not None
    assert result.ranks[0].peak.host_bytes == max(each.values())


def test_on_gpus_of_its_own_the_engine_has_ranks_of_its_own() -> None:
    result = report(generation=GRPO["generation"] | {"colocated": False, "engines": 2, "tp": 2})
    assert [rank.ranks for rank in result.ranks][-1] == ("8-11",)
    assert result.ranks[-1].peak is not None
    assert result.ranks[-1].peak.by_phase["training"] < result.ranks[-1].peak.by_phase["generation"]
    assert result.ranks[0].peak is not None
    assert result.ranks[0].peak.host_bytes > 0  # the reference policy


def test_a_preference_is_two_sequences() -> None:
    pairs = report(DPO)
    sequences = simulate(parse_scenario(parse_document(json.dumps(
        DPO | {"workload": "train", "training": DPO["training"] | {"micro_batch_size": 2, "global_batch_size": 32}}),
        "t.json")))
    training = next(phase for phase in pairs.phases if phase.phase == "training")
    assert sequences.ranks[0].peak is not None
    assert training.device_bytes == sequences.ranks[0].peak.device_bytes
    assert [phase.phase for phase in pairs.phases] == ["reference", "training"]
    assert pairs.phases[0].host_by_owner["reference policy"] == pairs.phases[0].host_by_owner["policy, copied"]
    assert pairs.scenario["training"]["global_batch_size"] == 16


@pytest.mark.parametrize(("changed", "status", "told"), [
    ({"rl": None}, "error", "grpo: missing the block rl"),
    ({"generation": None, "rl": None}, "error", "grpo: missing the block rl and generation"),
    ({"rl": {"prompts": 1, "generations": 3}}, "error", "expected a divisor of prompts x generations = 3"),
    ({"rl": GRPO["rl"] | {"logprob_batch_size": 8}}, "error", "logprob_batch_size: expected prompts x generations"),
    ({"rl": GRPO["rl"] | {"reference": "device"}}, "illegal", "the reference policy lies on the host"),
    ({"rl": GRPO["rl"] | {"generated_prompts": 3}}, "error", "expected at least the 4 prompts"),
    ({"rl": GRPO["rl"] | {"generated_prompts": 8, "asynchronous": True}, "generation": GRPO["generation"] | {
        "colocated": False}}, "error", "not yet: prompts that are answered and not kept"),
    ({"rl": GRPO["rl"] | {"prompt_tokens": 256}}, "error", "expected fewer than the 256 tokens"),
    ({"generation": GRPO["generation"] | {"kv_dtype": "fp8"}}, "illegal", "kv_dtype: fp8 under fsdp2"),
    ({"generation": GRPO["generation"] | {"tp": 3}}, "illegal", "not divisible by tp 3"),
    ({"generation": GRPO["generation"] | {"tp": 16}}, "illegal", "tp 16"),
    ({"framework": "zero3", "training": {"seq_len": 256, "global_batch_size": 16}}, "error",
     "not yet: grpo under zero3"),
    ({"model": "llama-tiny", "training": {"method": "qlora", "seq_len": 256, "global_batch_size": 16}}, "error",
     "not yet: grpo over a base in few bits"),
    ({"model": "llama-tiny", "framework": "megatron", "mesh": {"pp": 2, "dp_shard": 4}, "training": {
        "seq_len": 256, "global_batch_size": 16, "pipeline": {"virtual_stages": 2}}},
     "error", "not yet: grpo with virtual stages"),
    ({"model": "llama-tiny", "framework": "megatron", "framework_options": {"cpu_offloading_num_layers": 1},
      "training": {"seq_len": 256, "global_batch_size": 16, "offload": {"activations": "host"}}}, "error",
     "not yet: grpo with what layers or modules save on the host"),
    ({"framework": "automodel", "model": "llama-tiny", "mesh": {"dp_shard": 4, "cp": 2}, "training": {
        "seq_len": 256, "global_batch_size": 16, "logprob_chunk_size": 64}}, "error",
     "not yet: log-probabilities in chunks of DTensors, with tp 1 and cp 2"),
    ({"framework": "nonsense"}, "error", "unknown framework")])
def test_what_is_refused(changed: dict[str, Any], status: str, told: str) -> None:
    for found in (report(**changed), check(asked(**changed))):
        assert found.status == status, found.problems
        assert any(told in row.message for row in found.problems), found.problems


@pytest.mark.parametrize(("framework", "training", "status", "told"), [
    ("fsdp2", {}, "illegal", "no loss of a training step under fsdp2 is made in chunks"),
    ("megatron", {"loss": "te"}, "illegal", "it is of a cross entropy"),
    ("megatron", {"lengths": "packed"}, "error", "not yet: log-probabilities in chunks of packs")])
def test_a_training_step_in_chunks_is_that_of_megatron_workers(framework: str, training: dict[str, Any], status: str,
                                                               told: str) -> None:
    given = {"seq_len": 256, "logprob_chunk_size": 64} | training
    found = check(asked(workload="train", rl=None, generation=None, model="llama-tiny", framework=framework,
                        training=given))
    assert found.status == status
    assert told in found.problems[0].message


def test_nothing_stands_in_for_a_loss_in_chunks() -> None:
    chunked, whole = (report(framework="megatron", model="llama-tiny", training={
        "seq_len": 256, "global_batch_size": 16, "logprob_chunk_size": size}) for size in (64, None))
    losses = [{row.value for row in found.assumptions if row.what == "training.loss"} for found in (chunked, whole)]
    assert losses[0] == {"log-probabilities in chunks"}
    assert "a cross entropy stands in for the loss of log-probabilities" in losses[1]


@pytest.mark.parametrize("framework", ["automodel", "fsdp2"])
def test_one_gpu_is_a_job_too(framework: str) -> None:
    """Trained, and generated on, by a GPU that shares its weights with no other."""
    result = report(framework=framework, model="llama-tiny", mesh={"dp_shard": 1},
                   generation={"tp": 1, "max_model_len": 256})
    assert result.status == "ok", result.problems
    assert all(phase.seconds > 0 for phase in result.phases)


def test_an_engine_does_not_cut_the_gpus() -> None:
    result = report(model="qwen3-8b", mesh={"dp_shard": 4}, generation={"tp": 8, "max_model_len": 256})
    assert any("expected a divisor of 4 ranks" in row.message for row in result.problems)


def test_gpus_of_their_own_must_be_there() -> None:
    few = {"file": "dgx-h100", "num_nodes": 1}
    result = report(topology=few, generation=GRPO["generation"] | {"colocated": False})
    assert any("9 ranks do not fit" in row.message for row in result.problems)


def test_an_engine_that_does_not_start_does_not_fit() -> None:
    result = report(generation=GRPO["generation"] | {"gpu_memory_utilization": 1.0})
    assert result.serving is not None
    assert result.verdict == "oom"
    assert result.serving.refusal


def test_an_engine_of_a_trainer_asks_for_less_where_nobody_says() -> None:
    result = report(generation={"tp": 1, "max_model_len": 256})
    assert result.serving is not None
    assert result.serving.requested_bytes == pytest.approx(0.6 * 79.11 * 2**30, rel=1e-6)
    assert "generation.gpu_memory_utilization" in {assumption.what for assumption in result.assumptions}


APART = GRPO["generation"] | {"colocated": False, "engines": 2, "tp": 2}


def test_one_rank_has_its_own_memory_phases_and_verdict() -> None:
    scenario = asked(generation=APART, limits={"usable_memory": "48.5 GiB"})
    whole, trains, generates = simulate(scenario), simulate(scenario, rank=7), simulate(scenario, rank=11)
    assert [one.ranks[0].ranks for one in (trains, generates)] == [("7",), ("11",)]
    assert trains.phases == whole.ranks[0].phases != generates.phases == whole.ranks[-1].phases
    assert (whole.verdict, trains.verdict, generates.verdict) == ("oom", "fits", "oom")
    assert whole.headroom_bytes == generates.headroom_bytes != trains.headroom_bytes
    assert trains.time == whole.time
    assert "expected a rank from 0 to 11" in simulate(scenario, rank=12).problems[0].message


def test_sequences_that_are_not_trained_as_they_were_generated_are_told() -> None:
    def told(**generation: Any) -> list[str]:
        found = report(generation=GRPO["generation"] | generation)
        return [one.value for one in found.assumptions if one.what == "trained sequences"]

    assert told() == []
    assert told(max_model_len=128) == ["256 tokens each, generated up to 128"]


def test_phases_are_of_ranks_that_train_also_where_engines_are_fuller() -> None:
    found = report(generation=APART)
    assert found.peak_rank is found.generating_rank is found.ranks[-1]
    assert found.trained_rank is found.ranks[0]
    assert found.phases == found.ranks[0].phases
    assert report().generating_rank is None


def test_nothing_is_generated_in_dpo() -> None:
    assert "nothing is generated in dpo" in report(DPO, generation={"tp": 1}).problems[0].message


def test_a_reference_of_cut_layers_needs_no_gradient() -> None:
    """KempnerForge's first layer cuts its input over tp: of a reference model nothing below waits for a gradient."""
    cut = DPO | {"model": "llama-tiny", "implementation": "kempnerforge", "mesh": {"tp": 2},
                 "training": {"seq_len": 64}}
    assert report(cut).problems == ()


def test_pipeline_stages_pass_on_log_probabilities_and_weights() -> None:
    """The last stage alone has logits; every stage has the log-probabilities afterwards, and exports all weights."""
    found = report(framework="megatron", model="llama-tiny", mesh={"pp": 2, "dp_shard": 4},
                   training={"seq_len": 256, "global_batch_size": 16})
    first, last = found.ranks
    assert (first.stage, last.stage) == (0, 1)
    assert first.peak is not None
    assert last.peak is not None
    assert first.peak.by_phase["logprob"] < last.peak.by_phase["logprob"]
    for rank in (first, last):
        [spread] = [row for row in rank.traffic if (row.collective, row.phase) == ("broadcast", "logprob")]
        assert (spread.axis, spread.dtype, spread.payload_bytes) == ("pp", "fp32", 4 * 256 * 32 // 4)
    sent = [[row.calls for row in rank.traffic if (row.collective, row.phase) == ("send_recv", "logprob")]
            for rank in (first, last)]
    assert sent == [[8], []]  # passes of one microbatch each
    refit = [[row for row in rank.traffic if row.phase == "refit" and row.axis == "pp"] for rank in (first, last)]
    assert refit[0] == refit[1] != []


def test_engines_on_other_gpus_may_generate_while_the_policy_trains() -> None:
    """A step takes as long as the slower of both, then weights are sent; memory is that of taking turns."""
    apart = GRPO["generation"] | {"colocated": False, "engines": 2}
    for tokens in (256, 8192):  # the policy is slower, then the engines are
        training = {**GRPO["training"], "seq_len": tokens}
        turns, beside = (report(training=training, generation=apart | {"max_model_len": tokens},
                                rl=GRPO["rl"] | {"asynchronous": asked}) for asked in (False, True))
        before, after = seconds(turns), seconds(beside)
        busy = before["logprob"] + before["reference"] + before["training"]
        assert {name: after[name] for name in after if name != "generation"} == pytest.approx(
            {name: before[name] for name in before if name != "generation"})
        assert after["generation"] == pytest.approx(max(0.0, before["generation"] - busy), abs=1e-8)
        assert [rank.peak for rank in beside.ranks] == [rank.peak for rank in turns.ranks]
    with_one = report(rl=GRPO["rl"] | {"asynchronous": True})
    assert (with_one.status, "only supported for the Megatron generation backend" in with_one.problems[0].rule) == (
        "illegal", True)


def test_a_step_whose_ratios_are_1_has_no_pass_of_its_own() -> None:
    """NeMo RL 7ea279ab algorithms/grpo.py:2490: log-probabilities of the policy are not made before it trains."""
    training = GRPO["training"] | {"global_batch_size": 32}
    plain, short = (report(training=training, rl=GRPO["rl"] | {"on_policy_ratio": ratio}) for ratio in (False, True))
    assert [phase.phase for phase in short.phases] == ["refit", "generation", "reference", "training"]
    before, after = seconds(plain), seconds(short)
    passes = before.pop("logprob") + before.pop("reference")
    assert 0.4 * passes < after.pop("reference") < passes
    assert before == pytest.approx(after)
    assert {row.phase for row in short.ranks[0].traffic} == {row.phase for row in plain.ranks[0].traffic} - {"logprob"}
    alone = report(training=training, rl=GRPO["rl"] | {"on_policy_ratio": True, "reference": "none"})
    assert [phase.phase for phase in alone.phases] == ["refit", "generation", "training"]
    assert alone.phases[-1].device_bytes == pytest.approx(report(training=training, rl=GRPO["rl"] | {
        "reference": "none"}).phases[-1].device_bytes)
    (problem,) = check(asked(rl=GRPO["rl"] | {"on_policy_ratio": True})).problems
    assert "force_on_policy_ratio requires" in problem.message + problem.rule


@pytest.mark.parametrize(("changed", "told"), [
    ({"rl": GRPO["rl"] | {"chunks": 2}}, "parts of a step with an engine on the GPUs that train"),
    ({"rl": GRPO["rl"] | {"chunks": 2}, "generation": GRPO["generation"] | {"colocated": False}},
     "chunks: 2 with several optimizer steps"),
    ({"rl": GRPO["rl"] | {"chunks": 5}, "generation": GRPO["generation"] | {"colocated": False},
      "training": GRPO["training"] | {"global_batch_size": 32}}, "expected at most the 4 prompts of a step, got 5")])
def test_parts_of_a_step_are_a_single_controllers(changed: dict[str, Any], told: str) -> None:
    for result in (simulate(asked(**changed), timed=False), check(asked(**changed))):
        assert told in result.problems[0].message


def test_gradients_of_parts_are_those_of_the_training_step() -> None:
    apart = {"generation": GRPO["generation"] | {"colocated": False, "kv_cache_memory": "64 MiB"},
             "training": GRPO["training"] | {"global_batch_size": 32}}
    whole, parts = (simulate(asked(**apart, rl=GRPO["rl"] | {"chunks": chunks}), timed=False) for chunks in (1, 2))
    peaks = [result.ranks[0].peak for result in (whole, parts)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    grads = sum(part.grads_bytes for part in parts.ranks[0].at_rest.values())
    assert grads > 0
    assert peaks[1].by_phase["logprob"] - peaks[0].by_phase["logprob"] == grads


def test_states_that_left_before_do_not_leave_for_log_probabilities() -> None:
    told = simulate(asked(rl=GRPO["rl"] | {"optimizer_offload": True}), timed=False).problems[0].message
    assert "optimizer_offload: changes nothing where states leave before weights are sent" in told
    apart = {"generation": GRPO["generation"] | {"colocated": False}, "training": GRPO["training"] | {
        "global_batch_size": 32}}
    told = simulate(asked(**apart, rl=GRPO["rl"] | {"optimizer_offload": True, "chunks": 2}),
                    timed=False).problems[0].message
    assert "not yet: states that leave before the first part" in told


def test_answers_of_several_lengths_take_as_long_as_the_longest_and_no_more_memory() -> None:
    whole, same, short = (report(rl=GRPO["rl"] | more) for more in ({}, {"mean_tokens": 256}, {"mean_tokens": 64}))
    assert seconds(same) == seconds(whole)
    host = 256 * 1.4e-3
    assert host < seconds(short)["generation"] < seconds(whole)["generation"], "as many passes, of fewer sequences"
    assert [phase.device_bytes for phase in short.phases] == [phase.device_bytes for phase in whole.phases]
    assert short.time is not None
    assert whole.time is not None
    assert short.time.tokens_per_s_per_gpu * short.time.step_s == pytest.approx(
        whole.time.tokens_per_s_per_gpu * whole.time.step_s * 64 / 256), "tokens are those of the answers"
    assert [row.value for row in short.assumptions if row.what == "generation"] == [
        "sequences have 64 tokens in the mean, their density is exponential, and the longest has 256"]
    for wrong in ({"mean_tokens": 257}, {"mean_tokens": 32, "prompt_tokens": 32}):
        (problem,) = report(rl=GRPO["rl"] | wrong).problems
        assert "mean_tokens: expected more than the" in problem.message


def test_engines_that_are_ahead_decode_answers_of_several_steps_together() -> None:
    rl = GRPO["rl"] | {"asynchronous": True, "mean_tokens": 1000}
    apart = GRPO["generation"] | {"colocated": False, "engines": 1, "max_model_len": 4096}
    one, four = (report(generation=apart, rl=rl | {"steps_ahead": ahead}) for ahead in (1, 4))
    assert seconds(one)["generation"] > 8 * seconds(four)["generation"] > 0, "32 x 1,000 tokens, 128 at a time"
    assert seconds(one)["generation"] > 4096 * 1.4e-3 - sum(
        took for phase, took in seconds(one).items() if phase != "generation"), "the longest answer is waited for"
    (problem,) = report(rl=GRPO["rl"] | {"steps_ahead": 2}).problems
    assert "steps_ahead: changes nothing where engines wait" in problem.message
