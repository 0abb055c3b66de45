"""DistributedDataParallel: what rests, what is refused, and how its options are read."""

from __future__ import annotations

import re
from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, InputError, NotYet, RankscopeError
from simcore.frameworks.ddp.strategy import FIRST_BUCKET_BYTES, DdpStrategy
from simcore.simulate import simulate

LLAMA = "llama-tiny"


@pytest.mark.parametrize(("given", "per_parameter"), [({}, 2 + 2 + 4), ({"optimizer": {"moments": "fp32"}}, 2 + 2 + 8),
                                                      ({"optimizer": {"name": "sgd"}}, 2 + 2)])
@pytest.mark.parametrize("copies", [1, 8])
def test_everything_rests_whole_on_every_rank(given: dict[str, Any], per_parameter: int, copies: int) -> None:
    plan = small.plan_of("ddp", {"dp_replicate": copies}, rank=copies - 1, model=LLAMA, **given)
    rest = plan.at_rest().values()
    assert sum(r.params_bytes + r.grads_bytes + r.optimizer_bytes for r in rest) == per_parameter * plan.graph.count()


def test_all_ranks_are_alike() -> None:
    report = simulate(small.scenario("ddp", {"dp_replicate": 6}, model=LLAMA))
    assert [rank.num_ranks for rank in report.ranks] == [6]
    assert [(one.axis, one.size) for one in report.communicators] == [("dp_replicate", 6)]


def strategy(options: dict[str, Any] | None = None, copies: int = 2) -> object:
    return small.prepared("ddp", {"dp_replicate": copies}, model=LLAMA, options=options)[1].strategy


def test_only_default_buckets_begin_with_a_small_one() -> None:
    """torch 2.13 nn/parallel/distributed.py, _BucketCapacityConfig.create: `if is_using_default`."""
    assert strategy() == DdpStrategy("dp_replicate", FIRST_BUCKET_BYTES, 25 * 2**20)
    assert strategy({"bucket_cap_mb": 25}) == DdpStrategy("dp_replicate", 25 * 2**20, 25 * 2**20)
    assert strategy({"gradient_as_bucket_view": True}) == DdpStrategy("dp_replicate", FIRST_BUCKET_BYTES, 25 * 2**20,
                                                                      True)


def test_one_process_is_not_wrapped() -> None:
    assert strategy({"bucket_cap_mb": 1, "gradient_as_bucket_view": True}, copies=1) == DdpStrategy()


@pytest.mark.parametrize(("mesh", "given", "kind", "told"), [
    ({"dp_shard": 2}, {}, IllegalLayout, "DistributedDataParallel replicates"),
    ({"tp": 2}, {}, IllegalLayout, "DistributedDataParallel replicates"),
    ({}, {"precision": {"params": "fp32"}, "options": {"autocast": False}}, IllegalLayout, "without autocast"),
    ({}, {"precision": {"params": "fp16", "compute": "fp16"}, "options": {"autocast": True}}, IllegalLayout,
     "Attempting to unscale FP16 gradients"),
    ({}, {"precision": {"params": "fp16"}}, NotYet, "fp16 parameters under autocast to bf16"),
    ({}, {"precision": {"params": "fp32"}, "model": "mixtral-8x7b"}, NotYet, "autocast over experts"),
    ({}, {"precision": {"params": "fp32"}, "model": "nemotron-h-4b"}, NotYet, "Mamba layers in fp32"),
    ({}, {"method": "qlora", "options": {"prepare_model_for_kbit_training": "cast_back"}}, IllegalLayout,
     "cast_back without autocast"),
    ({}, {"method": "qlora", "options": {"llm_int8_skip_modules": ["q_proj"]}}, NotYet, "q_proj that is not packed"),
    ({}, {"method": "qlora", "model": "nemotron-h-4b", "options": {"llm_int8_skip_modules": ["lm_head"]}},
     IllegalLayout, "out_proj is packed"),
    ({}, {"method": "qlora", "model": "llama-3.2-1b", "options": {"llm_int8_skip_modules": []}}, NotYet,
     "tied lm_head"),
    ({}, {"method": "lora", "options": {"llm_int8_skip_modules": []}}, InputError, "without weights in 4 bits"),
    ({}, {"precision": {"params": "fp32"}, "loss": "cut"}, NotYet, "cut under ddp"),
    ({}, {"options": {"prepare_model_for_kbit_training": True}}, InputError, "without qlora"),
    ({}, {"precision": {"grad_reduce": "fp32"}}, NotYet, "gradients reduced in fp32 by a hook"),
    ({}, {"offload": {"activations": "host"}}, NotYet, "all that layers keep without recompute"),
    ({}, {"offload": {"optimizer": "host"}}, NotYet, "optimizer outside the device under ddp"),
    ({"dp_replicate": 2}, {"options": {"optimizer_in_bwd": True}}, NotYet, "gradients that are reduced in buckets"),
    ({}, {"options": {"use_kernels": True}}, NotYet, "layers that transformers"),
    ({}, {"loss": "megatron"}, NotYet, "megatron under ddp"),
    ({}, {"method": "lora", "lora": {"target_modules": ["q_proj", "*_proj"]}}, NotYet, "patterns (*_proj) under ddp"),
    ({}, {"options": {"find_unused_parameters": True}}, NotYet, "find_unused_parameters"),
    ({"dp_replicate": 2}, {"options": {"bucket_cap_mb": 0}}, InputError, "expected null or int (1 or more), got 0"),
])
def test_what_is_refused(mesh: dict[str, int], given: dict[str, Any], kind: type[RankscopeError], told: str) -> None:
    with pytest.raises(kind, match=re.escape(told)):
        small.prepared("ddp", mesh, **({"model": LLAMA} | given))


def test_gradients_of_adapters_in_fp32_are_unscaled_over_parameters_in_fp16() -> None:
    given: dict[str, Any] = {"method": "lora", "precision": {"params": "fp16", "compute": "fp16"},
                             "options": {"autocast": True}, "model": LLAMA}
    small.prepared("ddp", **given, lora={"dtype": "fp32"})
    with pytest.raises(IllegalLayout, match="unscale FP16"):
        small.prepared("ddp", **given)


def test_sinks_without_a_gradient_are_refused() -> None:
    flash = {"attn_implementation": "flash_attention_2"}
    given: dict[str, Any] = {"model": "gpt-oss-20b", "lengths": "packed"}
    with pytest.raises((IllegalLayout, NotYet), match="sinks"):
        small.prepared("ddp", {"dp_replicate": 2}, options=flash, **given)


def test_a_flex_attention_is_answered_and_named() -> None:
    report = simulate(small.scenario("ddp", model=LLAMA, lengths="packed",
                                     options={"attn_implementation": "flex_attention", "compile": True}))
    named = {one.what: one.kind for one in report.assumptions if one.what.startswith("framework_options.")}
    assert named == {"framework_options.compile": "assumed", "framework_options.attn_implementation": "assumed"}
    flash = simulate(small.scenario("ddp", model=LLAMA, lengths="packed",
                                    options={"attn_implementation": "flash_attention_2"}))
    assert report.ranks[0].peak == flash.ranks[0].peak


def test_adapters_are_all_that_is_reduced() -> None:
    program = small.program_of("ddp", {"dp_replicate": 2}, model=LLAMA, method="lora")
    plan = small.plan_of("ddp", {"dp_replicate": 2}, model=LLAMA, method="lora")
    trained = sum(p.local for layer in plan.layers for p in plan.of_layer(layer) if p.trainable)
    assert 0 < trained < plan.graph.count()
    assert sum(size for *_, size in small.calls(program, "all_reduce")) == 2 * trained


@pytest.mark.parametrize(("given", "kind", "told"), [
    ({"quantization": {"block_size": 128}}, IllegalLayout, "BitsAndBytesConfig has no such setting"),
    ({"quantization": {"block_size": 48}}, InputError, "expected one of 32, 64, 128"),
    ({"options": {"bnb_4bit_quant_storage": "int8"}}, InputError, "bnb_4bit_quant_storage"),
    ({"method": "lora", "options": {"bnb_4bit_quant_storage": "uint8"}}, InputError, "without qlora")])
def test_what_is_no_base_in_4_bits(given: dict[str, Any], kind: type[RankscopeError], told: str) -> None:
    with pytest.raises(kind, match=re.escape(told)):
        small.prepared("ddp", model=LLAMA, **({"method": "qlora"} | given))


def test_a_packed_weight_is_made_for_each_product_and_dropped() -> None:
    """In forward and once more in backward, and never two at once."""
    given: dict[str, Any] = {"model": LLAMA, "method": "qlora", "lora": {"target_modules": ["q_proj", "down_proj"]}}
    plan = small.plan_of("ddp", **given)
    packed = [p.spec.numel for layer in plan.layers for p in plan.of_layer(layer) if p.policy.at_rest.packed]
    made = [(phase, size) for part in ("self_attn", "mlp")
            for _, phase, size in small.postings(small.program_of("ddp", **given), f"{part}.dequantised")]
    forward = [size for phase, size in made if phase == "forward" and size > 0]
    assert sum(forward) == 2 * sum(packed)
    assert sum(size for _, size in made) == 0
    assert max(abs(size) for _, size in made) == 2 * max(packed)
