"""Options that Megatron's layers get, and the defaults of Bridge for a family."""

from __future__ import annotations

from typing import Any

import pytest

import small
from frameworks.megatron.asked import QWEN3_MOE, V2, V3, defaults, refused_with, small_model
from simcore.simulate import simulate


def test_every_default_is_listed() -> None:
    found = defaults({"tp": 2})
    options = {"use_precision_aware_optimizer": "false", "use_distributed_optimizer": "true",
               "overlap_grad_reduce": "true", "overlap_param_gather": "true", "moe_token_dispatcher_type": "alltoall"}
    expected = {"training.precision.params": "bf16", "training.precision.main_grads": "fp32",
                "training.optimizer.master": "fp32", "training.optimizer.moments": "fp32", "mesh.etp": "2",
                "training.sequence_parallel": "true", **{f"framework_options.{k}": v for k, v in options.items()}}
    assert {key: found.get(key) for key in expected} == expected


def test_what_is_given_is_no_default() -> None:
    found = defaults({"tp": 2, "etp": 1}, precision={"params": "bf16"}, optimizer={"master": "fp32"},
                      options={"overlap_grad_reduce": True, "moe_token_dispatcher_type": "flex"})
    assert not {"mesh.etp", "training.precision.params", "training.optimizer.master",
                "framework_options.overlap_grad_reduce", "framework_options.moe_token_dispatcher_type"} & set(found)
    assert found["framework_options.moe_flex_dispatcher_backend"] == "deepep"

# ---- families --------------------------------------------------------------------------------------------------------
FUSION, ROUTER = "framework_options.bias_activation_fusion", "framework_options.moe_router_dtype"


def test_bridge_leaves_qwens_activation_unfused_and_its_router_in_bf16() -> None:
    found = defaults({"dp_shard": 2, "ep": 2}, model=QWEN3_MOE)
    assert (found[FUSION], found[ROUTER]) == ("false", "bf16")
    chosen = defaults({"dp_shard": 2, "ep": 2}, model=QWEN3_MOE,
                       options={"bias_activation_fusion": True, "moe_router_dtype": "fp32"})
    assert FUSION not in chosen
    assert ROUTER not in chosen


def test_other_families_fuse_it() -> None:
    assert FUSION not in defaults({"dp_shard": 2}, model="llama-tiny")
    found = defaults({"dp_shard": 2, "ep": 2}, model=small_model("mixtral-8x7b"))
    assert FUSION not in found
    assert found[ROUTER] == "bf16"


def test_fusion_saves_memory() -> None:
    """Qwen2 of two layers of 128 columns: the SiLU and up + 0 of 64 tokens less in each layer."""
    peaks = []
    for fused in (True, False):
        report = simulate(small.scenario("megatron", model=small_model("qwen2.5-7b"), method="lora",
                                         options={"bias_activation_fusion": fused}))
        assert report.status == "ok", report.problems
        peaks.append(report.ranks[0].peak.allocated_bytes if report.ranks[0].peak else 0)
    assert peaks[1] - peaks[0] == 2 * 2 * 2 * 128 * 64


@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"tp": 2, "etp": 1, "ep": 2}, {"pp": 2}, {"cp": 2}])
def test_softmax_routed_experts_run_in_every_direction(mesh: dict[str, int]) -> None:
    report = simulate(small.scenario("megatron", mesh, model=QWEN3_MOE))
    assert report.status == "ok", report.problems


def test_a_router_in_bf16_is_described_for_softmax_alone() -> None:
    refused_with("error", "not yet: a router of nemotron_h", options={"moe_router_dtype": None})


@pytest.mark.parametrize("model", [V2, V3], ids=["v2", "v3"])
@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"dp_shard": 2, "ep": 2}, {"pp": 2}, {"cp": 2}])
def test_latent_attention_runs_in_every_direction(model: dict[str, Any], mesh: dict[str, int]) -> None:
    report = simulate(small.scenario("megatron", mesh, model=model))
    assert report.status == "ok", report.problems


def test_what_is_refused_of_latent_attention() -> None:
    refused_with("illegal", "8 attention heads must be divisible by tp 16", {"tp": 16}, model=V2)
    refused_with("error", "not yet: DoRA of linear_kv_down_proj over tp", {"tp": 2}, model=V2, method="lora",
                 lora={"target_modules": ["linear_kv_down_proj"], "use_dora": True})


@pytest.mark.parametrize("model", [
    (V2, "linear_kv_down_proj"), ("nemotron-3-ultra-550b-a55b", "fc1_latent_proj")], ids=["attention", "experts"])
def test_linears_that_lie_whole_on_every_rank_have_adapters(model: tuple[Any, str]) -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, model=model[0], method="lora",
                                     lora={"target_modules": [model[1]]}), timed=False)
    assert report.status == "ok", report.problems


def test_losses_of_recipes_differ_by_family() -> None:
    assert defaults(model=V2)["training.loss"] == "te"
    assert defaults({"dp_shard": 2, "ep": 2}, model=QWEN3_MOE)["training.loss"] == "te"
    assert defaults(model="llama-tiny")["training.loss"] == "megatron"


@pytest.mark.parametrize("more", [
    {}, {"recompute": ["moe_act"]}, {"method": "lora"}, {"options": {"bias_activation_fusion": False}}])
def test_experts_with_biases_run(more: dict[str, Any]) -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model="gpt-oss-20b", **more))
    assert report.status == "ok", report.problems


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
    assert "framework_options.attention_backend" not in defaults(model=only)


@pytest.mark.parametrize("options", [{"attention_backend": "unfused"}, {"attention_backend": "local"},
                                     {"transformer_impl": "local"}])
def test_unfused_attention_knows_no_context_parallelism(options: dict[str, str]) -> None:
    refused_with("illegal", "attention that is not fused", {"cp": 2}, model=GPT, options=options)
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
    refused_with("illegal", "without fusion the loss is megatron's own, not te", options=unfused, loss="te")


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
    refused_with("illegal", "when pipeline model parallel is not used", model=GPT, options=defer | limit)
    refused_with("illegal", "when gradient accumulation fusion is not used", {"pp": 2}, model=GPT,
             options=defer | limit | {"gradient_accumulation_fusion": False})
    refused_with("error", "not yet: without wgrad_deferral_limit", {"pp": 2}, model=GPT, options=defer)
    for options, count in ((defer | limit, 2), (limit, 0)):
        _, table = small.prepared("megatron", {"pp": 2}, model=GPT, microbatches=4, options=options)
        assert table.deferred_heads == count


def test_a_tied_heads_gradient_waits_for_the_embeddings() -> None:
    unfused = {"gradient_accumulation_fusion": False}
    found = small.postings(small.program_of("megatron", model=GPT, options=unfused), "tied.grad")
    assert [size for *_, size in found] == [1024 * 256 * 2, -1024 * 256 * 2]
    apart = small.program_of("megatron", {"pp": 2}, model=GPT, options=unfused, rank=1)
    assert not small.postings(apart, "tied.grad")
