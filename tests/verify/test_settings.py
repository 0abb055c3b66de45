"""Keys that a framework's side is told, and those that are refused; how a layout is made smaller."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import NotYet, RankscopeError
from simcore.inputs.scenario import Scenario
from simcore.verify.shrink import MICROBATCHES, depth_of, smaller
from simcore.verify.sides.registry import side_of
from simcore.verify.verify import asked_case


def asked(scenario: Scenario, rank: int = 0) -> dict[str, Any]:
    return asked_case(side_of(scenario), scenario, rank)[0]


@pytest.mark.parametrize(("framework", "given", "named"), [
    ("fsdp2", {"options": {"use_liger_kernel": True}}, "framework_options.use_liger_kernel"),
    ("fsdp2", {"optimizer": {"name": "muon"}}, "training.optimizer.name: muon"),
    ("fsdp2", {"method": "lora"}, "training.lora.target_modules: auto"),
    ("zero3", {"offload": {"optimizer": "host"}}, "training.offload.optimizer"),
    ("zero2", {"method": "lora", "lora": {"target_modules": ["q_proj"]}}, "training.method: lora"),
    ("ddp", {}, "training.method: full"),
])
def test_a_key_that_the_framework_is_not_told_is_refused_by_its_name(framework: str, given: dict[str, Any],
                                                                     named: str) -> None:
    with pytest.raises(NotYet) as caught:
        asked(small.scenario(framework, model="llama-tiny", **given))
    assert any(named in problem.message for problem in caught.value.problems)


def test_an_explicit_default_is_no_other_key() -> None:
    plain = small.scenario("fsdp2", {"dp_shard": 4}, model="llama-tiny")
    told = small.scenario("fsdp2", {"dp_shard": 4}, model="llama-tiny", loss="hf",
                          optimizer={"implementation": "foreach"}, precision={"params": "fp32"})
    assert asked(plain) == asked(told)


@pytest.mark.parametrize(("framework", "model", "named"), [
    ("fsdp1", "llama-tiny", "verify has no real side for fsdp1"), ("zero3", "mixtral-8x7b", "with experts under ZeRO"),
    ("zero3", "llama-3-70b", "parameters"), ("automodel", "mistral-7b-v0.1", "verify with model")])
def test_what_has_no_real_side_is_refused(framework: str, model: str, named: str) -> None:
    with pytest.raises(RankscopeError) as caught:
        asked(small.scenario(framework, {"dp_shard": 8}, model=model))
    assert named in str(caught.value)


def test_zeros_side_is_rank_0() -> None:
    with pytest.raises(NotYet, match="--rank: 1 under ZeRO"):
        asked(small.scenario("zero3", {"dp_shard": 8}, model="llama-tiny"), rank=1)


def test_few_layers_have_every_kind() -> None:
    whole = small.scenario("automodel", {"dp_shard": 8, "ep": 8}, model="nemotron-3-nano-30b-a3b")
    fewer, told = smaller(whole, None, None)
    assert told == (f"6 of {depth_of(whole)} layers",)
    assert set(fewer.normalised()["model"]["overrides"]["hybrid_override_pattern"]) == set("ME*")


def test_layers_microbatches_and_tokens_are_made_fewer_and_told() -> None:
    whole = small.scenario("fsdp2", {"dp_shard": 4}, model="llama-3.1-8b", microbatches=16)
    fewer, told = smaller(whole, 2, 16)
    assert told == ("2 of 32 layers", "16 of 64 tokens, one sequence", f"{MICROBATCHES} of 16 microbatches")
    assert (depth_of(fewer), fewer.training.seq_len, fewer.num_microbatches) == (2, 16, MICROBATCHES)


def test_a_small_layout_stays_as_it_is() -> None:
    whole = small.scenario("fsdp2", {"dp_shard": 4}, model="llama-tiny")
    assert smaller(whole, None, None) == (whole, ())
