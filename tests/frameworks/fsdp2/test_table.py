"""`fully_shard`'s own reading of `reshard_after_forward` (torch 2.13 `_fsdp_init.py`)."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.models.graph import model_config
from simcore.results.report import Report
from simcore.simulate import check, simulate


def _ran(reshard: object, mesh: dict[str, int] | None = None) -> Report:
    report = simulate(small.scenario("fsdp2", mesh or {"dp_shard": 8}, options={"reshard_after_forward": reshard}))
    assert report.status == "ok", report.problems
    return report


def _gathered(report: Report, phase: str, expert: bool) -> int:
    axis = "expert_dp" if expert else "dp_shard_cp"
    return sum(t.payload_bytes for t in report.ranks[0].traffic
               if t.collective == "all_gather" and t.phase == phase and t.axis.split("/")[0] == axis)


@pytest.mark.parametrize(("number", "same"), [(1, False), (8, True)])
def test_a_group_of_one_or_of_all_is_a_flag(number: int, same: bool) -> None:
    assert _ran(number).ranks == _ran(same).ranks


def test_a_number_that_is_no_factor_is_refused() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 8}, options={"reshard_after_forward": 3}))
    assert report.status == "illegal"
    assert "should be a factor of 8, not 3" in report.problems[0].message


@pytest.mark.parametrize("expert", [False, True])
def test_a_smaller_group_gathers_the_same_bytes_again(expert: bool) -> None:
    """Four ranks share experts: all of them are the group."""
    report = _ran(4, {"dp_shard": 8, "ep": 2})
    assert _gathered(report, "backward", expert) == _gathered(report, "forward", expert) > 0


@pytest.mark.parametrize(("reshard", "told"), [
    (2, "Resharding to smaller mesh is not supported for DTensor parameters yet: 4 ranks share experts"),
    (8, "should be a factor of 4, not 8")])
def test_experts_are_kept_in_no_smaller_group_than_theirs(reshard: int, told: str) -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 8, "ep": 2}, options={"reshard_after_forward": reshard}))
    assert report.status == "illegal"
    assert told in report.problems[0].message


def test_slices_of_experts_that_are_no_units_have_no_group() -> None:
    options = {"reshard_after_forward": 4, "experts": "ignored"}
    assert simulate(small.scenario("fsdp2", {"dp_shard": 8, "ep": 4}, options=options)).status == "ok"


@pytest.mark.parametrize(("last", "always", "count"), [
    (False, True, 1), (True, False, 1), (None, True, 2), (None, False, 0)])
def test_what_the_last_layer_does_its_experts_do(last: bool | None, always: bool, count: int) -> None:
    """`set_reshard_after_forward` is recursive; two layers of five have experts, the last is one of them."""
    options = {"reshard_after_forward": always} | ({} if last is None else {"set_last_reshard": last})
    report = simulate(small.scenario("fsdp2", {"dp_shard": 4, "ep": 2}, options=options))
    again = [t for t in report.ranks[0].traffic if (t.axis, t.phase) == ("expert_dp", "backward")]
    assert sum(t.calls for t in again if t.collective == "all_gather") == count


def test_a_tied_head_and_its_embedding_are_one_unit() -> None:
    tied = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}
    apart = check(small.scenario("fsdp2", {"dp_shard": 2}, model=tied, options={"wrap": "separate_embedding_head"}))
    assert apart.status == "illegal"
    assert "'lm_head.weight' is shared with a parameter already managed by another" in apart.problems[0].message
    assert check(small.scenario("fsdp2", {"dp_shard": 2}, model=tied)).status == "ok"


# ---- refusals and defaults -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("given", "status", "told"), [
    ({"mesh": {"dp_shard": 2, "ep": 2}, "model": "llama-tiny"}, "illegal", "a model without experts"),
    ({"optimizer": {"implementation": "bitsandbytes"}}, "error", "not yet: bitsandbytes under fsdp2"),
    ({"optimizer": {"moments": "int8", "paged": True}}, "error", "not yet: paged states of torchao"),
    ({"optimizer": {"moments": "int8", "name": "sgd"}}, "error", "not yet: sgd with states of 8 bits"),
    ({"optimizer": {"name": "muon", "moments": "int8"}}, "error", "not yet: muon with states of 8 bits"),
    ({"optimizer": {"name": "muon"}, "method": "lora"}, "error", "not yet: muon under fsdp2"),
    ({"optimizer": {"momentum": 0.9}}, "error", "not yet: momentum of adamw"),
    ({"optimizer": {"implementation": "torchao"}}, "error", "not yet: torchao under fsdp2"),
    ({"optimizer": {"moments": "fp8"}}, "error", "optimizer.moments in fp8"),
    ({"precision": {"params": "fp8"}}, "error", "precision.params in fp8"),
    ({"precision": {"grad_reduce": "fp8"}}, "error", "precision.grad_reduce in fp8"),
    ({"method": "lora", "lora": {"dtype": "fp8"}}, "error", "lora.dtype in fp8"),
    ({"method": "lora", "lora": {"expert_adapters": "per_expert"}}, "error", "not yet: per_expert under fsdp2"),
    ({"method": "lora", "lora": {"expert_adapters": "shared"}}, "error", "not yet: shared under fsdp2"),
    ({"method": "lora", "lora": {"exclude_modules": ["*q_proj"]}}, "error", "patterns (*q_proj) under fsdp2"),
    ({"lengths": "packed"}, "error", "not yet: packed sequences in the Mamba layers")])
def test_what_is_refused(given: dict[str, Any], status: str, told: str) -> None:
    mesh = given.get("mesh", {"dp_shard": 2})
    report = simulate(small.scenario("fsdp2", mesh, **{key: value for key, value in given.items() if key != "mesh"}))
    assert report.status == status
    assert told in report.problems[0].message


@pytest.mark.parametrize("implementation", ["automodel", "megatron"])
def test_other_layers_do_not_run_here(implementation: str) -> None:
    data = small.scenario("fsdp2").normalised() | {"implementation": implementation}
    report = simulate(Scenario.model_validate(data))
    assert report.status == "error"
    assert f"not yet: the layers of {implementation} under fsdp2" in report.problems[0].message


def test_adapters_of_experts_may_be_refused_by_name() -> None:
    asked = small.scenario("fsdp2", {"dp_shard": 2}, method="lora", lora={"expert_adapters": "none"})
    assert simulate(asked).status == "ok"


def test_ignored_experts_have_the_moments_that_were_asked_for() -> None:
    def moments(**given: Any) -> int:
        plan = small.plan_of("fsdp2", {"dp_shard": 4, "ep": 2}, options={"experts": "ignored"}, **given)
        return sum(size for layer in plan.layers for p in plan.of_layer(layer) if p.policy.name == "experts, ignored"
                   for _, size in p.states)

    assert moments(optimizer={"moments": "fp32"}) == 2 * moments() > 0


def test_defaults_are_listed() -> None:
    def listed(**given: Any) -> dict[str, str]:
        report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, **given))
        return {a.what: a.value for a in report.assumptions if a.kind == "default"}

    found = listed()
    assert found["framework_options.reshard_after_forward"] == "true for layers, false for the root"
    assert found["training.optimizer.moments"] == "as each parameter is stored"
    given = listed(options={"reshard_after_forward": False}, optimizer={"moments": "bf16"})
    assert not [key for key in given if "reshard" in key or "moments" in key]


# ---- torchtitan's layers ---------------------------------------------------------------------------------------------
def _titan(mesh: dict[str, int], options: dict[str, Any] | None = None, **training: Any) -> Report:
    asked = small.scenario("fsdp2", mesh, options=options, **{"model": "llama-tiny", **training})
    return simulate(asked.model_copy(update={"implementation": "torchtitan"}))


@pytest.mark.parametrize(("mesh", "given", "told"), [
    ({"dp_shard": 1, "tp": 2}, {}, "not yet: torchtitan without FSDP"),
    ({"dp_shard": 2, "tp": 8}, {}, "4 key and value heads must be divisible by tp 8"),
    ({"dp_shard": 2, "tp": 2}, {"seq_len": 63}, "63 must be divisible by tp 2"),
    ({"dp_shard": 2, "cp": 2, "tp": 2}, {"seq_len": 68}, "68 must be divisible by tp 2 x 2 x cp 2"),
    ({"dp_shard": 2}, {"model": "deepseek-v2-lite", "options": {"compile": True}}, "not yet: what compiled blocks of"),
    ({"dp_shard": 2}, {"precision": {"compute": "fp8"}}, "not yet: compute in fp8 in blocks that are not compiled"),
    ({"dp_shard": 2}, {"options": {"reshard_after_forward": 2}}, "reshard_after_forward: expected None or True"),
    ({"dp_shard": 2}, {"options": {"sync_gradients": "last"}}, "sync_gradients: expected 'every'"),
    ({"dp_shard": 2}, {"model": "qwen3-30b-a3b"}, "not yet: qwen3_moe in the layers of torchtitan"),
    ({"dp_shard": 2, "tp": 2}, {"model": "qwen3-8b"}, "not yet: tensor parallelism of torchtitan's Qwen3"),
    ({"dp_shard": 2}, {"model": "nemotron-3-tiny"}, "not yet: nemotron_h in the layers of torchtitan"),
    ({"dp_shard": 2}, {"model": "deepseek-v3"}, "not yet: deepseek_v3 in the layers of torchtitan"),
    ({"dp_shard": 2, "tp": 2}, {"model": "deepseek-v2-lite"}, "not yet: tensor parallelism of torchtitan's DeepSeek"),
    ({"dp_shard": 2, "ep": 2}, {"model": "deepseek-v2-lite"}, "not yet: torchtitan's expert parallelism"),
    ({"dp_shard": 2}, {"model": "deepseek-v2-lite", "precision": {"compute": "fp32"}}, "experts in fp32: torchtitan"),
    ({"dp_shard": 2}, {"loss": "hf"}, "not yet: hf under fsdp2"),
    ({"dp_shard": 2}, {"method": "lora", "lora": {"target_modules": ["wq"]}}, "not yet: lora with torchtitan's layers"),
    ({"dp_shard": 2}, {"recompute": {"mode": "uniform", "num_layers": 2}}, "every n-th layer under torchtitan"),
    ({"dp_shard": 2}, {"recompute": {"mode": "per_op", "modules": ["mm"]}}, "another list of operators")])
def test_what_torchtitan_refuses(mesh: dict[str, int], given: dict[str, Any], told: str) -> None:
    report = _titan(mesh, **given)
    assert report.status != "ok"
    assert told in "; ".join(str(problem.message) for problem in report.problems)


def test_context_parallel_ranks_alone_share_parameters() -> None:
    assert _titan({"cp": 2}).status == "ok"


def test_context_parallelism_is_refused_for_other_layers() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2, "cp": 2}, model="llama-tiny"))
    assert "not yet: fsdp2 with context parallelism" in report.problems[0].message


def test_tensor_parallelism_is_refused_for_other_layers() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2, "tp": 2}, model="llama-tiny"))
    assert "served with implementation: torchtitan" in report.problems[0].message


def test_defaults_are_torchtitan_s_own() -> None:
    autos = {a.what: a.value for a in _titan({"dp_shard": 4, "tp": 2}).assumptions}
    assert autos["training.optimizer.implementation"] == "fused"
    assert autos["training.precision.grad_reduce"] == "fp32"
    assert autos["framework_options.disable_loss_parallel"] == "false"


def test_always_gathers_norm_and_head_again() -> None:
    default, always = (_titan({"dp_shard": 4}, options=options) for options in ({}, {"reshard_after_forward": True}))
    assert _gathered(always, "backward", False) > _gathered(default, "backward", False)


def test_compiled_blocks_keep_less_and_a_compiled_loss_writes_no_copy_in_fp32() -> None:
    def after_loss(**options: Any) -> int:
        peak = _titan({"dp_shard": 4}, options, recompute={"mode": "per_op"}).ranks[0].peak
        assert peak is not None
        return peak.by_phase["loss"]

    assert after_loss(compile=True) < after_loss(compile="model") < after_loss()


def test_what_is_compiled_names_its_assumption() -> None:
    assert "framework_options.compile" in {a.what for a in _titan({"dp_shard": 4}, {"compile": True}).assumptions}


def test_weights_of_blocks_are_gathered_in_one_byte() -> None:
    def gathered(**options: Any) -> int:
        report = _titan({"dp_shard": 4}, {"compile": True, **options}, precision={"compute": "fp8"}, recompute="full")
        return sum(t.payload_bytes for t in report.ranks[0].traffic if t.collective == "all_gather")

    assert gathered(fp8_all_gather=True) < gathered()


def test_fp8_without_checkpoints_is_refused() -> None:
    report = _titan({"dp_shard": 2}, {"compile": True}, precision={"compute": "fp8"}, recompute="none")
    assert "without checkpointing" in report.problems[0].message


def test_every_microbatch_reduces_its_gradients() -> None:
    one, two = (_titan({"dp_shard": 4}, global_batch_size=4 * count) for count in (1, 2))
    sent = [sum(t.calls for t in report.ranks[0].traffic if t.collective == "reduce_scatter") for report in (one, two)]
    assert sent[1] == 2 * sent[0] > 0


# ---- KempnerForge's layers -------------------------------------------------------------------------------------------
EXPERTS = {"config": "mixtral-8x7b", "overrides": {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "num_local_experts": 4, "vocab_size": 128}}


def _kempner(mesh: dict[str, int], options: dict[str, Any] | None = None, **training: Any) -> Report:
    asked = small.scenario("fsdp2", mesh, options=options, **{"model": "llama-tiny", **training})
    return simulate(asked.model_copy(update={"implementation": "kempnerforge"}))


@pytest.mark.parametrize(("mesh", "given", "told"), [
    ({}, {}, "not yet: KempnerForge on one device"),
    ({"dp_replicate": 4}, {}, "a mesh of replicas alone is sharded"),
    ({"dp_shard": 2}, {"precision": {"params": "fp32"}}, "the model is cast to one type"),
    ({"dp_shard": 2}, {"precision": {"grad_reduce": "bf16"}}, "gradients are always reduced in fp32"),
    ({"dp_shard": 2}, {"model": EXPERTS, "precision": {"compute": "fp32"}}, "not yet: experts in fp32"),
    ({"dp_shard": 2}, {"model": EXPERTS, "routing": {"capacity_factor": 1.0}}, "not yet: a capacity of KempnerForge's"),
    ({"dp_shard": 2}, {"model": EXPERTS, "routing": {"seed": 1}}, "not yet: routing drawn at random in KempnerForge's"),
    ({"dp_shard": 2, "tp": 8}, {}, "4 key and value heads must be divisible by tp 8"),
    ({"dp_shard": 2, "tp": 2}, {"seq_len": 63}, "not yet: 63 positions on 2 ranks"),
    ({"dp_shard": 2}, {"options": {"reshard_after_forward": False}}, "reshard_after_forward: expected None or True"),
    ({"dp_shard": 2}, {"options": {"sync_gradients": "every"}}, "sync_gradients: expected 'last'"),
    ({"dp_shard": 2}, {"model": "qwen3-8b"}, "not yet: qwen3 in the layers of KempnerForge"),
    ({"dp_shard": 2}, {"loss": "hf"}, "not yet: hf under fsdp2"),
    ({"dp_shard": 2}, {"recompute": ["mlp"]}, "served: none, full, [attention]"),
    ({"dp_shard": 2, "tp": 2}, {"model": EXPERTS}, "not yet: KempnerForge's experts with tensor parallel attention"),
    ({"dp_shard": 2, "ep": 2}, {"model": EXPERTS}, "not yet: KempnerForge's expert parallelism"),
    ({"dp_shard": 8}, {"model": EXPERTS, "options": {"packed_experts": True}}, "packed experts on 8 shards, unevenly"),
    ({"dp_shard": 2}, {"method": "lora", "lora": {"target_modules": ["q_proj"]}}, "lora with KempnerForge's layers")])
def test_what_kempnerforge_refuses(mesh: dict[str, int], given: dict[str, Any], told: str) -> None:
    report = _kempner(mesh, **given)
    assert report.status != "ok"
    assert told in "; ".join(str(problem.message) for problem in report.problems)


def test_kempnerforge_s_model_is_bf16_with_no_other_copy() -> None:
    report = _kempner({"dp_shard": 4, "tp": 2})
    autos = {a.what: a.value for a in report.assumptions}
    assert (autos["training.precision.params"], autos["training.precision.grad_reduce"]) == ("bf16", "fp32")
    rest = list(report.ranks[0].at_rest.values())
    assert sum(a.optimizer_bytes for a in rest) == 2 * sum(a.params_bytes for a in rest)


def test_what_is_compiled_is_answered_as_eager_and_says_so() -> None:
    eager, compiled = (_kempner({"dp_shard": 4}, options=options) for options in ({}, {"compile": True}))
    assert ("framework_options.compile", "assumed") in {(a.what, a.kind) for a in compiled.assumptions}
    assert _peak(eager) == _peak(compiled)


def test_what_torch_fails_to_compile_is_answered_and_says_so() -> None:
    """Tensor parallel layers with checkpoints."""
    def told(**training: Any) -> bool:
        report = _kempner({"dp_shard": 2, "tp": 2}, options={"compile": True}, **training)
        return "training.recompute" in {a.what for a in report.assumptions if a.kind == "assumed"}
    assert told(recompute="full")
    assert not told(recompute="none")


def test_the_fullest_expert_decides_how_long_every_block_is() -> None:
    peaks = [_peak(_kempner({"dp_shard": 4}, model=EXPERTS, routing=routing))
             for routing in ("balanced", {"imbalance": 1.5}, {"imbalance": 2})]
    assert peaks[0] < peaks[1] < peaks[2]


def test_an_untrained_router_sends_all_tokens_to_the_same_experts() -> None:
    """As measured (tests/truth/routing); other frameworks' memory is asked balanced, which is not said each time."""
    untrained, balanced, twice = (_kempner({"dp_shard": 4}, model=EXPERTS, **given) for given in (
        {}, {"routing": "balanced"}, {"routing": {"imbalance": 2}}))
    told = {a.what: a for a in untrained.assumptions}
    assert "as long as the fullest" in told["training.routing"].source
    assert "2 times the mean" in told["training.routing"].value
    assert "training.routing" not in {a.what for a in balanced.assumptions}
    assert _peak(balanced) < _peak(untrained) == _peak(twice)
    with_words = [simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, routing=word))
                  for word in ("auto", "balanced")]
    assert _peak(with_words[0]) == _peak(with_words[1])


def test_replays_stay_on_routers_until_the_next_forward() -> None:
    none, full = (_end(_kempner({"dp_shard": 4}, model=EXPERTS, recompute=mode)) for mode in ("none", "full"))
    saved_in_fp32_by_norms = 2 * 2 * 2 * 4 * 64 * 64  # layers, norms, tensors, bytes, tokens, hidden size
    assert full - none > saved_in_fp32_by_norms


def test_logits_stay_until_the_next_forward() -> None:
    one, two = (_end(_kempner({"dp_shard": 4}, micro_batch_size=batch, global_batch_size=8)) for batch in (1, 2))
    assert two - one == 64 * 2 * _vocab("llama-tiny")


def _vocab(preset: str) -> int:
    return int(model_config(preset, {}, "test")["vocab_size"])


def _end(report: Report) -> int:
    assert report.ranks[0].end_bytes is not None, report.problems
    return report.ranks[0].end_bytes


def _peak(report: Report) -> int:
    peak = report.ranks[0].peak
    assert peak is not None, report.problems
    return peak.allocated_bytes


@pytest.mark.parametrize("model", ["llama-tiny", EXPERTS])
@pytest.mark.parametrize("recompute", ["none", "full", ["attention"]])
def test_what_a_step_leaves_does_not_grow_with_microbatches(model: Any, recompute: Any) -> None:
    ends = {_end(_kempner({"dp_shard": 2, "dp_replicate": 2}, model=model, recompute=recompute, global_batch_size=size))
            for size in (4, 8, 16)}
    assert len(ends) == 1


# ---- on the host -----------------------------------------------------------------------------------------------------
HOST = {"params": "host", "gradients": "host", "optimizer": "host"}


def test_on_the_host_nothing_rests_on_the_device() -> None:
    here, away = (small.plan_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", offload=offload)
                  for offload in ({}, HOST))
    parts = away.at_rest()
    assert {(p.params_bytes, p.grads_bytes, p.optimizer_bytes) for p in parts.values()} == {(0, 0, 0)}
    whole = sum(p.num_params for p in here.at_rest().values())
    assert sum(p.num_params for p in parts.values()) == whole
    assert away.elsewhere() == {"host_pinned": 8 * whole, "host": 8 * whole}
    assert here.elsewhere() == {}


def test_the_step_on_the_host_needs_nothing_of_the_device() -> None:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", offload=HOST)
    assert [amount for *_, amount in small.postings(program, "sqrt_exp_avg_sq") if amount] == []


def test_peaks_are_lower_by_what_went_to_the_host() -> None:
    here, away = (simulate(small.scenario("fsdp2", {"dp_shard": 2}, model="llama-tiny", offload=offload))
                  for offload in ({}, HOST))
    rest = sum(c.params_bytes + c.optimizer_bytes for c in here.ranks[0].at_rest.values())
    peaks = [report.ranks[0].peak for report in (here, away)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0].allocated_bytes - peaks[1].allocated_bytes > rest // 2
    assert peaks[1].by_category.get("opt_state", 0) == peaks[1].by_category.get("sharded_param", 0) == 0
    assert "outside the device, host_pinned" in {a.what for a in away.assumptions}


def test_inputs_of_replayed_layers_wait_on_the_host() -> None:
    """At its peak the device holds none of 16, or that of the layer that runs; the peak may be elsewhere then."""
    more: dict[str, Any] = {"model": {"config": "llama-tiny", "overrides": {"num_hidden_layers": 16}},
                            "recompute": "full", "seq_len": 4096}
    here, away = (simulate(small.scenario("fsdp2", {"dp_shard": 2}, offload={"activations": where}, **more),
                           timed=False) for where in ("none", "host"))
    hidden = small.prepared("fsdp2", **more)[0].graph.architecture.hidden
    one, peaks = 4096 * hidden * 2, [report.ranks[0].peak for report in (here, away)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert (peaks[0].host_bytes, peaks[1].host_bytes) == (0, 16 * one)
    assert peaks[0].by_category["activation"] - peaks[1].by_category["activation"] >= 15 * one
    assert 0 < peaks[0].allocated_bytes - peaks[1].allocated_bytes < 16 * one
    assert away.host is not None
    assert away.host.phases[1].by_owner == {"activations": 2 * 16 * one}
    assert "time of offload" in {a.what for a in away.assumptions}


@pytest.mark.parametrize(("offload", "mesh", "status", "told"), [
    ({"params": "host"}, {"dp_shard": 2}, "illegal", "all three and whole"),
    ({"optimizer": "host"}, {"dp_shard": 2}, "illegal", "all three and whole"),
    (HOST | {"params": {"space": "host", "fraction": 0.5}}, {"dp_shard": 2}, "illegal", "all three and whole"),
    ({"activations": "host"}, {"dp_shard": 2}, "error", "with recompute: full"),
    ({"activations": "nvme"}, {"dp_shard": 2}, "error", "nvme under fsdp2"),
    (dict.fromkeys(HOST, "nvme"), {"dp_shard": 2}, "error", "nvme under fsdp2"),
    (HOST, {}, "error", "not sharded")])
def test_what_is_refused_of_offload(offload: dict[str, Any], mesh: dict[str, int], status: str, told: str) -> None:
    report = simulate(small.scenario("fsdp2", mesh, offload=offload))
    assert report.status == status
    assert told in report.problems[0].message


# ---- GPT-OSS ---------------------------------------------------------------------------------------------------------
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


def test_fp32_parameters_under_a_policy_are_no_fp32_around_fp8() -> None:
    """They rest in fp32 and are gathered in bf16: what lies between fp8 linears is bf16."""
    asked = small.scenario("fsdp2", {"dp_shard": 2}, model="llama-tiny", options={"compile": True}, recompute="full",
                           precision={"params": "fp32", "compute": "fp8"})
    _, table = prepare(asked.model_copy(update={"implementation": "torchtitan"}))
    assert table.compute_dtype == "bf16"


QLORA: dict[str, Any] = {"model": "llama-tiny", "method": "qlora", "precision": {"params": "bf16"},
                         "lora": {"target_modules": ["q_proj"]}}


@pytest.mark.parametrize("storage", ["uint8", "bfloat16"])
def test_weights_in_4_bits_are_cut_if_their_column_is_of_a_floating_type(storage: str) -> None:
    """accelerate 1.15 utils/fsdp_utils.py:797; constants are whole on every rank either way."""
    plan = small.plan_of("fsdp2", {"dp_shard": 3}, rank=2, options={"bnb_4bit_quant_storage": storage}, **QLORA)
    (placed,) = (p for p in plan.of_layer(1) if p.spec.name == "mlp.up_proj.weight")
    numel, blocks = 688 * 256, 688 * 256 // 64
    rows = numel // 4
    last = rows - 2 * -(-rows // 3)
    assert placed.constants == blocks + 4 * -(-blocks // 256) + 1024 + 64 + 4
    assert placed.rest_bytes - placed.constants == (numel // 2 if storage == "uint8" else 2 * -(-rows // 3))
    assert placed.local == (numel if storage == "uint8" else 4 * last)


@pytest.mark.parametrize(("storage", "gathers"), [("uint8", False), ("bfloat16", True)])
def test_packed_columns_are_gathered_as_they_lie(storage: str, gathers: bool) -> None:
    def sent(method: str) -> int:
        options = {"bnb_4bit_quant_storage": storage} if method == "qlora" else {}
        program = small.program_of("fsdp2", {"dp_shard": 4}, options=options, **(QLORA | {"method": method}))
        return sum(size for _, phase, size in small.calls(program, "all_gather") if phase == "forward")

    linears = 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 688)
    assert sent("lora") - sent("qlora") == 2 * linears - gathers * linears // 2


def test_a_packed_column_of_another_type_would_be_cast() -> None:
    with pytest.raises(IllegalLayout, match="would be cast to bf16"):
        small.prepared("fsdp2", {"dp_shard": 2}, options={"bnb_4bit_quant_storage": "float32"}, **QLORA)
