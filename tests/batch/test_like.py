"""A scenario with the defaults of another."""

from __future__ import annotations

from typing import Any

import small
from simcore.batch.like import Liked, Refused, made_like
from simcore.results.settings import settings_of
from simcore.simulate import check

EP = {"dp_shard": 4, "ep": 2}


def like(reference: str, framework: str, **given: Any) -> Liked:
    return made_like(check(small.scenario(reference, EP)), small.scenario(framework, EP, **given))


def value(liked: Liked, key: str) -> str:
    return settings_of(check(liked.scenario))[key].text


def test_a_default_of_another_framework_is_taken_where_it_is_accepted() -> None:
    liked = like("automodel", "fsdp2")
    assert value(liked, "training.precision.params") == "bf16"
    assert value(liked, "training.precision.grad_reduce") == "fp32"
    assert value(liked, "training.optimizer.moments") == "bf16"


def test_what_a_framework_refuses_is_told_with_its_reason() -> None:
    liked = like("automodel", "fsdp2")
    assert value(liked, "training.loss") == "hf"
    assert [one for one in liked.kept if "loss" in one.key] == [
        Refused("training.loss", "hf", "masked_fp32", "not yet: masked_fp32 under fsdp2 "
                "(served: auto, hf, hf_keep_logits, cut, liger, fused_lm_head, kept_logits, kept_logits_once, "
                "kept_logits_entropy, log_probs, flash, flash_eager, flash_entropy, flash_entropy_eager, flash_padded, "
                "fused_linear, values, preference_fused, preference_fused_alone, kto_fused, kto_fused_alone)")]
    assert all("\n" not in one.reason for one in liked.kept)


def test_a_dispatcher_has_other_options_in_another_framework() -> None:
    liked = like("automodel", "megatron")
    assert liked.scenario.framework_options == {"moe_token_dispatcher_type": "flex",
                                                "moe_flex_dispatcher_backend": "deepep"}
    assert value(liked, "dispatcher") == "deepep"
    assert Refused("dispatcher", "alltoall", "deepep", "fsdp2 has alltoall") in like("automodel", "fsdp2").kept


def test_what_the_scenario_sets_stays() -> None:
    liked = like("automodel", "fsdp2", precision={"params": "fp32"})
    assert value(liked, "training.precision.params") == "fp32"
    assert not any("params" in one.key for one in liked.kept)


def test_a_difference_that_another_setting_makes_is_taken_away_too() -> None:
    """Moments of torch follow parameters: fp32 as Megatron's at first, and bf16 once parameters are."""
    liked = like("megatron", "fsdp2")
    assert value(liked, "training.precision.params") == "bf16"
    assert value(liked, "training.optimizer.moments") == "fp32"


def test_a_layout_that_is_refused_stays_as_it_is() -> None:
    refused = small.scenario("fsdp2", {"dp_shard": 4, "ep": 3})
    assert made_like(check(small.scenario("automodel", EP)), refused) == Liked(refused)
