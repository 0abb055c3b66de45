"""Attention and experts of transformers' layers: what a framework chooses, serves and refuses."""

from __future__ import annotations

from typing import Any

import pytest

import small
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


@pytest.mark.parametrize("name", ["eager", "kernels-community/vllm-flash-attn3"])
def test_some_attention_is_served_for_models_with_sinks_alone(name: str) -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 8}, options={"attn_implementation": name}))
    assert "in a model without sinks" in report.problems[0].message
