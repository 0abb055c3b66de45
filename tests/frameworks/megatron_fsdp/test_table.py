"""Megatron-FSDP: what the table says, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, InputError, NotYet
from simcore.frameworks.megatron_fsdp.buckets import rank_buckets
from simcore.frameworks.megatron_fsdp.strategy import MegatronFsdpStrategy
from simcore.simulate import simulate

MAIN = "main 2026-08-22"


def refused(*, mesh: dict[str, int] | None = None, **given: Any) -> str:
    with pytest.raises(NotYet) as caught:
        small.prepared("megatron_fsdp", mesh or {"dp_shard": 4}, **given)
    return str(caught.value)


@pytest.mark.parametrize(("option", "value"), [
    ("data_parallel_sharding_strategy", "optim_grads"), ("keep_fp8_transpose_cache", True),
    ("preserve_fp32_weights", False), ("use_precision_aware_optimizer", True), ("use_distributed_optimizer", False)])
def test_options_that_are_not_modelled_are_named(option: str, value: object) -> None:
    assert option in refused(options={option: value})


def test_layers_that_are_replayed_together_are_not_modelled() -> None:
    assert "replayed together" in refused(model="llama-tiny", recompute={"mode": "uniform", "num_layers": 2})



@pytest.mark.parametrize(("options", "training", "told"), [
    ({"use_precision_aware_optimizer": True}, {"optimizer": {"master": "fp16"}}, "master in fp16"),
    ({"use_precision_aware_optimizer": True}, {"optimizer": {"moments": "fp16"}}, "moments in fp16")])
def test_what_main_does_is_not_all_modelled(options: dict[str, Any], training: dict[str, Any], told: str) -> None:
    assert told in refused(version=MAIN, options=options, **training)


def test_shared_buffers_and_a_format_of_their_own_between_copies_are_not_modelled() -> None:
    assert "send in another format" in refused(
        version=MAIN, mesh={"dp_shard": 2, "dp_replicate": 2}, options={"fsdp_double_buffer": True},
        precision={"main_grads": "fp32", "grad_reduce": "bf16"})


def test_copies_share_an_optimizer_or_nothing() -> None:
    with pytest.raises(IllegalLayout, match="optim_grads: it is no_shard or optim"):
        small.prepared("megatron_fsdp", {"dp_shard": 2, "dp_replicate": 2}, model="llama-tiny",
                       options={"outer_dp_sharding_strategy": "optim_grads"})


def test_copies_that_share_an_optimizer_are_several() -> None:
    with pytest.raises(IllegalLayout, match="single optimizer instance"):
        small.prepared("megatron_fsdp", {"dp_shard": 4}, version=MAIN, options={"outer_dp_sharding_strategy": "optim"})


def test_the_precision_aware_optimizer_reads_gradients_as_they_are() -> None:
    """Masters are the buffer's, in fp32 and once, whatever fp8_recipe says; only moments may be in bf16."""
    def kept(**given: Any) -> tuple[int, list[int]]:
        asked: dict[str, Any] = {"version": MAIN, "model": "llama-tiny", **given}
        copies = small.postings(small.program_of("megatron_fsdp", {"dp_shard": 4}, **asked), "fp32_grad_shard")
        rest = small.plan_of("megatron_fsdp", {"dp_shard": 4}, **asked).at_rest().values()
        return sum(one.optimizer_bytes for one in rest), [size for *_, size in copies if size > 0]

    states, copies = kept()
    for recipe in ({}, {"fp8_recipe": "delayed"}):
        precise = {"options": {"use_precision_aware_optimizer": True} | recipe}
        assert kept(**precise) == (states, [])
        assert kept(**precise, optimizer={"moments": "bf16"})[0] == states * 8 // 12
    assert copies == [states // 3]


def test_main_keeps_gradients_in_the_format_of_parameters() -> None:
    """Not as grad_reduce_in_fp32 says, which only DistributedDataParallel reads there."""
    for version, grads in ((MAIN, "bf16"), ("auto", "fp32")):
        _, table = small.prepared("megatron_fsdp", {"dp_shard": 4}, version=version)
        assert table.strategy_as(MegatronFsdpStrategy).grad_dtype == grads


def test_copies_of_a_model_with_experts_are_refused() -> None:
    with pytest.raises(IllegalLayout, match="expt_dp_group"):
        small.prepared("megatron_fsdp", {"dp_shard": 2, "dp_replicate": 2})


def test_main_has_copies_of_a_model_with_experts() -> None:
    """Experts' shards are cut over the ranks of one copy too, and summed over the same copies (_init_dist_index)."""
    made = small.program_of("megatron_fsdp", {"dp_shard": 4, "dp_replicate": 2, "ep": 2}, version=MAIN)
    shards = [bucket.shard for bucket in rank_buckets(
        small.plan_of("megatron_fsdp", {"dp_shard": 4, "ep": 2}, version=MAIN))]
    summed = small.calls(made, "all_reduce")
    assert sorted(size for axis, _, size in summed if axis == "dp_replicate") == sorted(2 * shard for shard in shards)


def test_copies_are_summed_in_the_last_microbatch() -> None:
    """Parts of the gradients, in one all-reduce a bucket; what lies on a rank is as without copies."""
    model = "llama-tiny"
    made = small.program_of("megatron_fsdp", {"dp_shard": 2, "dp_replicate": 3}, model=model, microbatches=2)
    shards = [bucket.shard for bucket in rank_buckets(small.plan_of("megatron_fsdp", {"dp_shard": 2}, model=model))]
    summed = small.calls(made, "all_reduce")
    assert sorted(size for axis, _, size in summed if axis == "dp_replicate") == sorted(4 * shard for shard in shards)
    assert len(small.calls(made, "reduce_scatter")) == 2 * len(shards)
    rest = [small.plan_of("megatron_fsdp", {"dp_shard": 2, "dp_replicate": copies}, model=model).at_rest()
            for copies in (1, 3)]
    assert rest[0] == rest[1]


def test_a_step_of_one_small_layer_takes_as_long_when_it_is_written_out() -> None:
    """No gather of a later microbatch starts before the kernels that were issued before it."""
    scenario = small.scenario("megatron_fsdp", {"dp_shard": 2}, microbatches=16, seq_len=1, model={
        "config": "nemotron-h-56b", "overrides": {"num_hidden_layers": 1, "hybrid_override_pattern": "-"}})
    few, whole = (simulate(scenario, whole=whole).time for whole in (False, True))
    assert few
    assert whole
    assert few.step_s == pytest.approx(whole.step_s, rel=1e-9)


@pytest.mark.parametrize(("version", "options", "told"), [
    ("auto", {"fsdp_all_gather_in_start_param_sync": False}, "core 0.16.1 has no such option"),
    ("main 2026-08-22", {"nccl_ub": True, "overlap_moe_expert_parallel_comm": True}, "does not support double buffer"),
    ("auto", {"bucket_size": 10, "num_buckets": 2}, "Cannot specify both num_buckets and bucket_size")])
def test_options_that_exclude_each_other(version: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(IllegalLayout, match=told):
        small.prepared("megatron_fsdp", {"dp_shard": 4, "ep": 2}, version=version, options=options)


def test_registered_buffers_are_shared_in_any_case() -> None:
    with pytest.raises(InputError, match="changes nothing with nccl_ub"):
        small.prepared("megatron_fsdp", {"dp_shard": 4}, options={"nccl_ub": True, "fsdp_double_buffer": False})


def test_a_number_of_buckets_closes_those_of_no_unit() -> None:
    """At a twentieth of all elements, 170 thousand: the embedding of 256 thousand is alone, then norm and head."""
    plan = small.plan_of("megatron_fsdp", {"dp_shard": 2}, model="llama-tiny", options={"num_buckets": 20})
    whole = sum(p.spec.numel for layer in plan.layers for p in plan.of_layer(layer) if not p.spec.is_buffer)
    assert plan.framework.strategy_as(MegatronFsdpStrategy).bucket_numel == whole // 20
    outside = [bucket for bucket in rank_buckets(plan) if bucket.unit < 0]
    assert [[layer for layer, _ in bucket.members] for bucket in outside] == [[0], [5, 6]]


# ---- fp8 -------------------------------------------------------------------------------------------------------------
FP8: dict[str, Any] = {
    "model": {"config": "llama-tiny", "overrides": {"num_hidden_layers": 3, "intermediate_size": 512}},
    "precision": {"compute": "fp8"}, "topology": "gb200-nvl72"}


def _rests(recipe: str) -> tuple[int, int, int]:
    """Bytes of (buckets in 8 bits, buffers beside them, all buffers in a step) on one rank of 4."""
    options = {"fp8_recipe": recipe, "first_last_layers_bf16": False}
    plan = small.plan_of("megatron_fsdp", {"dp_shard": 4}, options=options, **FP8)
    beside = sum(p.spec.numel for layer in plan.layers for p in plan.of_layer(layer) if p.spec.is_buffer)
    report = simulate(small.scenario("megatron_fsdp", {"dp_shard": 4}, options=options, **FP8))
    assert report.ranks[0].peak is not None
    return (sum(b.shard for b in rank_buckets(plan) if b.dtype == "fp8"), beside,
            report.ranks[0].peak.by_category["buffer"])


def test_weights_in_fp8_are_buckets_of_their_own() -> None:
    """Mxfp8 has columns in a second one of the same size; scales of both lie whole on every rank."""
    rows, scales, held = _rests("tensorwise")
    again, wide_scales, wide_held = _rests("mxfp8")
    assert rows == again > 0
    assert scales == 4 * 4 * 3  # a scale for each of four weights in three layers
    assert wide_scales >= 2 * 4 * rows // 32
    assert wide_held - held == wide_scales - scales + rows


def test_scales_of_experts_lie_where_their_experts_are() -> None:
    """Each rank has the scales of its own experts, whole: a fourth of them with ep 4."""
    held = {}
    for ep in (1, 4):
        mesh = {"dp_shard": 4, "ep": ep}
        given: dict[str, Any] = {"options": {"fp8_recipe": "mxfp8", "first_last_layers_bf16": False}, "version": MAIN,
                 "model": "qwen3-30b-a3b", "precision": {"compute": "fp8"}, "topology": "gb200-nvl72"}
        plan = small.plan_of("megatron_fsdp", mesh, **given)
        held[ep] = sum(p.rest_bytes for p in plan.of_layer(plan.layers[1]) if ".experts." in p.spec.name
                       and p.spec.is_buffer)
        report = simulate(small.scenario("megatron_fsdp", mesh, **given))
        assert report.ranks[0].peak is not None
        columns = sum(b.shard for b in rank_buckets(plan) if b.dtype == "fp8")
        whole = sum(p.rest_bytes for layer in plan.layers for p in plan.of_layer(layer) if p.spec.is_buffer)
        assert 0 <= report.ranks[0].peak.by_category["buffer"] - whole - columns < 4096, "but for rounded blocks"
    numel = 128 * 3 * 2048 * 768
    assert held == {1: 2 * numel // 32, 4: 2 * numel // 32 // 4}


def test_a_head_in_8_bits_has_whole_copies_beside_its_bucket_in_16() -> None:
    """Core d98e8a64 models/gpt/gpt_model.py:272 builds it outside of fp8_model_init, so no bucket of fp8 has it.

    TransformerEngine's workspace (module.is_first_microbatch, of a MegatronModule that wraps all) is no parameter.
    """
    options = {"fp8_recipe": "mxfp8", "first_last_layers_bf16": False, "fp8_output_proj": True}
    sizes = FP8["model"]["overrides"] | {"vocab_size": 1024}
    given = FP8 | {"version": MAIN, "model": {"config": "llama-tiny", "overrides": sizes}}
    both = [small.plan_of("megatron_fsdp", {"dp_shard": 4}, options=options | {"fp8_output_proj": on}, **given)
            for on in (False, True)]
    of_head = {p.spec.name: p for p in both[1].of_layer(both[1].layers[-2]) if "output_layer" in p.spec.name}
    rows, columns = of_head["output_layer.weight"].spec.shape
    kept = rows * columns * 33 // 32
    assert {name: p.spec.numel for name, p in of_head.items() if p.spec.is_buffer} == {
        "output_layer.weight.fp8": kept, "output_layer.weight.fp8_columns": kept}
    sixteen, eight = ([(b.dtype, b.shard, len(b.members)) for b in rank_buckets(plan)] for plan in both)
    assert sixteen == eight, "no bucket changes"
    told = [simulate(small.scenario("megatron_fsdp", {"dp_shard": 4}, options=options | {"fp8_output_proj": on},
                                    **given)) for on in (False, True)]
    held = [report.ranks[0].peak.by_category["buffer"] for report in told if report.ranks[0].peak]
    assert [report.status for report in told] == ["ok", "ok"]
    assert held[1] - held[0] == 2 * kept


@pytest.mark.parametrize(("given", "told"), [
    ({"options": {"fp8_param_gather": False}}, "weights in bf16 that compute in fp8"),
    ({"options": {"fp8_recipe": "blockwise", "fp8_param_gather": True}}, "fp8_recipe blockwise under megatron_fsdp"),
    ({"topology": "dgx-h100"}, "fp8_recipe tensorwise under megatron_fsdp")])
def test_what_of_fp8_is_not_served(given: dict[str, Any], told: str) -> None:
    assert told in refused(**{**FP8, **given})


PLAIN = {"options": {"cross_entropy_loss_fusion": False, "gradient_accumulation_fusion": False},
         "precision": {"compute": "fp8", "params": "fp32"}}


def test_what_lies_around_fp8_may_be_fp32() -> None:
    """Neither --bf16 nor --fp16: all parameters but the linears' weights, and what flows between."""
    _, table = small.prepared("megatron_fsdp", {"dp_shard": 4}, **FP8 | PLAIN)
    assert table.compute_dtype == "fp32"
    plan = small.plan_of("megatron_fsdp", {"dp_shard": 4}, **FP8 | PLAIN)
    assert {bucket.dtype for bucket in rank_buckets(plan)} == {"fp8", "fp32"}
    assert simulate(small.scenario("megatron_fsdp", {"dp_shard": 4}, **FP8 | PLAIN)).status == "ok"


@pytest.mark.parametrize(("framework", "options", "told"), [
    ("megatron", PLAIN["options"], "parameters in fp32 under megatron"),
    ("megatron_fsdp", {}, "parameters in fp32 with cross_entropy_loss_fusion")])
def test_where_fp32_around_fp8_is_not_served(framework: str, options: dict[str, bool], told: str) -> None:
    with pytest.raises(NotYet, match=told):
        small.prepared(framework, {"dp_shard": 4}, **FP8 | PLAIN | {"options": options})


def test_megatrons_own_rules_hold() -> None:
    with pytest.raises(IllegalLayout, match="sequence parallelism"):
        small.prepared("megatron_fsdp", {"dp_shard": 4}, sequence_parallel=True)


def test_small_units_are_gathered_ahead_as_if_they_were_large() -> None:
    """core 0.16.1 megatron_fsdp.py: `max(1_000_000_000, ...)`; half of it is gathered ahead."""
    _, table = small.prepared("megatron_fsdp", {"dp_shard": 4})
    assert isinstance(table.strategy, MegatronFsdpStrategy)
    assert (table.strategy.ahead, table.strategy.waiting) == (500_000_000, 1_000_000_000)


def test_large_units_are_gathered_one_ahead() -> None:
    """Twice the elements of a unit are in flight (deepseek-v3: 11 billion a layer over 64 expert ranks, and more)."""
    _, table = small.prepared("megatron_fsdp", {"dp_shard": 8}, model="llama-3-70b")
    _, wide = small.prepared("megatron_fsdp", {"dp_shard": 8}, model="deepseek-v3")
    assert isinstance(table.strategy, MegatronFsdpStrategy)
    assert table.strategy.waiting == 2 * 855_654_400
    assert isinstance(wide.strategy, MegatronFsdpStrategy)
    assert wide.strategy.waiting > 10**10
    assert wide.default("framework_options.suggested_communication_unit_size") == str(wide.strategy.waiting)


def test_a_rank_rests_on_eighteen_bytes_of_its_part() -> None:
    plan = small.plan_of("megatron_fsdp", {"dp_shard": 4})
    rest = plan.at_rest().values()
    held = sum(r.params_bytes + r.grads_bytes + r.optimizer_bytes for r in rest)
    whole = sum(r.num_params for r in small.plan_of("megatron", {}).at_rest().values())
    assert held == pytest.approx(18 * whole / 4, rel=1e-3)


def test_it_needs_less_than_whole_parameters() -> None:
    """The same job under Megatron's distributed optimizer keeps parameters and gradients whole."""
    flat, whole = (simulate(small.scenario(name, {"dp_shard": 8}, model="llama-3-8b", seq_len=512))
                   for name in ("megatron_fsdp", "megatron"))
    assert flat.ranks[0].end_bytes is not None
    assert whole.ranks[0].end_bytes is not None
    assert flat.ranks[0].end_bytes < whole.ranks[0].end_bytes
    assert flat.ranks[0].apportioned


def test_thousands_of_small_layers_are_gathered_ahead_in_no_time() -> None:
    """All that follows a unit has fewer elements than are gathered ahead: each gather looks at every bucket."""
    report = simulate(small.scenario("megatron_fsdp", {"dp_shard": 8}, seq_len=64, model={
        "config": "llama-tiny", "overrides": {"num_hidden_layers": 3000}}))
    assert report.status == "ok"
