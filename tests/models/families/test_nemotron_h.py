"""Nemotron-H: the published model's parameters by component, both spellings of the pattern, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError, NotYet
from simcore.models.blocks import Attention, Embedding, Mamba2, Moe
from simcore.models.graph import ModelGraph, build, model_config
from simcore.results.report import Report
from simcore.simulate import place, simulate

NANO = {
    "routed_experts": 29_374_808_064, "shared_experts": 458_981_376, "mamba": 891_070_784, "attention": 140_378_112,
    "router": 7_913_472, "norms": 142_464, "embedding": 352_321_536, "lm_head": 352_321_536,
}


def config(**changed: Any) -> dict[str, Any]:
    return {**model_config("nemotron-3-tiny", None, "model"), **changed}


def graph(**changed: Any) -> ModelGraph:
    return build({k: v for k, v in config(**changed).items() if v is not None}, "hf")


@pytest.mark.parametrize("implementation", ["automodel", "hf", "megatron"])
def test_the_published_model_by_component(implementation: str) -> None:
    nano = build(model_config("nemotron-3-nano-30b-a3b", None, "model"), implementation)
    assert {name: nano.count(name) for name in small.components(nano)} == NANO
    assert nano.count() == sum(NANO.values()) == 31_577_937_344
    assert (nano.num_blocks, len(nano.layers)) == (52, 56)


SUPER, ULTRA, SMALLEST = "nemotron-3-super-120b-a12b", "nemotron-3-ultra-550b-a55b", "nemotron-3-nano-4b"
COUNTS = {SUPER: 120_668_687_360, ULTRA: 549_308_968_960, SMALLEST: 3_973_556_832}
"""Published as 120B, 550B and 4B: the sums of the shapes that the configurations give."""


@pytest.mark.parametrize("implementation", ["automodel", "hf", "megatron"])
@pytest.mark.parametrize("preset", COUNTS)
def test_published_models_are_as_large_as_their_names_say(preset: str, implementation: str) -> None:
    assert build(model_config(preset, None, "model"), implementation).count() == COUNTS[preset]


def test_latent_experts_are_narrow_and_the_shared_one_is_not() -> None:
    """Counted by hand: 40 layers of 512 experts between 1,024 columns, two projections, a router that sees 4,096."""
    made = build(model_config(SUPER, None, "model"), "megatron")
    assert made.count("routed_experts") == 40 * 512 * 2 * 1024 * 2688
    assert made.count("latent_projections") == 40 * 2 * 4096 * 1024
    assert made.count("shared_experts") == 40 * 2 * 4096 * 5376
    assert made.count("router") == 40 * 512 * 4096


def test_a_module_of_predictions_is_shared_by_all_further_tokens() -> None:
    """An attention and a MoE layer, a projection of both halves, five norms."""
    made = build({**model_config(SUPER, None, "model"), "mtp_num_layers": 2}, "megatron")
    attention, experts = (2 * 32 + 2 * 2) * 128 * 4096, 512 * 2 * 1024 * 2688 + 2 * 4096 * (1024 + 5376) + 512 * 4096
    assert made.count("mtp") == attention + experts + 2 * 4096 * 4096 + 5 * 4096
    assert made.count() == COUNTS[SUPER] + made.count("mtp") == 123_611_012_096


def _printed_flops(preset: str, tokens: int, further: int) -> float:
    """GFLOP a token as Megatron-LM counts a hybrid (d98e8a64 `training/training.py`, hybrid_flops), Mamba 2h wide."""
    c = model_config(preset, None, "model")
    h, pattern = c["hidden_size"], c["hybrid_override_pattern"] + further * "*E"
    queries, share = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] / c["num_attention_heads"]
    mamba = 2 * h * (4 * h + 2 * c["n_groups"] * c["ssm_state_size"] + c["mamba_num_heads"]) + \
        14 * h * c["ssm_state_size"] + 4 * h * h
    latent = c.get("moe_latent_size", 0)
    experts = 4 * latent * c.get("moe_intermediate_size", 0) * c.get("num_experts_per_tok", 0) + \
        4 * h * (latent + c.get("moe_shared_expert_intermediate_size", 0))
    each = {"*": 4 * queries * (h + h * share) + 2 * tokens * queries, "M": mamba, "E": experts,
            "-": 4 * h * c["intermediate_size"]}
    return 3e-9 * float(sum(each[letter] for letter in pattern) + 2 * h * c["vocab_size"] * (1 + further))


@pytest.mark.parametrize(("preset", "tokens", "further", "told"), [
    (SUPER, 8192, 2, 84.727), (ULTRA, 8192, 2, 358.915), (SMALLEST, 4096, 0, 20.5555)])
def test_shapes_give_the_flops_that_runs_print(preset: str, tokens: int, further: int, told: float) -> None:
    """Printed TFLOP/s over tokens/s of published Bridge runs: 84.69-84.78, 360.6 (whole samples/s), 20.556."""
    assert _printed_flops(preset, tokens, further) == pytest.approx(told, rel=1e-5)


TWO_FURTHER = {"mtp_num_layers": 2}
SENT_BY_HYBRIDEP = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
MXFP8 = {"fp8_recipe": "mxfp8", "first_last_layers_bf16": False, "keep_mtp_spec_in_bf16": True,
         "moe_router_padding_for_quantization": True, **SENT_BY_HYBRIDEP}


def ran(preset: str, mesh: dict[str, int], topology: str, **given: Any) -> Report:
    """A layout of Megatron-Bridge's performance recipes of 2026-08."""
    model = {"config": preset, "overrides": given.pop("overrides", TWO_FURTHER)}
    return simulate(small.scenario("megatron", mesh, microbatches=2, model=model, topology=topology, seq_len=8192,
                                   version="main 2026-08-22", **given))


@pytest.mark.parametrize(("preset", "mesh", "topology"), [
    (SUPER, {"dp_shard": 64, "ep": 64, "etp": 1}, "dgx-b200"),
    (SUPER, {"dp_shard": 32, "tp": 2, "ep": 64, "etp": 1}, "gb200-nvl72"),
    (ULTRA, {"dp_shard": 128, "tp": 2, "ep": 64, "etp": 1}, "gb200-nvl72")])
def test_layouts_of_performance_recipes_run_in_mxfp8(preset: str, mesh: dict[str, int], topology: str) -> None:
    report = ran(preset, mesh, topology, options=MXFP8, precision={"compute": "fp8", "main_grads": "bf16"})
    assert report.status == "ok", report.problems
    rest = report.ranks[0].at_rest
    assert rest["routed_experts"].num_params * 64 == build(model_config(preset, None, "model"), "megatron").count(
        "routed_experts")
    assert rest["routed_experts"].params_bytes == rest["routed_experts"].num_params  # a byte each
    assert rest["latent_projections"].params_bytes == rest["latent_projections"].num_params
    assert rest["mtp"].params_bytes == 2 * rest["mtp"].num_params
    assert report.time is not None
    assert report.time.step_s > 0


def test_a_dense_hybrid_runs() -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 8}, microbatches=2, model=SMALLEST, seq_len=4096))
    assert report.status == "ok", report.problems
    assert report.ranks[0].at_rest["mlp"].num_params == 17 * 2 * 3136 * 12544


def test_latent_experts_run_under_automodel_and_are_refused_by_name_in_transformers_layers() -> None:
    asked: dict[str, Any] = {"model": {"config": SUPER, "overrides": {"num_hidden_layers": 2}}}
    for framework in ("fsdp2", "automodel"):
        assert small.plan_of(framework, {"dp_shard": 8}, **asked).at_rest()["latent_projections"].num_params == 2**20
    assert simulate(small.scenario("automodel", {"dp_shard": 8, "ep": 8}, **asked)).status == "ok"
    report = simulate(small.scenario("fsdp2", {"dp_shard": 8}, **asked))
    assert report.status == "error"
    assert "not yet: experts of a latent width" in report.problems[0].message


def test_letters_become_layers() -> None:
    tiny = graph()
    assert [tiny.kinds[layer.kind].name for layer in tiny.layers] == [
        "embedding", "mamba", "moe", "mamba", "attention", "moe", "final_norm", "head", "loss"]
    blocks = {kind.name: kind.branches[0].block for kind in tiny.kinds if kind.branches}
    assert blocks["mamba"] == Mamba2(256, 8, 32, 2, 32, 4, 64)
    assert blocks["attention"] == Attention(256, 4, 2, 64)
    assert blocks["moe"] == Moe(256, 8, 2, 128, 256)


@pytest.mark.parametrize("key", ["layers_block_type", "layer_types"])
@pytest.mark.parametrize("names", [["mamba", "moe", "mamba", "attention", "moe"],
                                   ["linear_attention", "moe", "linear_attention", "full_attention", "moe"]])
def test_the_names_of_newer_configurations_mean_the_letters(key: str, names: list[str]) -> None:
    new = graph(hybrid_override_pattern=None, **{key: names})
    assert new.architecture == graph().architecture


def test_fewer_layers_than_the_pattern_has() -> None:
    assert graph(num_hidden_layers=2).architecture.pattern == "ME"


def test_ten_thousand_layers_have_three_kinds() -> None:
    big = graph(hybrid_override_pattern="ME*M" * 2500, num_hidden_layers=10_000)
    assert big.num_blocks == 10_000
    assert len(big.kinds) == 7
    assert big.count("attention") == 2500 * graph().count("attention")


CASE = {"hybrid_override_pattern": "M-*", "normalization": "LayerNorm", "add_bias_linear": True,
        "mlp_hidden_act": "gelu", "position_embedding_type": "learned_absolute", "max_position_embeddings": 1024,
        "hidden_dropout": 0.1, "attention_dropout": 0.1, "tie_word_embeddings": True, "num_hidden_layers": 3}


def megatrons(**changed: Any) -> ModelGraph:
    return build(config(**{**CASE, **changed}), "megatron")


def test_a_hybrid_in_megatrons_words() -> None:
    """Counted by hand: hidden 256; Mamba 8 heads of 32, 2 groups of state 32; attention 4 and 2 heads of 64."""
    made, inner, ffn, positions = megatrons(), 8 * 32, config()["intermediate_size"], 1024
    assert made.count("embedding") == (config()["vocab_size"] + positions) * 256
    assert made.count("lm_head") == 0
    assert made.count("norms") == 4 * 2 * 256  # before each of three layers, and after; LayerNorm has two vectors
    convolved = inner + 2 * 2 * 32
    assert made.count("mamba") == (inner + convolved + 8) * 256 + 5 * convolved + 3 * 8 + inner + inner * 256
    assert made.count("mlp") == 2 * ffn * 256 + ffn + 256
    assert made.count("attention") == (4 + 2 * 2) * 64 * (256 + 1) + 4 * 64 * 256 + 256
    assert [kind.name for kind in made.kinds if kind.dropout] == ["embedding", "mamba", "mlp", "attention"]


def test_gates_and_rotations() -> None:
    gated = megatrons(mlp_hidden_act="swiglu", add_bias_linear=False, position_embedding_type="rope")
    assert gated.count("mlp") == 3 * config()["intermediate_size"] * 256
    assert gated.kinds[3].branches[0].block == Attention(256, 4, 2, 64, rotary=True, dropout=True)
    assert gated.kinds[0].block == Embedding(config()["vocab_size"], 256, rotary_dim=64)


PREDICTS = {"mtp_num_layers": 2, "mtp_hybrid_override_pattern": "*E", "mtp_use_repeated_layer": True}


def test_a_module_that_predicts_two_tokens_counts_once() -> None:
    """Two norms and a projection of both halves, an attention and a MoE layer with their norms, a final norm."""
    plain, repeated, apart = (build(config(**more), "megatron") for more in (
        {}, PREDICTS, {**PREDICTS, "mtp_use_repeated_layer": False}))
    layers = {name: plain.count(name) // 2 for name in ("routed_experts", "shared_experts", "router")}
    inner = sum(layers.values()) + plain.count("attention") + 2 * 256
    assert repeated.count("mtp") == inner + 3 * 256 + 2 * 256 * 256
    assert repeated.count() == plain.count() + repeated.count("mtp")
    assert apart.count("mtp") == 2 * repeated.count("mtp")
    assert repeated.num_blocks == plain.num_blocks


def test_a_published_configuration_names_the_tokens_itself() -> None:
    """Bridge's main takes them for mtp_num_layers, and one module for all of them."""
    published = {"num_nextn_predict_layers": 2, "mtp_hybrid_override_pattern": "*E"}
    assert build(config(**published), "megatron").count("mtp") == build(config(**PREDICTS), "megatron").count("mtp")
    apart = build(config(**published, mtp_use_repeated_layer=False), "megatron")
    assert apart.count("mtp") == 2 * build(config(**PREDICTS), "megatron").count("mtp")


@pytest.mark.parametrize(("changed", "told"), [
    ({"mtp_hybrid_override_pattern": None}, "mtp_hybrid_override_pattern: expected letters"),
    ({"mtp_hybrid_override_pattern": "EE"}, "two layers of a kind"), ({"normalization": "LayerNorm"}, "or LayerNorm")])
def test_modules_that_are_not_modelled(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        megatrons(**{**config(), **PREDICTS, **changed, "add_bias_linear": False, "mlp_hidden_act": "relu2"})


@pytest.mark.parametrize("code", ["hf", "automodel"])
@pytest.mark.parametrize(("changed", "told"), [
    ({**PREDICTS, "mtp_use_repeated_layer": False}, "by several modules"),
    ({"normalization": "LayerNorm"}, "LayerNorm"),
    ({"position_embedding_type": "rope"}, "rotary positions"), ({"hidden_dropout": 0.1}, "dropout"),
    ({"hybrid_override_pattern": "M-", "num_hidden_layers": 2, "mlp_hidden_act": "swiglu"}, "a gated MLP")])
def test_only_megatron_builds_other_hybrids(code: str, changed: dict[str, Any], told: str) -> None:
    assert build(config(**changed), "megatron").num_blocks
    with pytest.raises(NotYet, match=f"{told} .* only Megatron's have it"):
        build(config(**changed), code)


def test_transformers_ignores_a_tied_head() -> None:
    """`_tied_weights_keys = {}`: a weight of its own (tests/truth/models: nemotron-3-tiny-tied). Megatron ties."""
    tied = build(config(tie_word_embeddings=True), "hf")
    assert tied.count() == graph().count() == 2_504_496
    assert tied.count("lm_head") == 1024 * 256
    assert build(config(tie_word_embeddings=True), "megatron").count("lm_head") == 0
    report = place(small.scenario("fsdp2", {"dp_shard": 2}, model={
        "config": small.TINY, "overrides": {"tie_word_embeddings": True}}))
    (told,) = (a for a in report.assumptions if a.what == "model.tie_word_embeddings")
    assert told.value.startswith("is ignored")
    assert "_tied_weights_keys" in told.source


@pytest.mark.parametrize(("changed", "told"), [
    ({"hybrid_override_pattern": "MXE"},
     "hybrid_override_pattern: expected letters of M, E, * and -, got 'X' at layer 1"),
    ({"hybrid_override_pattern": ""}, "expected letters"),
    ({"hybrid_override_pattern": None}, "hybrid_override_pattern: expected a pattern"),
    ({"hybrid_override_pattern": None, "layer_types": ["mamba", "rnn"]}, "got 'rnn' at layer 1"),
    ({"num_hidden_layers": 6}, "num_hidden_layers: expected at most the pattern's 5 layers, got 6"),
    ({"n_groups": 3}, "n_groups: expected a divisor of 8 Mamba heads, got 3"),
    ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of 4 heads, got 3"),
    ({"num_experts_per_tok": 9}, "num_experts_per_tok: expected at most 8 experts, got 9"),
    ({"add_bias_linear": True}, "add_bias_linear: experts with biases are not modelled yet"),
    ({"mlp_hidden_act": "gelu"}, "mlp_hidden_act: experts other than relu2's"),
    ({"mlp_hidden_act": "tanh"}, "mlp_hidden_act: expected relu2 or gelu or swiglu, got 'tanh'"),
    ({"normalization": "BatchNorm"}, "normalization: expected RMSNorm or LayerNorm"),
    ({"position_embedding_type": "relative"}, "position_embedding_type: expected none or learned_absolute or rope"),
    ({"hidden_dropout": 2}, "hidden_dropout: expected a number from 0 to 1, got 2"),
    ({"moe_latent_size": 0}, "moe_latent_size: expected an integer from 1"),
    ({"hidden_size": 0}, "hidden_size: expected an integer from 1"), ({"vocab_size": None}, "vocab_size")])
def test_a_configuration_that_cannot_be_read_is_refused_by_field(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        graph(**changed)
    assert told in str(refused.value)
