"""Attention and experts of transformers' layers: what a framework chooses, serves and refuses."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, NotYet
from simcore.results.report import Report
from simcore.simulate import simulate

GPT_OSS: dict[str, Any] = {"config": "gpt-oss-20b", "overrides": {"num_hidden_layers": 2}}


def _gpt_oss(**options: Any) -> Report:
    return simulate(small.scenario("fsdp2", {"dp_shard": 8}, model=GPT_OSS, options=options))


def test_a_model_with_sinks_gets_the_flash_kernel_that_knows_them_and_grouped_products() -> None:
    asked, spelled = (_gpt_oss(attn_implementation=name)
                      for name in ("flash_attention_2", "kernels-community/vllm-flash-attn3"))
    assert asked.status == "ok", asked.problems
    assert asked.ranks == spelled.ranks
    told = {a.what: a.value for a in asked.assumptions}
    assert told["framework_options.attn_implementation"] == "kernels-community/vllm-flash-attn3"
    assert told["framework_options.experts_implementation"] == "grouped_mm"


@pytest.mark.parametrize(("given", "status", "told"), [
    ({"use_kernels": True}, "error", "not yet: layers that transformers"),
    ({"attn_implementation": "sdpa"}, "illegal", "does not support an attention implementation")])
def test_what_a_model_with_sinks_cannot_have(given: dict[str, Any], status: str, told: str) -> None:
    report = _gpt_oss(**given)
    assert report.status == status
    assert told in report.problems[0].message


def test_attention_of_a_model_with_sinks_is_eager_where_nothing_is_said() -> None:
    """As `GptOssPreTrainedModel` has no SDPA; the assumption says so."""
    silent, asked = _gpt_oss(), _gpt_oss(attn_implementation="eager")
    assert silent.status == "ok", silent.problems
    assert silent.ranks == asked.ranks != _gpt_oss(attn_implementation="flash_attention_2").ranks
    assert {a.what: a.value for a in silent.assumptions}["framework_options.attn_implementation"] == "eager"


def test_some_attention_is_served_for_models_with_sinks_alone() -> None:
    name = "kernels-community/vllm-flash-attn3"
    report = simulate(small.scenario("fsdp2", {"dp_shard": 8}, options={"attn_implementation": name}))
    assert "in a model without sinks" in report.problems[0].message


LONG = 32768


@pytest.mark.parametrize(("framework", "mesh"), [
    ("ddp", {}), ("fsdp1", {"dp_shard": 2}), ("fsdp2", {"dp_shard": 2}), ("zero2", {"dp_shard": 2})])
def test_eager_attention_keeps_six_bytes_a_pair_and_head(framework: str, mesh: dict[str, int]) -> None:
    """Softmax's output in fp32 and its cast, in each of the four layers; recompute keeps those of one alone."""
    model = {"config": "llama-tiny", "overrides": {"num_attention_heads": 4, "num_key_value_heads": 4}}
    wide: dict[str, Any] = {"model": model, "seq_len": LONG, "topology": "dgx-b200"}
    pairs = 4 * LONG**2
    peaks = {}
    for recompute in ("none", "full"):
        for name in ("eager", "sdpa"):
            report = simulate(small.scenario(framework, mesh, options={"attn_implementation": name},
                                             recompute=recompute, **wide))
            assert report.ranks[0].peak, report.problems
            peaks[recompute, name] = report.ranks[0].peak.allocated_bytes
    assert 4 * 6 * pairs < peaks["none", "eager"] - peaks["none", "sdpa"] < (4 * 6 + 14) * pairs
    assert 6 * pairs < peaks["full", "eager"] - peaks["full", "sdpa"] < (6 + 14) * pairs


def test_eager_attention_takes_the_time_of_its_kernels() -> None:
    """Twice the operations of a causal kernel, and every pair's bytes many times."""
    times = []
    for name in ("eager", "sdpa"):
        report = simulate(small.scenario("ddp", {}, model="llama-tiny", options={"attn_implementation": name},
                                         seq_len=8192))
        assert report.time, report.problems
        times.append(report.time.step_s)
    assert times[0] > 2 * times[1]


def test_dropout_of_attention_is_refused() -> None:
    model = {"config": "llama-tiny", "overrides": {"attention_dropout": 0.1}}
    report = simulate(small.scenario("ddp", {}, model=model, options={"attn_implementation": "eager"}))
    assert "dropout" in report.problems[0].message


def test_a_backend_of_sdpa_has_no_effect_on_other_attention() -> None:
    report = simulate(small.scenario("ddp", {}, options={"attn_implementation": "eager", "sdpa_backend": "flash"}))
    assert "sdpa_backend: changes nothing with attn_implementation: eager" in report.problems[0].message


# ---- Llama 4 ---------------------------------------------------------------------------------------------------------
LLAMA4: dict[str, Any] = {"config": "llama-4-scout-text", "overrides": {
    "hidden_size": 256, "vocab_size": 1000, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 32, "num_local_experts": 8, "attention_chunk_size": 128}}


def test_settings_of_llama_4_that_are_refused() -> None:
    asked: list[tuple[str, dict[str, Any], type[Exception]]] = [
        ("Flash Attention 2 yet", {"options": {"attn_implementation": "flash_attention_2"}}, IllegalLayout),
        ("softmax is in the compute", {"options": {"attn_implementation": "eager"}}, NotYet),
        ("setting experts impl", {"options": {"experts_implementation": "grouped_mm"}}, IllegalLayout),
        ("nothing to dispatch", {"mesh": {"dp_shard": 2, "ep": 2}}, IllegalLayout),
        ("as long as a chunk", {"seq_len": 128}, NotYet),
        ("two masks", {"lengths": "packed", "packed_length": 32}, NotYet),
        ("packed in 4 bits", {"method": "qlora"}, NotYet),
    ]
    for words, given, error in asked:
        mesh = given.pop("mesh", {"dp_shard": 2})
        with pytest.raises(error, match=words):
            small.prepared("fsdp2", mesh, model=LLAMA4, **given)


def test_every_expert_of_llama_4_is_told_to_compute_every_token() -> None:
    _, framework = small.prepared("fsdp2", {"dp_shard": 2}, model=LLAMA4)
    assert any("every expert computes every token" in value for _, value, _ in framework.defaults)


# ---- latent attention ------------------------------------------------------------------------------------------------
def test_settings_of_latent_attention_that_are_not_modelled() -> None:
    model = {"config": "deepseek-v2-lite", "overrides": {"num_hidden_layers": 2}}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("by eager", {"options": {"attn_implementation": "eager"}}),
        ("packed sequences", {"lengths": "packed", "packed_length": 32}), ("packed in 4 bits", {"method": "qlora"})]
    for words, given in asked:
        with pytest.raises(NotYet, match=words):
            small.prepared("fsdp2", {"dp_shard": 2}, model=model, **given)
