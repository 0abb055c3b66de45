"""What Megatron refuses, what is not modelled of it, and the defaults that a report lists."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.scenario import Scenario
from simcore.simulate import place, simulate

PRECISE = {"use_precision_aware_optimizer": True}
TIED = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}
FORMATS = ({"optimizer": {"moments": "bf16"}}, {"optimizer": {"master": "bf16"}}, {"optimizer": {"master": "none"}})


def _refused(status: str, told: str, mesh: dict[str, int] | None = None, **given: Any) -> None:
    report = simulate(small.scenario("megatron", mesh or {"dp_shard": 2}, **given))
    assert report.status == status
    assert told in report.problems[0].message
    assert bool(report.problems[0].rule) == (status == "illegal")
    assert report.problems[0].message.startswith("not yet") == (status == "error")


def _defaults(mesh: dict[str, int] | None = None, **given: Any) -> dict[str, str]:
    report = simulate(small.scenario("megatron", mesh or {"dp_shard": 2}, **given))
    assert report.status == "ok", report.problems
    found = [a for a in report.assumptions if a.kind == "default"]
    assert all(a.source for a in found)
    return {a.what: a.value for a in found}


def _master(**given: Any) -> int:
    """Bytes of the embedding's master."""
    placed = small.plan_of("megatron", **given).of_layer(0)[0]
    return dict(placed.states)["master_param"]


# ---- the mesh --------------------------------------------------------------------------------------------------------
def test_the_last_stage_copies_a_tied_embedding() -> None:
    first, last = (small.plan_of("megatron", {"pp": 2}, model=TIED, rank=rank).at_rest() for rank in (0, 1))
    assert first["embedding"] == last["embedding"]
    assert "lm_head" not in last
    alone = small.plan_of("megatron", {"dp_shard": 2}, model=TIED).at_rest()
    assert alone["embedding"].num_params == first["embedding"].num_params


def test_a_copied_embedding_is_told_of() -> None:
    report = simulate(small.scenario("megatron", {"pp": 2}, model=TIED))
    assert [a.what for a in report.assumptions if a.what.startswith("tied")] == ["tied embedding"]
    assert not [a for a in simulate(small.scenario("megatron", {"dp_shard": 2}, model=TIED)).assumptions
                if a.what.startswith("tied")]


def test_experts_need_a_model_that_has_them() -> None:
    _refused("illegal", "num_moe_experts must be non None", {"dp_shard": 2, "ep": 2}, model="llama-tiny")


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    _refused("illegal", "Cannot use sequence parallelism", sequence_parallel=True)


@pytest.mark.parametrize("implementation", ["hf", "automodel"])
def test_other_layers_do_not_run_here(implementation: str) -> None:
    data = small.scenario("megatron").normalised() | {"implementation": implementation}
    report = simulate(Scenario.model_validate(data))
    assert report.status == "error"
    assert f"not yet: the layers of {implementation} under megatron" in report.problems[0].message


# ---- recompute -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("names", [["moee"], ["full"], ["none"], ["moe", "attention"]])
def test_only_upstreams_names_are_recomputed(names: list[str]) -> None:
    _refused("illegal", f"Invalid choices for recompute_modules: {names[-1]}.", recompute=names)


@pytest.mark.parametrize(("names", "told"), [(["mla_up_proj"], "multi_latent_attention"),
                                             (["moe_act"], "moe_grouped_gemm")])
def test_a_name_needs_its_module(names: list[str], told: str) -> None:
    _refused("illegal", told, model="llama-tiny", recompute=names)


@pytest.mark.parametrize("name", ["core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts"])
def test_every_other_name_is_served(name: str) -> None:
    assert _defaults(recompute=[name])


# ---- formats ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("training", FORMATS)
def test_formats_are_the_precision_aware_optimizers(training: dict[str, Any]) -> None:
    _refused("illegal", "can only be fp32 when not using precision-aware optimizer", **training)


@pytest.mark.parametrize(("options", "optimizer", "told"), [
    ({"use_distributed_optimizer": False}, {}, "only supported with distributed optimizer"),
    ({}, {"name": "sgd"}, "only supported with adam"),
    ({}, {"master": "bf16"}, "only supports fp32/fp16 master weights"),
    ({}, {"master": "none"}, "only supports fp32/fp16 master weights")])
def test_what_the_precision_aware_optimizer_refuses(options: dict[str, Any], optimizer: dict[str, Any],
                                                    told: str) -> None:
    _refused("illegal", told, options=PRECISE | options, optimizer=optimizer)


def test_what_is_not_modelled_of_it() -> None:
    _refused("error", "fp16 masters", options=PRECISE, optimizer={"master": "fp16"})
    _refused("error", "it has no effect", options={"store_param_remainders": False})


def test_a_master_is_kept_in_halves_only_beside_bf16_parameters() -> None:
    whole = _master()
    assert _master(options=PRECISE) == _master(options=PRECISE, optimizer={"master": "fp32"}) == whole // 2
    assert _master(options=PRECISE | {"store_param_remainders": False}) == whole
    assert _master(options=PRECISE, precision={"compute": "fp16"}) == whole


@pytest.mark.parametrize("moments", ["bf16", "fp16", "fp32"])
def test_the_precision_aware_optimizer_chooses_its_moments(moments: str) -> None:
    assert "training.optimizer.moments" not in _defaults(options=PRECISE, optimizer={"moments": moments})


@pytest.mark.parametrize(("precision", "told"), [
    ({"compute": "fp32"}, "fp32 under megatron"), ({"params": "fp32"}, "fp32 under megatron"),
    ({"main_grads": "fp16"}, "fp16 under megatron"), ({"grad_reduce": "fp16"}, "fp16 under megatron"),
    ({"main_grads": "fp8"}, "main_grads in fp8")])
def test_other_formats_are_not_modelled(precision: dict[str, str], told: str) -> None:
    _refused("error", told, precision=precision)


def test_gradients_have_one_buffer() -> None:
    _refused("illegal", "one buffer", precision={"main_grads": "fp32", "grad_reduce": "bf16"})
    assert _defaults(precision={"main_grads": "bf16", "grad_reduce": "bf16"})


# ---- options ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("options", "told"), [
    ({"overlap_grad_reduce": False, "overlap_param_gather": True}, "Must use --overlap-param-gather with"),
    ({"use_distributed_optimizer": False, "overlap_param_gather": True}, "only supported with distributed optimizer"),
    ({"moe_flex_dispatcher_backend": "deepep"}, "only supported with flex token dispatcher"),
    ({"moe_flex_dispatcher_backend": "hybridep", "moe_token_dispatcher_type": "alltoall"}, "flex token dispatcher")])
def test_options_that_exclude_each_other(options: dict[str, Any], told: str) -> None:
    _refused("illegal", told, options=options)


def test_overlaps_are_one_switch() -> None:
    _refused("error", "without overlap_param_gather", options={"overlap_param_gather": False})
    assert _defaults(options={"overlap_grad_reduce": False})["framework_options.overlap_param_gather"] == "false"


# ---- defaults --------------------------------------------------------------------------------------------------------
def test_every_default_is_listed() -> None:
    found = _defaults({"tp": 2})
    options = {"use_precision_aware_optimizer": "false", "use_distributed_optimizer": "true",
               "overlap_grad_reduce": "true", "overlap_param_gather": "true", "moe_token_dispatcher_type": "alltoall"}
    expected = {"training.precision.params": "bf16", "training.precision.main_grads": "fp32",
                "training.optimizer.master": "fp32", "training.optimizer.moments": "fp32", "mesh.etp": "2",
                "training.sequence_parallel": "true", **{f"framework_options.{k}": v for k, v in options.items()}}
    assert {key: found.get(key) for key in expected} == expected


def test_what_is_given_is_no_default() -> None:
    found = _defaults({"tp": 2, "etp": 1}, precision={"params": "bf16"}, optimizer={"master": "fp32"},
                      options={"overlap_grad_reduce": True, "moe_token_dispatcher_type": "flex"})
    assert not {"mesh.etp", "training.precision.params", "training.optimizer.master",
                "framework_options.overlap_grad_reduce", "framework_options.moe_token_dispatcher_type"} & set(found)
    assert found["framework_options.moe_flex_dispatcher_backend"] == "deepep"


# ---- families --------------------------------------------------------------------------------------------------------
def _small(preset: str, **more: int) -> dict[str, Any]:
    return {"config": preset, "overrides": {
        "hidden_size": 256, "vocab_size": 1024, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, **more}}


QWEN3_MOE = _small("qwen3-30b-a3b", head_dim=32, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2)
FUSION, ROUTER = "framework_options.bias_activation_fusion", "framework_options.moe_router_dtype"


def test_bridge_leaves_qwens_activation_unfused_and_its_router_in_bf16() -> None:
    found = _defaults({"dp_shard": 2, "ep": 2}, model=QWEN3_MOE)
    assert (found[FUSION], found[ROUTER]) == ("false", "bf16")
    chosen = _defaults({"dp_shard": 2, "ep": 2}, model=QWEN3_MOE,
                       options={"bias_activation_fusion": True, "moe_router_dtype": "fp32"})
    assert FUSION not in chosen
    assert ROUTER not in chosen


def test_other_families_fuse_it() -> None:
    assert FUSION not in _defaults({"dp_shard": 2}, model="llama-tiny")
    found = _defaults({"dp_shard": 2, "ep": 2}, model=_small("mixtral-8x7b"))
    assert FUSION not in found
    assert found[ROUTER] == "bf16"


def test_fusion_saves_memory() -> None:
    """Qwen2 of two layers of 128 columns: the SiLU and up + 0 of 64 tokens less in each layer."""
    peaks = []
    for fused in (True, False):
        report = simulate(small.scenario("megatron", model=_small("qwen2.5-7b"), method="lora",
                                         options={"bias_activation_fusion": fused}))
        assert report.status == "ok", report.problems
        peaks.append(report.ranks[0].peak.allocated_bytes if report.ranks[0].peak else 0)
    assert peaks[1] - peaks[0] == 2 * 2 * 2 * 128 * 64


@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"tp": 2, "etp": 1, "ep": 2}, {"pp": 2}, {"cp": 2}])
def test_softmax_routed_experts_run_in_every_direction(mesh: dict[str, int]) -> None:
    report = simulate(small.scenario("megatron", mesh, model=QWEN3_MOE))
    assert report.status == "ok", report.problems


def test_a_router_in_bf16_is_described_for_softmax_alone() -> None:
    _refused("error", "not yet: a router of nemotron_h", options={"moe_router_dtype": None})


DEEPSEEK = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_key_value_heads": 8,
            "first_k_dense_replace": 1}
V2, V3 = _small("deepseek-v2-lite", **DEEPSEEK), _small("deepseek-v3", **DEEPSEEK, q_lora_rank=96)


@pytest.mark.parametrize("model", [V2, V3], ids=["v2", "v3"])
@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"dp_shard": 2, "ep": 2}, {"pp": 2}, {"cp": 2}])
def test_latent_attention_runs_in_every_direction(model: dict[str, Any], mesh: dict[str, int]) -> None:
    report = simulate(small.scenario("megatron", mesh, model=model))
    assert report.status == "ok", report.problems


def test_what_is_refused_of_latent_attention() -> None:
    _refused("error", "not yet: mla_up_proj", model=V2, recompute=["mla_up_proj"])
    _refused("illegal", "8 attention heads must be divisible by tp 16", {"tp": 16}, model=V2)
    _refused("error", "not yet: an adapter of linear_kv_down_proj", model=V2, method="lora",
             lora={"target_modules": ["linear_kv_down_proj"]})


def test_losses_of_recipes_differ_by_family() -> None:
    assert _defaults(model=V2)["training.loss"] == "te"
    assert _defaults({"dp_shard": 2, "ep": 2}, model=QWEN3_MOE)["training.loss"] == "te"
    assert _defaults(model="llama-tiny")["training.loss"] == "megatron"


@pytest.mark.parametrize(("preset", "told"), [("gpt-oss-20b", "attention sinks")])
def test_other_families_are_placed_and_not_run(preset: str, told: str) -> None:
    _refused("error", f"not yet: {told}", model=preset)
    assert place(small.scenario("megatron", {"dp_shard": 2}, model=preset)).status == "ok"


@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"dp_shard": 2}, {"cp": 2}])
def test_gpt_runs_without_dropout(mesh: dict[str, int]) -> None:
    still = {"n_embd": 256, "n_head": 8, "n_layer": 2, "vocab_size": 1024, "attn_pdrop": 0, "resid_pdrop": 0,
             "embd_pdrop": 0}
    report = simulate(small.scenario("megatron", mesh, model={"config": "gpt2", "overrides": still}))
    assert report.status == "ok", report.problems


GPT = {"config": "gpt2", "overrides": {"n_embd": 256, "n_head": 8, "n_layer": 2, "vocab_size": 1024}}


@pytest.mark.parametrize(("options", "topology", "backend"), [
    ({}, "dgx-a100", "flash"), ({}, "dgx-h100", "fused"), ({}, "gb200-nvl72", "fused"),
    ({"deterministic_mode": True}, "dgx-h100", "fused"), ({"deterministic_mode": True}, "gb200-nvl72", "flash")])
def test_who_computes_attention_is_the_gpus(options: dict[str, Any], topology: str, backend: str) -> None:
    asked = small.scenario("megatron", {"dp_shard": 2}, model=GPT, options=options).model_copy(
        update={"topology": topology})
    found = {a.what: a.value for a in simulate(asked).assumptions}
    assert found["framework_options.attention_backend"] == backend


def test_without_attention_nobody_computes_it() -> None:
    only = {"config": "nemotron-3-tiny", "overrides": {"hybrid_override_pattern": "MM", "num_hidden_layers": 2}}
    assert "framework_options.attention_backend" not in _defaults(model=only)


@pytest.mark.parametrize("options", [{"attention_backend": "unfused"}, {"attention_backend": "local"},
                                     {"transformer_impl": "local"}])
def test_unfused_attention_knows_no_context_parallelism(options: dict[str, str]) -> None:
    _refused("illegal", "attention that is not fused", {"cp": 2}, model=GPT, options=options)
    assert simulate(small.scenario("megatron", {"dp_shard": 2}, model=GPT, options=options)).status == "ok"


def _peak(model: Any = GPT, mesh: dict[str, int] | None = None, options: dict[str, Any] | None = None,
          **training: Any) -> int:
    report = simulate(small.scenario("megatron", mesh or {"dp_shard": 2}, model=model, options=options, **training))
    assert report.status == "ok", report.problems
    assert report.ranks[-1].peak is not None
    return report.ranks[-1].peak.allocated_bytes


def test_a_loss_that_is_not_fused() -> None:
    unfused = {"cross_entropy_loss_fusion": False}
    assert _peak(options=unfused) == _peak(options=unfused, loss="megatron") < _peak()
    _refused("illegal", "without fusion the loss is megatron's own, not te", options=unfused, loss="te")


def test_the_loaders_mask_is_there_in_forward_alone() -> None:
    found = small.postings(small.program_of("megatron", model=GPT, options={"create_attention_mask": True}),
                           "attention_mask")
    assert [(phase, size) for _, phase, size in found] == [("forward", 64 * 64), ("loss", -64 * 64)]
    assert not small.postings(small.program_of("megatron", model=GPT), "attention_mask")
    middle = small.program_of("megatron", {"pp": 5}, rank=2, options={"create_attention_mask": True})
    assert not small.postings(middle, "attention_mask")


def test_without_accumulation_fusion_nothing_stands_in_for_gradients() -> None:
    unfused = small.program_of("megatron", model=GPT, options={"gradient_accumulation_fusion": False})
    assert not small.postings(unfused, "idle_weight_gradients")
    assert small.postings(small.program_of("megatron", model=GPT), "idle_weight_gradients")


def test_who_may_defer_the_heads_weight_gradient() -> None:
    defer, limit = {"defer_embedding_wgrad_compute": True}, {"wgrad_deferral_limit": 2}
    _refused("illegal", "when pipeline model parallel is not used", model=GPT, options=defer | limit)
    _refused("illegal", "when gradient accumulation fusion is not used", {"pp": 2}, model=GPT,
             options=defer | limit | {"gradient_accumulation_fusion": False})
    _refused("error", "not yet: without wgrad_deferral_limit", {"pp": 2}, model=GPT, options=defer)
    for options, count in ((defer | limit, 2), (limit, 0)):
        _, table = small.prepared("megatron", {"pp": 2}, model=GPT, microbatches=4, options=options)
        assert table.deferred_heads == count


def test_a_tied_heads_gradient_waits_for_the_embeddings() -> None:
    unfused = {"gradient_accumulation_fusion": False}
    found = small.postings(small.program_of("megatron", model=GPT, options=unfused), "tied.grad")
    assert [size for *_, size in found] == [1024 * 256 * 2, -1024 * 256 * 2]
    apart = small.program_of("megatron", {"pp": 2}, model=GPT, options=unfused, rank=1)
    assert not small.postings(apart, "tied.grad")


def test_multi_token_prediction_is_placed_and_not_run() -> None:
    further = {"config": V3["config"], "overrides": {**V3["overrides"], "mtp_num_layers": 1}}
    _refused("error", "not yet: multi-token prediction", model=further)
    assert place(small.scenario("megatron", {"dp_shard": 2}, model=further)).status == "ok"
