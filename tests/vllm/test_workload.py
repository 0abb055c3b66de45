"""The workload `serve`: from a file to a report, and what is refused on the way."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simcore.batch.gate import gates
from simcore.batch.run import Outcome
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.models.graph import model_config
from simcore.results.engine import Serving
from simcore.results.report import Report
from simcore.simulate import check, place, simulate

NANO = {"name": "s", "workload": "serve", "model": "nemotron-3-nano-30b-a3b", "topology": "dgx-h100",
        "generation": {"tp": 4, "max_model_len": 262144}}  # fmt: skip
FP8 = {"tp": 4, "max_model_len": 262144, "kv_dtype": "fp8"}


def asked(**changed: Any) -> Any:
    return parse_scenario(parse_document(json.dumps(NANO | changed), "s.json"))


def served(**changed: Any) -> Report:
    return simulate(asked(**changed))


def found(report: Report) -> Serving:
    assert report.serving is not None, report.problems
    return report.serving


def test_nano_on_four_gpus() -> None:
    report = served()
    serving, rank = found(report), report.ranks[0]
    assert (report.status, report.verdict, rank.num_ranks, rank.ranks) == ("ok", "fits", 4, ("0-3",))
    assert (serving.kv_heads_per_rank, serving.kv_head_replicas, serving.kv_bytes_per_token) == (1, 2, 3072)
    assert serving.weight_bytes == pytest.approx(63.16e9 / 4, rel=0.01)
    assert rank.peak is not None
    assert rank.peak.by_category["kv_cache"] == serving.cache_bytes
    assert rank.peak.device_bytes == sum(rank.peak.by_category.values()) + sum(rank.peak.outside.values())


def test_an_fp8_cache_holds_nearly_twice_the_sequences_of_full_length() -> None:
    wide, narrow = found(served()), found(served(generation=FP8))
    assert wide.kv_bytes_per_token == 2 * narrow.kv_bytes_per_token
    assert 1.9 < narrow.concurrency / wide.concurrency < 2


def test_states_of_mamba_that_prefixes_keep() -> None:
    """By `Release.states`: of all blocks, as the engine chooses for Nemotron-H, or of the last two."""
    given = {"tp": 4, "max_model_len": 262144, "version": "0.25.1", "prefix_caching": True}
    every, last = (found(served(generation=given | more)) for more in ({}, {"mamba_cache_mode": "align"}))
    assert every.concurrency < last.concurrency
    idle = served(generation=given | {"mamba_cache_mode": "align", "prefix_caching": False})
    assert "generation.mamba_cache_mode" in [one.what for one in idle.assumptions]
    for more, told in (({"version": "0.12.0"}, "vLLM 0.12.0 has no such setting"),
                       ({"max_num_batched_tokens": 512}, "In Mamba cache align mode, block_size")):
        report = served(generation=given | {"mamba_cache_mode": "align"} | more)
        assert (report.status, told in report.problems[0].message) == ("illegal", True)


MOE = {"model": "qwen3-30b-a3b"}
EXPERTS = {"tp": 4, "max_model_len": 8192, "max_num_seqs": 64, "version": "0.25.1"}


def test_experts_that_are_not_cut_weigh_the_same_and_work_wider() -> None:
    """A quarter of 128 experts, or a quarter of each: of top_k rows a token, both halves are whole."""
    cut, whole = (served(**MOE, generation=EXPERTS | {"expert_parallel": on}) for on in (False, True))
    assert found(cut).weight_bytes == found(whole).weight_bytes
    wider = max(2 * 768, 2048) + 768 - max(2 * 192, 2048) - 192
    assert found(whole).activation_bytes - found(cut).activation_bytes == 8 * wider * 2 * 8192
    assert "generation.expert_parallel" in [one.what for one in whole.assumptions]
    odd = {"model": {"config": "qwen3-30b-a3b", "overrides": {"num_experts": 126}}}
    for model, more, told in (({"model": "llama-3.1-8b"}, {}, "Number of experts in the model must be greater than 0"),
                              (odd, {}, "not yet: 126 experts of which some ranks of 4 have one more"),
                              (MOE, {"max_loras": 1}, "not yet: experts that are not cut, with adapters")):
        given = EXPERTS | {"expert_parallel": True} | more
        assert told in served(**model, generation=given).problems[0].message


def test_prompts_that_are_read_whole_make_passes_as_long_as_the_longest() -> None:
    """By vLLM 0.25.1 `engine/arg_utils.py`:2633, and what `config/scheduler.py` refuses."""
    given = {"tp": 4, "version": "0.25.1", "chunked_prefill": False}
    for longest, tokens in ((4096, 8192), (32768, 32768)):
        assert found(served(**MOE, generation=given | {"max_model_len": longest})).max_num_batched_tokens == tokens
    for more, told in (({"version": "0.12.0"}, "not yet: prompts that are read whole with vLLM 0.12.0"),
                       ({"max_num_batched_tokens": 64}, "max_num_batched_tokens (64) is smaller than max_model_len")):
        report = served(**MOE, generation=given | {"max_model_len": 4096} | more)
        assert told in report.problems[0].message


def test_blocks_of_a_given_size_hold_as_many_tokens() -> None:
    given = {"tp": 1, "version": "0.25.1", "max_model_len": 4096}
    small, large = (found(served(model="gemma-3-1b", generation=given | more)) for more in ({}, {"block_size": 64}))
    assert (small.block_size, large.block_size) == (16, 64)
    assert small.num_blocks == pytest.approx(4 * large.num_blocks, abs=4)
    for model, told in ((NANO["model"], "not yet: blocks of a given size"), ("gpt-oss-20b", "experts in MXFP4")):
        report = served(model=model, generation=given | {"tp": 4, "block_size": 64})
        assert told in report.problems[0].message


def test_an_engine_that_does_not_start_does_not_fit() -> None:
    report = served(generation={"tp": 4, "max_model_len": 262144, "gpu_memory_utilization": 0.2})
    assert report.verdict == "oom"
    assert found(report).refusal == "no memory is left for cache blocks"


@pytest.mark.parametrize("changed", [{"mesh": {"tp": 4}, "generation": {"max_model_len": 4096}},
                                     {"generation": {"tp": 4, "max_model_len": 4096}},
                                     {"mesh": {"tp": 4}, "training": {"seq_len": 4096}, "generation": {"tp": 4}},
                                     {"mesh": {"tp": 4}, "training": {"seq_len": 4096}, "generation": None,
                                      "framework": "automodel"}])
def test_what_is_left_out_follows_from_the_engine(changed: dict[str, Any]) -> None:
    serving = found(served(**changed))
    assert (serving.tp, serving.max_model_len) == (4, 4096)


def test_several_engines_are_alike() -> None:
    two = served(mesh={"tp": 4, "dp_replicate": 2})
    assert (two.ranks[0].num_ranks, found(two)) == (8, found(served()))


@pytest.mark.parametrize(("changed", "status", "told"), [
    ({"model": "qwen2.5-7b", "generation": {"tp": 7, "max_model_len": 4096}}, "illegal", "4 KV heads are neither"),
    ({"topology": "gtx-1080-ti"}, "illegal", "capability 7.0, and NVIDIA GeForce GTX 1080 Ti has 6.1"),
    ({"generation": {"tp": 4, "max_model_len": 262145}}, "illegal", "262,145 tokens are more than the 262,144"),
    ({"model": "gpt2", "generation": {"tp": 4, "max_model_len": 2048}}, "illegal", "more than the 1,024"),
    ({"mesh": {"tp": 2}}, "error", "expected generation.tp and mesh.tp alike"),
    ({"mesh": {"tp": 4, "ep": 4}}, "error", "not yet: ep of an engine"),
    ({"model": "deepseek-v3", "generation": {"tp": 8, "max_model_len": 64}}, "error", "not yet: serving multi-head"),
    ({"generation": {"tp": 4, "engine": "sglang", "max_model_len": 64}}, "error", "not yet: the engine sglang"),
    ({"generation": {"tp": 4, "kv_dtype": "fp32", "max_model_len": 64}}, "error", "expected auto, bf16 or fp8"),
    ({"topology": "h100-1gpu"}, "error", "4 ranks")])
def test_what_is_refused(changed: dict[str, Any], status: str, told: str) -> None:
    for work in (simulate, place, check):
        report = work(asked(**changed))
        assert report.status == status
        assert any(told in row.message for row in report.problems), report.problems
    if status == "illegal":
        assert report.problems[0].rule.startswith("vLLM 0.12.0")


@pytest.mark.parametrize(("model", "tp", "told"), [
    (NANO["model"], 3, "tp: 64 Mamba heads are not divisible by tp 3, nor are 6 other parts of the model; expected "
     "1, 2, 4, 8"),
    (NANO["model"], 16, "tp: 8 Mamba groups are not divisible by tp 16, and more than one; expected 1, 2, 4, 8"),
    ("llama-tiny", 3, "tp: 8 attention heads are not divisible by tp 3, nor are 3 other parts of the model; expected "
     "1, 2, 4, 8")])
def test_one_wrong_tp_is_one_problem(model: str, tp: int, told: str) -> None:
    (problem,) = check(asked(model=model, generation={"tp": tp, "max_model_len": 64})).problems
    assert problem.message == told


def test_a_model_that_scales_its_rotation_may_be_longer_than_it_says(tmp_path: Path) -> None:
    fields = dict(model_config("qwen3-8b", None, "model"))
    long = {"tp": 4, "max_model_len": 131072}
    for scaling, status in ((None, "illegal"), ({"rope_type": "yarn", "factor": 4.0}, "ok")):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(fields | {"rope_scaling": scaling}))
        assert check(asked(model=str(file), generation=long)).status == status


def test_a_check_has_no_ranks_and_a_place_has() -> None:
    assert check(asked()).ranks == ()
    assert place(asked()).ranks[0].at_rest["routed_experts"].num_params == 23 * 128 * 2 * 2688 * 464


def test_a_gate_says_why_an_engine_does_not_start() -> None:
    report = served(generation={"tp": 4, "max_model_len": 262144, "gpu_memory_utilization": 0.2})
    found = [finding for gate in gates() for finding in gate(Outcome(report, "s.json:1", 1))]
    assert [(row.kind, row.code) for row in found] == [("oom", 1)]
    assert "the engine does not start: no memory is left" in found[0].message


@pytest.mark.parametrize(("changed", "told"), [
    ({"training": {"precision": {"params": "fp8"}}}, "not yet: weights of an engine as training.precision.params says"),
    ({"training": {"precision": {"compute": "fp8"}}}, "not yet: weights of an engine as training.precision.compute"),
    ({"training": {"method": "qlora"}}, "not yet: weights of an engine as training.method says"),
    ({"training": {"recompute": "full"}}, "training.recompute: changes nothing where an engine serves"),
    ({"training": {"offload": {"optimizer": "host"}}}, "training.offload.optimizer: changes nothing"),
    ({"framework_options": {"wrap": "root"}}, "framework_options.*: changes nothing where an engine serves"),
    ({"checkpoint": {"load": "rank0"}}, "checkpoint.load: changes nothing where an engine serves")])
def test_no_key_of_a_training_step_is_silent(changed: dict[str, Any], told: str) -> None:
    training = {"training": {"seq_len": 262144, **changed.get("training", {})}}
    report = served(**changed | training)
    assert report.status == "error"
    assert re.match(told, report.problems[0].message)


def test_a_length_alone_is_no_training() -> None:
    assert served(training={"seq_len": 262144}).status == "ok"
