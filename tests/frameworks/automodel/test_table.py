"""NeMo Automodel: jobs that it refuses, jobs that are not modelled, and the defaults that a report lists."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, NotYet, RankscopeError
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report
from simcore.simulate import simulate

TIED = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}


def _ran(mesh: dict[str, int], **given: Any) -> Report:
    return simulate(small.scenario("automodel", mesh, **given))


def _defaults(mesh: dict[str, int], **given: Any) -> dict[str, str]:
    report = _ran(mesh, **given)
    assert report.status == "ok", report.problems
    return {a.what: a.value for a in report.assumptions if a.kind == "default"}


@pytest.mark.parametrize(("mesh", "model", "status", "told"), [
    ({"tp": 16, "dp_shard": 2}, "llama-tiny", "illegal", "must be divisible by TP size (16)"),
    ({"tp": 2}, "nemotron-nano-9b-v2", "error", "tensor-parallel plan of Nemotron-H's MLP layers"),
    ({"pp": 2}, TIED, "illegal", "Pipeline parallelism does not support tie_word_embeddings=True"),
    ({"dp_shard": 2, "ep": 2}, "llama-tiny", "illegal", "Expert parallelism (ep_size=2) requires a MoE model"),
    ({"dp_shard": 2}, {"config": small.TINY, "overrides": {"tie_word_embeddings": True}}, "illegal",
     "NemotronHForCausalLM has separate input and output embeddings"),
    ({"dp_shard": 2, "ep": 2}, {"config": "moonlight-16b-a3b", "overrides": {"tie_word_embeddings": True}}, "illegal",
     "does not support tie_word_embeddings=True")])
def test_meshes_that_are_refused(mesh: dict[str, int], model: Any, status: str, told: str) -> None:
    report = _ran(mesh, model=model)
    assert report.status == status
    assert told in report.problems[0].message
    assert bool(report.problems[0].rule) == (status == "illegal")


@pytest.mark.parametrize(("tp", "status"), [(1, "ok"), (2, "error")])
def test_an_adapter_of_a_split_head_is_refused(tp: int, status: str) -> None:
    """Its B would be split with the head's rows, and A's output gathered (0.7.0 ColwiseParallelLora)."""
    report = _ran({"tp": tp}, method="lora", lora={"target_modules": ["lm_head"]})
    assert report.status == status
    assert [problem.message for problem in report.problems] == (tp > 1) * [
        "not yet: an adapter of an lm_head that automodel splits over tp"]



def test_the_model_s_own_loss_works_on_half_the_bytes() -> None:
    vocab = {"config": small.TINY, "overrides": {"vocab_size": 64000}}
    own, upcast = (_ran({"dp_shard": 2}, model=vocab, seq_len=2048, loss=loss).ranks[0].peak
                   for loss in ("causal", "masked_fp32"))
    assert own is not None
    assert upcast is not None
    # log-softmax, its gradient and that of the logits, once in bf16 and once in fp32; the last position has no label
    assert upcast.by_phase["backward"] - own.by_phase["backward"] == 64000 * (2048 * 3 * 4 - 2047 * 3 * 2) + 2


@pytest.mark.parametrize("mesh", [{"pp": 2}, {"cp": 2}])
def test_the_model_s_own_loss_is_refused_where_it_is_not_whole(mesh: dict[str, int]) -> None:
    assert "not yet: the model's own loss (causal)" in _ran(mesh, loss="causal").problems[0].message


@pytest.mark.parametrize(("mesh", "model"), [({"tp": 2, "dp_shard": 2}, small.TINY),
                                             ({"tp": 2, "dp_shard": 2}, "llama-tiny"), ({"dp_shard": 2}, TIED),
                                             ({"pp": 2}, "llama-tiny"),
                                             ({"dp_shard": 2, "ep": 2}, {"config": small.TINY, "overrides": {
                                                 "hybrid_override_pattern": "M-*", "num_hidden_layers": 3}})])
def test_meshes_beside_them_are_served(mesh: dict[str, int], model: Any) -> None:
    assert _ran(mesh, model=model).status == "ok"


@pytest.mark.parametrize(("model", "status"), [(small.TINY, "illegal"), ("llama-tiny", "error")])
def test_no_sequence_parallelism(model: str, status: str) -> None:
    assert _ran({"dp_shard": 2}, model=model, sequence_parallel=True).status == status


def test_other_layers_do_not_run_here() -> None:
    data = small.scenario("automodel").normalised() | {"implementation": "megatron"}
    report = simulate(Scenario.model_validate(data))
    assert report.status == "error"
    assert "not yet: the layers of megatron under automodel" in report.problems[0].message


@pytest.mark.parametrize("implementation", ["automodel", "hf"])
@pytest.mark.parametrize("microbatches", [1, 3])
def test_a_tied_heads_gradient_meets_the_embeddings(implementation: str, microbatches: int) -> None:
    """One weight, one gradient: what rests is what a model without a head would keep, nothing more."""
    given: dict[str, Any] = {"optimizer": {"name": "sgd"}, "microbatches": microbatches}
    data = small.scenario("automodel", {"dp_shard": 2}, model=TIED, **given).normalised()
    rank = simulate(Scenario.model_validate(data | {"implementation": implementation})).ranks[0]
    assert rank.peak is not None
    assert rank.end_bytes is not None
    rest = sum(part.num_params for part in rank.at_rest.values())
    gradients = 2 * rest
    tables = 2 * 4 * 64 * 32 if implementation == "automodel" else 0
    assert rank.end_bytes - 2 * rest - tables < 1024  # buffers
    assert rank.peak.by_phase["optimizer"] - rank.end_bytes - gradients < 4096


def test_an_adapter_of_a_tied_head_learns_beside_the_frozen_weight() -> None:
    report = _ran({"dp_shard": 2}, model=TIED, method="lora", lora={"target_modules": ["*lm_head"]})
    assert {name for name, part in report.ranks[0].at_rest.items() if part.num_trainable_params} == {"adapters"}
    assert sum(row.calls for row in report.ranks[0].traffic if row.collective == "reduce_scatter") == 1


def test_an_adapter_of_a_tied_head_beside_a_packed_base_is_refused() -> None:
    report = _ran({"dp_shard": 2}, model=TIED, method="qlora", lora={"target_modules": ["*lm_head"]})
    assert "not yet: an adapter of a tied lm_head beside a packed base" in report.problems[0].message


def test_adapters_by_operators_keep_what_passes_between_their_products() -> None:
    plain, apart = (_ran({"dp_shard": 2}, method="lora", options=options).ranks[0].peak for options in (
        {}, {"use_memory_efficient_lora": False}))
    assert plain is not None
    assert apart is not None
    assert apart.by_category["activation"] > plain.by_category["activation"]


@pytest.mark.parametrize(("more", "told"), [
    ({}, "without adapters"), ({"method": "lora", "lora": {"use_dora": True}}, "with DoRA")])
def test_the_option_of_adapters_is_refused_where_it_changes_nothing(more: dict[str, Any], told: str) -> None:
    report = _ran({"dp_shard": 2}, options={"use_memory_efficient_lora": False}, **more)
    assert told in report.problems[0].message


def test_adapters_by_operators_are_those_of_the_release() -> None:
    data = small.scenario("automodel", {"dp_shard": 2}, method="lora", options={"use_memory_efficient_lora": False})
    older = Scenario.model_validate(data.normalised() | {"framework_version": "0.4.0"})
    assert "false under automodel 0.4.0" in simulate(older).problems[0].message


# ---- transformers' layers --------------------------------------------------------------------------------------------
MIXTRAL = {"config": "mixtral-8x7b", "overrides": {
    "hidden_size": 256, "vocab_size": 1024, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 64, "num_local_experts": 4}}


def _by_transformers(model: Any, mesh: dict[str, int], **given: Any) -> Report:
    data = small.scenario("automodel", mesh, model=model, **given).normalised() | {"implementation": "hf"}
    return simulate(Scenario.model_validate(data))


def test_what_has_no_own_code_runs_transformers_layers() -> None:
    found = _defaults({"dp_shard": 2}, model=MIXTRAL)
    assert found["implementation"] == "hf"
    assert _defaults({"dp_shard": 2}, model="llama-tiny")["implementation"] == "automodel"
    assert "implementation" not in _defaults({"dp_shard": 2})


def test_its_head_and_loss_are_automodel_s() -> None:
    """Cross entropy keeps its log-softmax in fp32; logits in bf16 are gone when backward begins."""
    own = _ran({"dp_shard": 2}, model="llama-tiny", seq_len=512)
    theirs = _by_transformers("llama-tiny", {"dp_shard": 2}, seq_len=512)
    assert theirs.status == "ok", theirs.problems
    sent = [[(row.collective, row.phase, row.wire_bytes) for row in r.ranks[0].traffic] for r in (own, theirs)]
    assert sent[0] == sent[1]
    cut = _by_transformers("llama-tiny", {"dp_shard": 2}, seq_len=512, loss="cut")
    assert cut.status == "ok", cut.problems


def test_its_layers_are_checkpointed_whole() -> None:
    """One input a layer; Automodel's own layers keep four."""
    asked: dict[str, Any] = {"seq_len": 512, "recompute": "full"}
    own = _ran({"dp_shard": 2}, model="llama-tiny", **asked)
    theirs = _by_transformers("llama-tiny", {"dp_shard": 2}, options={"use_liger_kernel": False}, **asked)
    assert own.ranks[0].peak is not None
    assert theirs.ranks[0].peak is not None
    apart = own.ranks[0].peak.by_phase["loss"] - theirs.ranks[0].peak.by_phase["loss"]
    tables = 2 * 512 * 32 * (4 + 4 - 2)  # Automodel's in fp32 and from others that rest, the other ones in bf16
    final_norm = 512 * (4 * 256 + 4)  # the other one keeps its input in fp32, and a reciprocal root
    assert apart == 3 * 4 * 2 * 512 * 256 + tables - final_norm  # both keep positions


def test_its_linear_layers_take_automodel_s_adapters() -> None:
    lora = {"rank": 8, "target_modules": ["*_proj", "*lm_head", "*experts"]}
    report = _ran({"dp_shard": 2}, model=MIXTRAL, method="lora", lora=lora)
    assert report.status == "ok", report.problems
    one = 8 * 2 * 256 * 4  # q, k, v and o; the experts are no linear layers
    assert report.ranks[0].at_rest["adapters"].num_params * 2 == 2 * one + 8 * (256 + 1024)


@pytest.mark.parametrize(("model", "mesh", "given", "status", "told"), [
    (MIXTRAL, {"dp_shard": 2, "ep": 2}, {}, "illegal", "does not inherit from MoEFSDPSyncMixin"),
    (small.TINY, {"dp_shard": 2}, {}, "error", "not yet: transformers' layers of nemotron_h under automodel"),
    ("gemma-2-2b", {"tp": 2}, {}, "error", "over more than data"),
    ("llama-tiny", {"cp": 2}, {}, "error", "over more than data"),
    ("phi-2", {"pp": 2}, {}, "error", "stages of transformers' layers of phi")])
def test_what_of_them_is_not_served(model: Any, mesh: dict[str, int], given: dict[str, Any], status: str,
                                    told: str) -> None:
    report = _by_transformers(model, mesh, **given)
    assert report.status == status
    assert told in report.problems[0].message


@pytest.mark.parametrize("precision", [{"experts": "fp8"}, {"params": "fp8"}, {"grad_reduce": "fp8"}])
def test_formats_with_scales_are_not_modelled(precision: dict[str, str]) -> None:
    report = _ran({"dp_shard": 2}, precision=precision)
    assert report.status == "error"
    assert "in fp8 (a format with scales)" in report.problems[0].message


@pytest.mark.parametrize(("mesh", "value"), [({"dp_shard": 4}, "true for layers, false for the root"),
                                             ({"dp_shard": 4, "ep": 2}, "false")])
def test_defaults_are_listed(mesh: dict[str, int], value: str) -> None:
    found = _defaults(mesh)
    assert found["framework_options.reshard_after_forward"] == value
    assert found["training.optimizer.moments"] == "as each parameter is stored"
    assert found["framework_options.defer_fsdp_grad_sync"] == "true"


def test_what_is_given_is_no_default() -> None:
    options = {"reshard_after_forward": True, "defer_fsdp_grad_sync": False}
    found = _defaults({"dp_shard": 4}, options=options, optimizer={"moments": "fp32"})
    assert not [key for key in found if "reshard" in key or "moments" in key or "defer" in key]


# ---- DeepSeek-V3 ----------------------------------------------------------------------------------------------------
SMALL = {"config": "deepseek-v3", "overrides": {
    "hidden_size": 256, "vocab_size": 1024, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "first_k_dense_replace": 1}}
OLDER = "main 2026-06-08"


def _deepseek(version: str = "auto", **given: Any) -> Report:
    options = {"dispatcher": "hybridep", "fake_balanced_gate": True}
    return _ran({"dp_shard": 4, "ep": 4}, **{"model": SMALL, "seq_len": 512, "options": options, "version": version,
                                           "loss": "masked"} | given)


def test_deepseek_runs_with_its_experts_over_the_ranks() -> None:
    report = _deepseek()
    assert report.status == "ok", report.problems
    assert report.ranks[0].at_rest["routed_experts"].num_params == 2 * 2 * 3 * 256 * 128
    told = {a.what: a.value for a in report.assumptions if a.kind == "assumed"}
    assert told["framework_options.fake_balanced_gate"] == "the gate's weights are placed all the same"
    assert "cuDNN" in told["attention"]


def test_the_snapshot_holds_the_logits_while_backward_runs() -> None:
    release, snapshot = (_deepseek(version).ranks[0].peak for version in ("0.7.0", OLDER))
    assert release is not None
    assert snapshot is not None
    # 2 bytes a logit, and a reciprocal root for each row of 13 norms (four a layer, and the last)
    assert snapshot.by_phase["backward"] - release.by_phase["backward"] == 2 * 512 * 1024 + 13 * 4 * 512


@pytest.mark.parametrize(("mesh", "given", "status", "told"), [
    ({"dp_shard": 4}, {}, "error", "not yet: automodel's deepseek_v3 without expert parallelism"),
    ({"dp_shard": 2, "ep": 2, "tp": 2}, {}, "illegal", "DeepseekV3ForCausalLM has no TP plan"),
    ({"dp_shard": 2, "tp": 2}, {"model": "qwen3-30b-a3b"}, "illegal", "Qwen3MoeForCausalLM has no TP plan"),
    ({"dp_shard": 2}, {"model": {"config": "qwen3-30b-a3b", "overrides": {"tie_word_embeddings": True}}}, "illegal",
     "Qwen3MoeForCausalLM has separate input and output embeddings"),
    ({"dp_shard": 4, "ep": 2}, {"model": small.TINY, "version": OLDER}, "error", "with other models than deepseek_v3")])
def test_what_of_it_is_not_served(mesh: dict[str, int], given: dict[str, Any], status: str, told: str) -> None:
    report = _ran(mesh, **{"model": SMALL} | given)
    assert report.status == status
    assert told in report.problems[0].message


def test_gpipe_keeps_every_microbatch_and_sends_as_much() -> None:
    """Stage 0 of two has two microbatches in flight under 1F1B, six under GPipe."""
    plain, gpipe = (_ran({"pp": 2, "dp_shard": 2}, microbatches=6, pipeline={"schedule": name}, seq_len=1024)
                    for name in ("1f1b", "gpipe"))
    assert plain.time is not None
    assert gpipe.time is not None
    first, other = plain.ranks[0], gpipe.ranks[0]
    assert first.peak is not None
    assert other.peak is not None
    assert other.peak.by_category["activation"] > 2 * first.peak.by_category["activation"]
    sent = [[(row.phase, row.wire_bytes) for row in rank.traffic if row.axis == "pp"] for rank in (first, other)]
    assert sent[0] == sent[1] != []
    assert first.end_bytes == other.end_bytes


def test_virtual_stages_run_interleaved_and_send_more() -> None:
    plain, virtual = (_ran({"pp": 2}, microbatches=4, pipeline={"virtual_stages": count}) for count in (1, 2))
    assert (plain.status, virtual.status) == ("ok", "ok"), virtual.problems
    sent = [sum(row.wire_bytes for row in report.ranks[0].traffic if row.axis == "pp") for report in (plain, virtual)]
    assert sent[1] > 2 * sent[0] > 0  # the first rank also takes what the last has between its two stages
    refused = _ran({"pp": 2}, microbatches=4, pipeline={"virtual_stages": 2, "schedule": "gpipe"})
    assert refused.status != "ok"


# ---- optimizers of 8 bits --------------------------------------------------------------------------------------------
def _held(**optimizer: Any) -> tuple[int, int, int]:
    """(optimizer at rest, paged, elements) of a model alone on its GPU."""
    report = _ran({}, model="llama-tiny", optimizer=optimizer)
    assert report.status == "ok", report.problems
    rank = report.ranks[0]
    assert rank.peak is not None
    parts = rank.at_rest.values()
    return (sum(p.optimizer_bytes for p in parts), rank.peak.outside.get("paged_states", 0),
            sum(p.num_params for p in parts))


def test_bitsandbytes_keeps_a_scale_for_each_block_and_small_tensors_in_fp32() -> None:
    states, paged, numel = _held(moments="int8")
    norms = 9 * 256
    matrices = numel - norms
    assert states == 2 * (matrices + 4 * matrices // 256 + 4 * norms)
    assert paged == 0
    assert _held(implementation="bitsandbytes")[0] == 8 * numel


def test_paged_states_are_on_the_device_and_not_in_torchs_allocator() -> None:
    """Those of 100,000 values and more; scales are ordinary tensors (bitsandbytes 0.50.2 get_state_buffer)."""
    resting, large = _held(moments="int8"), 4 * 3 * 688 * 256 + 2 * 1000 * 256
    assert _held(moments="int8", paged=True) == (resting[0] - 2 * large, 2 * large, resting[2])
    assert _held(implementation="bitsandbytes", paged=True) == (8 * (resting[2] - large), 8 * large, resting[2])


@pytest.mark.parametrize(("mesh", "optimizer", "status", "told"), [
    ({}, {"implementation": "bitsandbytes", "moments": "bf16"}, "illegal", "optimizer bits not supported: bf16"),
    ({"dp_shard": 2}, {"implementation": "bitsandbytes"}, "illegal", "does not have a sharding strategy"),
    ({"dp_shard": 2}, {"paged": True}, "error", "paged states of torchao")])
def test_what_is_refused_of_them(mesh: dict[str, int], optimizer: dict[str, Any], status: str, told: str) -> None:
    report = _ran(mesh, optimizer=optimizer)
    assert report.status == status
    assert told in report.problems[0].message


def test_attention_is_tes_unless_told_otherwise() -> None:
    """Transformers' own layers run torch's, and have no such option."""
    def kernels(**given: Any) -> str:
        return small.prepared("automodel", {"dp_shard": 2}, **given)[1].libraries.attention
    assert (kernels(), kernels(options={"attn": "te"}), kernels(options={"attn": "sdpa"})) == ("attention",) * 3
    assert kernels(options={"attn": "sdpa", "sdpa_backend": "flash"}) == "attention_flash2"
    asked = small.scenario("automodel", {"dp_shard": 2}, model="llama-tiny", options={"attn": "te"})
    report = simulate(asked.model_copy(update={"implementation": "hf"}))
    assert "attn: changes nothing in transformers' layers" in report.problems[0].message


@pytest.mark.parametrize(("given", "kind", "told"), [
    ({"implementation": "automodel"}, IllegalLayout, "custom implementations do not support BnB quantization natively"),
    ({"model": "qwen3-30b-a3b"}, NotYet, "qlora of a model with experts"),
    ({"precision": {"params": "fp32"}}, NotYet, "beside parameters of another type"),
    ({"options": {"bnb_4bit_quant_storage": "uint8"}}, NotYet, "columns of bytes under automodel"),
    ({"options": {"bnb_4bit_quant_storage": "float32"}}, IllegalLayout, "would be cast to bf16"),
    ({"quantization": {"format": "nf4", "block_size": 128}}, IllegalLayout, "BitsAndBytesConfig has no such setting")])
def test_a_packed_base_is_transformers_and_of_16_bits(given: dict[str, Any], kind: type[RankscopeError],
                                                      told: str) -> None:
    with pytest.raises(kind, match=told):
        small.prepared("automodel", {"dp_shard": 2}, **({"model": "llama-tiny", "method": "qlora"} | given))


def test_transformers_own_replay_over_a_frozen_base_needs_a_gradient_of_the_embedding() -> None:
    """0.7.0 calls gradient_checkpointing_enable for one rank alone; of several it wraps each layer."""
    for ranks, recompute, wanted in ((1, "full", True), (1, "none", False), (2, "full", False)):
        _, table = small.prepared("automodel", {"dp_shard": ranks}, model="llama-tiny", method="lora",
                                  implementation="hf", recompute=recompute)
        assert table.options.embeddings_require_grad == wanted


@pytest.mark.parametrize(("version", "holders"), [("auto", True), ("0.4.0", False), ("0.3.0", False)])
def test_older_releases_keep_all_parameters_of_a_layer_together(version: str, holders: bool) -> None:
    """`_fp32_params` came with 4bdfc405c; before, A_log and its like have the type of all others."""
    mesh = {"dp_shard": 2, "ep": 2}
    _, table = small.prepared("automodel", mesh, version=version)
    assert any(unit.name.endswith("_fp32_params") for unit in table.units) is holders
    plan = small.plan_of("automodel", mesh, version=version)
    stored = {placed.policy.at_rest.dtype for kind in plan.kinds for placed in kind
              if placed.spec.name.endswith("A_log")}
    assert stored == {"fp32" if holders else "bf16"}
    assert _ran(mesh, version=version).status == "ok"
