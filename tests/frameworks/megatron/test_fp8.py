"""Fp8 under Megatron: its layers and weights, the buffers stored with them, and refusals with their rules."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.megatron.flat_parameters import rank_buffers
from simcore.frameworks.setup import prepare
from simcore.memory.band import layout_class
from simcore.placement.plan import Placed, place
from simcore.results.report import Report
from simcore.simulate import simulate

LLAMA: dict[str, Any] = {"config": "llama-tiny", "overrides": {
    "hidden_size": 256, "vocab_size": 1024, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": False}}
LAYER = 256 * (3 * 256) + 256 * 256 + 256 * (2 * 512) + 512 * 256
"""Elements of the weights of a layer's four linears."""
EVERY = {"first_last_layers_bf16": False}
PLAIN = {"fp8_param_gather": False, **EVERY}


def _given(mesh: dict[str, int] | None = None, options: dict[str, Any] | None = None, model: Any = LLAMA,
           topology: str = "dgx-h100", **training: Any) -> Any:
    asked = small.scenario("megatron", mesh, model=model, options=options, precision={"compute": "fp8"}, **training)
    return asked.model_copy(update={"topology": topology})


def _ran(*given: Any, **training: Any) -> Report:
    return simulate(_given(*given, **training))


def _layer(number: int, mesh: dict[str, int] | None = None, options: dict[str, Any] | None = None,
           **given: Any) -> dict[str, Placed]:
    """Tensors of one of the four layers by name; the embedding is number 0."""
    job, table = prepare(_given(mesh, options, **given))
    plan = place(job.graph, job.mesh, table, 0)
    return {placed.spec.name: placed for placed in plan.of_layer(number)}


def _refused(status: str, told: str, options: dict[str, Any] | None = None, mesh: dict[str, int] | None = None,
             **given: Any) -> None:
    report = _ran(mesh, options, **given)
    assert report.status == status, report.problems
    assert told in report.problems[0].message
    assert bool(report.problems[0].rule) == (status == "illegal")


def _buffers(placed: dict[str, Placed]) -> dict[str, int]:
    return {name: one.local for name, one in placed.items() if one.spec.is_buffer}


# ---- weights ---------------------------------------------------------------------------------------------------------
def test_weights_in_fp8_take_a_byte_and_their_columns_another() -> None:
    placed = _layer(1, options=EVERY)
    weights = [one for name, one in placed.items() if name.endswith("linear_fc1.weight")]
    assert [one.rest_bytes for one in weights] == [256 * 1024]
    assert weights[0].policy.in_use.dtype == "bf16"
    assert placed["mlp.linear_fc1.layer_norm_weight"].rest_bytes == 2 * 256
    buffers = _buffers(placed)
    assert buffers["mlp.linear_fc1.weight.scale_inv"] == 4
    assert sum(buffers.values()) == LAYER + 4 * 4 + 4 * 4  # columns with their scale, the rows' scale


def test_masters_and_gradients_are_those_of_16_bits() -> None:
    eight, sixteen = _layer(1, options=EVERY), small.plan_of("megatron", model=LLAMA).of_layer(1)
    assert [one.states for one in eight.values() if not one.spec.is_buffer] == [one.states for one in sixteen]


def test_blackwell_needs_no_columns_of_tensors_with_one_scale() -> None:
    assert sum(_buffers(_layer(1, options=EVERY, topology="gb200-nvl72")).values()) == 4 * 4
    blocks = _layer(1, options=EVERY | {"fp8_recipe": "mxfp8"}, topology="gb200-nvl72")
    assert sum(size for name, size in _buffers(blocks).items() if "scale_inv" in name) == LAYER // 32
    assert sum(size for name, size in _buffers(blocks).items() if "columns" in name) == LAYER + LAYER // 32


def test_copies_of_16_bit_weights_last_unless_told_not_to() -> None:
    assert sum(_buffers(_layer(1, options=PLAIN)).values()) == 2 * (LAYER + 4 * 4)
    assert _buffers(_layer(1, options=PLAIN | {"disable_parameter_transpose_cache": True})) == {}
    assert _layer(1, options=PLAIN)["mlp.linear_fc1.weight"].rest_bytes == 2 * 256 * 1024


def test_blocks_of_weights_are_those_of_a_ranks_part() -> None:
    """fc1 at tp 2: 512 x 256, so 4 x 2 blocks; 2 padded to 4 along rows, 4 x 2 the other way round."""
    buffers = _buffers(_layer(1, {"tp": 2}, PLAIN | {"fp8_recipe": "blockwise"}))
    assert buffers["mlp.linear_fc1.weight.fp8"] == 512 * 256 + 4 * 4 * 4
    assert buffers["mlp.linear_fc1.weight.fp8_columns"] == 512 * 256 + 4 * 2 * 4


def test_experts_weights_are_copied_for_local_experts_alone() -> None:
    model = {"config": "nemotron-3-tiny", "overrides": {}}
    found = [_layer(at, {"dp_shard": 2, "ep": 2}, PLAIN, model=model) for at in range(1, 6)]
    fc1 = next(layer for layer in found if "mlp.experts.linear_fc1.weight" in layer)
    weight, copy = fc1["mlp.experts.linear_fc1.weight"], fc1["mlp.experts.linear_fc1.weight.fp8"]
    assert copy.local == weight.local + 4 * weight.used_copies


def test_delayed_scaling_keeps_a_history_of_five_maxima() -> None:
    given = {"fp8_recipe": "delayed", "fp8_amax_history_len": 16}
    history = {name: size for name, size in _buffers(_layer(1, options=given)).items() if "amax" in name}
    assert list(history.values()) == [5 * 4 * 17] * 4


def test_formats_have_buffers_of_their_own() -> None:
    job, table = prepare(_given({"dp_shard": 2}, EVERY))
    plan = place(job.graph, job.mesh, table, 0)
    sizes = {one.dtype: int((one.flat.ends - one.flat.starts).sum()) for one in rank_buffers(plan)}
    assert sizes["fp8"] == 4 * LAYER
    assert sizes["bf16"] == 2 * 1024 * 256 + 9 * 256


@pytest.mark.parametrize(("recipe", "topology", "width"), [("tensorwise", "dgx-h100", 1), ("mxfp8", "gb200-nvl72", 2)])
def test_weights_are_gathered_as_they_are_stored(recipe: str, topology: str, width: int) -> None:
    """But mxfp8: through the buffer of the gradients, in 16 bits."""
    report = _ran({"dp_shard": 2}, EVERY | {"fp8_recipe": recipe}, topology=topology)
    sent = sum(one.payload_bytes for one in report.ranks[0].traffic if one.collective == "all_gather")
    assert sent == width * 4 * LAYER + 2 * (2 * 1024 * 256 + 9 * 256)


def test_mxfp8_leaves_the_others_buffer_unused() -> None:
    buffers = _buffers(_layer(0, options={"fp8_recipe": "mxfp8"}, topology="gb200-nvl72"))
    assert buffers == {"embedding.word_embeddings.weight.param_buffer": 1024 * 256}
    frozen = _layer(0, options={"fp8_recipe": "mxfp8"}, topology="gb200-nvl72", method="lora")
    assert _buffers(frozen) == {}


@pytest.mark.parametrize(("model", "tp"), [(LLAMA, 2), ({"config": "nemotron-3-tiny", "overrides": {}}, 1)])
def test_frozen_weights_are_stored_in_fp8_and_adapters_in_bf16(model: dict[str, Any], tp: int) -> None:
    given: dict[str, Any] = {"method": "lora", "lora": {"rank": 8}}
    report = _ran({"tp": tp}, EVERY, model, **given)
    assert report.status == "ok", report.problems
    rest = report.ranks[0].at_rest
    base = simulate(small.scenario("megatron", {"tp": tp}, model=model, **given)).ranks[0].at_rest
    assert rest["adapters"] == base["adapters"]
    assert rest["attention"].num_params == base["attention"].num_params
    assert 0.5 <= rest["attention"].params_bytes / base["attention"].params_bytes < 0.51


# ---- layers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("options", "in_fp8"), [
    ({}, [2, 3]), (EVERY, [1, 2, 3, 4]), ({"num_layers_at_start_in_bf16": 2}, [3]),
    ({"num_layers_at_end_in_bf16": 0}, [2, 3, 4]), ({"fp8_recipe": "delayed"}, [1, 2, 3, 4])])
def test_first_and_last_layers_stay_in_bf16(options: dict[str, Any], in_fp8: list[int]) -> None:
    job, _ = prepare(_given(options=options))
    assert [layer.index for layer in job.graph.layers if job.graph.kinds[layer.kind].fp8] == in_fp8
    stored = {at for at in range(7) for spec in job.graph.tensors[job.graph.layers[at].kind] if spec.stored == "fp8"}
    assert stored == set(in_fp8)


def test_multi_token_prediction_is_always_in_fp8() -> None:
    model = {"config": "deepseek-v3", "overrides": {
        "hidden_size": 512, "vocab_size": 1024, "intermediate_size": 512, "num_hidden_layers": 4,
        "first_k_dense_replace": 1, "num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": 256,
        "kv_lora_rank": 128, "n_routed_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 256,
        "mtp_num_layers": 1}}
    job, _ = prepare(_given(model=model))
    assert [kind.name for kind in job.graph.kinds if kind.fp8 and kind.block is not None] == ["mtp"]
    last = job.graph.layers[4]
    assert not job.graph.kinds[last.kind].fp8


def test_fp8_keeps_less_and_computes_faster() -> None:
    wide = {"config": "llama-tiny", "overrides": {**LLAMA["overrides"], "hidden_size": 4096,
                                                  "intermediate_size": 14336, "head_dim": 1024}}
    given = {"seq_len": 4096, "options": EVERY, "model": wide}
    eight = _ran(**given)
    sixteen = simulate(small.scenario("megatron", model=wide, seq_len=4096))
    kept = [report.ranks[0].peak.by_category["activation"] for report in (eight, sixteen) if report.ranks[0].peak]
    assert kept[0] < 0.9 * kept[1]
    assert eight.time is not None
    assert sixteen.time is not None
    passes = [time.forward_s + time.backward_s for time in (eight.time, sixteen.time)]
    assert passes[0] < 0.8 * passes[1]


def test_bands_of_fp8_are_their_own() -> None:
    assert layout_class(*prepare(_given())) == "resident, dense, full, fp8"
    assert layout_class(*small.prepared("megatron", model=LLAMA)) == "resident, dense, full"


def test_what_is_derived_is_told() -> None:
    told = {one.what: one for one in _ran(None, {"fp8_recipe": "delayed"}).assumptions}
    assert told["fp8 linears"].kind == "derived"
    assert "delayed" in told["fp8 linears"].value
    assert told["framework_options.fp8_param_gather"].value == "true"


def test_attention_in_fp8_keeps_as_much() -> None:
    """With mxfp8 on main alone; core 0.16.1 hands the setting on with one scale a tensor."""
    given: dict[str, Any] = {"topology": "gb200-nvl72", "version": "main 2026-08-22"}
    eight = {"fp8_recipe": "mxfp8"}
    asked, without = (_ran(None, eight | more, **given) for more in ({"fp8_dot_product_attention": True}, {}))
    assert {one.what: one.kind for one in asked.assumptions}["fp8_dot_product_attention"] == "assumed"
    assert asked.ranks == without.ranks
    kernels = [{one.dtype: one.flops for one in report.time.kernels if one.kernel == "attention"}
               for report in (asked, without) if report.time]
    assert kernels[0]["fp8"] == sum(kernels[1].values()) - kernels[0].get("bf16", 0) > 0
    assert set(kernels[1]) == {"bf16"}
    _refused("error", "with fp8_recipe mxfp8", eight | {"fp8_dot_product_attention": True}, topology="gb200-nvl72")


# ---- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("options", "told"), [
    ({"fp8_recipe": "delayed", "first_last_layers_bf16": True}, "Delayed scaling does not support first / last layer"),
    ({"num_layers_at_start_in_bf16": 5}, "must be between 0 and number of layers per pipeline stage (4)"),
    ({"moe_router_padding_for_quantization": True, "moe_token_dispatcher_type": "allgather"}, "does not support"),
    ({"use_distributed_optimizer": False}, "--fp8-param-gather only supported with distributed optimizer"),
    ({"fp8_recipe": "mxfp8"}, "device compute capability 10.0 or higher required")])
def test_what_megatron_refuses(options: dict[str, Any], told: str) -> None:
    _refused("illegal", told, options)


@pytest.mark.parametrize(("options", "told"), [
    ({"fp8_recipe": "custom"}, "fp8_recipe custom"),
    ({"fp8_recipe": "blockwise", "fp8_dot_product_attention": True}, "with fp8_recipe blockwise"),
    ({"TransformerEngine": "1.11"}, "but for adapters of dense models"),
    ({"fp8_recipe": "delayed", "TransformerEngine": "1.11"}, "but for adapters of dense models"),
    ({"fp8_wgrad": False}, "fp8_wgrad: False"), ({"transformer_impl": "local"}, "local layers with fp8"),
    ({"fp8_recipe": "delayed", "use_precision_aware_optimizer": True}, "with fp8_recipe delayed")])
def test_what_is_not_modelled_names_its_recipe(options: dict[str, Any], told: str) -> None:
    _refused("error", told, options)


def test_older_devices_and_discarded_inputs_of_delayed_scaling_are_refused() -> None:
    _refused("error", "does not compute in fp8; it has fp32, tf32, bf16, fp16", topology="dgx-a100")
    _refused("illegal", "device compute capability 9.0 or higher required", {"fp8_recipe": "blockwise"},
             topology="l40s")
    _refused("illegal", "layernorm: Delayed scaling does not support", {"fp8_recipe": "delayed"},
             recompute=["layernorm"])


def test_mxfp8_weights_go_through_the_gradients_buffer() -> None:
    _refused("illegal", "must be set to True", {"fp8_recipe": "mxfp8", "reuse_grad_buf_for_mxfp8_param_ag": False},
             topology="gb200-nvl72")


@pytest.mark.parametrize(("options", "told"), [
    ({"fp8_recipe": "rowwise"}, "fp8_recipe: expected 'tensorwise' or 'delayed'"),
    ({"fp8_amax_history_len": 0}, "fp8_amax_history_len: expected int"), ({"fp8_format": "e5m2"}, "expected 'e4m3'")])
def test_wrong_words_are_told(options: dict[str, Any], told: str) -> None:
    report = _ran(None, options)
    assert report.status == "error"
    assert told in report.problems[0].message


def test_options_of_fp8_need_fp8() -> None:
    report = simulate(small.scenario("megatron", options={"fp8_recipe": "delayed"}))
    assert report.status == "illegal"
    assert "it needs training.precision.compute: fp8" in report.problems[0].message


def test_shapes_must_fit_8_bit_products() -> None:
    odd = {"config": "llama-tiny", "overrides": {**LLAMA["overrides"], "intermediate_size": 520}}
    _refused("illegal", "mlp.linear_fc2.weight is 256 x 520", EVERY, model=odd)
    _refused("illegal", "60 tokens over tp 1", EVERY, seq_len=60)
    assert _ran(None, EVERY, seq_len=72).status == "ok"
    _refused("illegal", "72 tokens over tp 2", EVERY, {"tp": 2}, seq_len=72)
    assert _ran({"tp": 2}, EVERY, seq_len=72, sequence_parallel=False).status == "ok"
    _refused("illegal", "72 tokens over tp 1: mxfp8", EVERY | {"fp8_recipe": "mxfp8"}, seq_len=72,
             topology="gb200-nvl72")


@pytest.mark.parametrize(("options", "size"), [(EVERY, 6 + 2 * 4), ({}, 6 + 2 * 4 + 20)])
def test_user_buffers_gather_bytes(options: dict[str, Any], size: int) -> None:
    """Layers in bf16, if others are in fp8, have a second set of user buffers."""
    peak = _ran({"tp": 2}, options | {"tp_comm_overlap": True}).ranks[0].peak
    assert peak is not None
    assert peak.outside["workspace"] == size * 64 * 256


def test_blocks_have_no_user_buffers() -> None:
    _refused("illegal", "Unsupported quantizer for Userbuffers: fp8_recipe blockwise",
             {"fp8_recipe": "blockwise", "tp_comm_overlap": True}, {"tp": 2})


# ---- nvfp4 -----------------------------------------------------------------------------------------------------------
MAIN: dict[str, Any] = {"framework_version": "main 2026-08-22"}


def _fp4(mesh: dict[str, int] | None = None, options: dict[str, Any] | None = None, topology: str = "gb200-nvl72",
         **asked: Any) -> Any:
    given = small.scenario("megatron", mesh, model=LLAMA, options=options, precision={"compute": "fp4"})
    return given.model_copy(update={"topology": topology, **asked})


def _fp4_layer(options: dict[str, Any] | None = None, **asked: Any) -> dict[str, Placed]:
    job, table = prepare(_fp4(options=options, **asked))
    return {placed.spec.name: placed for placed in place(job.graph, job.mesh, table, 0).of_layer(1)}


def test_weights_in_bf16_have_a_lasting_copy_in_fp4() -> None:
    placed = _fp4_layer()
    assert placed["mlp.linear_fc1.weight"].rest_bytes == 2 * 256 * 1024
    assert sum(_buffers(placed).values()) == 2 * (LAYER // 2 + LAYER // 16 + 4 * 4)  # rows and columns


def test_rows_are_the_parameter_if_main_is_asked() -> None:
    placed = _fp4_layer(**MAIN)
    assert placed["mlp.linear_fc1.weight"].rest_bytes == 256 * 1024 // 2
    assert sum(_buffers(placed).values()) == LAYER // 2 + 2 * (LAYER // 16 + 4 * 4)
    assert placed["mlp.linear_fc1.layer_norm_weight"].rest_bytes == 2 * 256
    kept = _fp4_layer({"fp4_param_gather": False}, **MAIN)
    assert kept["mlp.linear_fc1.weight"].rest_bytes == 2 * 256 * 1024


def test_parameters_in_fp4_are_gathered_as_they_lie() -> None:
    gathers = {params: {row.dtype: row.payload_bytes for row in simulate(_fp4(
        {"dp_shard": 2}, {"fp4_param_gather": params}, **MAIN)).ranks[0].traffic if row.collective == "all_gather"}
        for params in (True, False)}
    assert gathers[True]["fp4"] == 4 * LAYER // 2
    assert gathers[False]["bf16"] - gathers[True]["bf16"] == 2 * 4 * LAYER


def test_layers_in_bf16_are_those_of_fp8() -> None:
    ends: dict[str, Any] = {"first_last_layers_bf16": True, "num_layers_at_start_in_bf16": 0,
                            "num_layers_at_end_in_bf16": 4}
    job, table = prepare(_fp4(options=ends))
    assert not any(placed.spec.name.endswith("fp4") for layer in range(6)
                   for placed in place(job.graph, job.mesh, table, 0).of_layer(layer))


def test_steps_in_fp4_are_told_and_timed() -> None:
    report = simulate(_fp4())
    assert report.status == "ok"
    assert any(one.what == "fp4 linears" and one.value.startswith("nvfp4") for one in report.assumptions)
    assert report.time is not None
    assert {one.kernel: one.dtype for one in report.time.kernels if one.dtype == "fp4"} == {"gemm": "fp4"}


@pytest.mark.parametrize(("status", "told", "given"), [
    ("error", "does not compute in fp4", {"topology": "dgx-h100"}),
    ("illegal", "core 0.16.1 has no buffers for parameters in fp4", {"options": {"fp4_param_gather": True}}),
    ("illegal", "it needs training.precision.compute: fp8", {"options": {"fp8_recipe": "mxfp8"}}),
    ("illegal", "fp4_recipe nvfp4", {"options": {"tp_comm_overlap": True}, "mesh": {"tp": 2}}),
    ("error", "a quantizer factory is code", {"options": {"fp4_recipe": "custom"}})])
def test_what_fp4_does_not_take(status: str, told: str, given: dict[str, Any]) -> None:
    report = simulate(_fp4(**given))
    assert report.status == status
    assert told in report.problems[0].message


def test_other_layers_have_no_fp4() -> None:
    report = simulate(small.scenario("fsdp2", model=LLAMA, precision={"compute": "fp4"}).model_copy(
        update={"topology": "gb200-nvl72"}))
    assert "not yet: compute in fp4" in report.problems[0].message


def test_weights_of_linears_in_16_bits_have_no_copies() -> None:
    recipes = {"*.linear_proj": "bf16", "*.linear_fc2": "mxfp8"}
    found = _buffers(_fp4_layer({"quant_recipe": recipes}))
    assert {name.partition(".weight.")[0].rpartition(".")[2] for name in found} == {
        "linear_qkv", "linear_fc1", "linear_fc2"}
    fc2 = {name.rpartition(".")[2]: size for name, size in found.items() if "linear_fc2" in name}
    assert fc2 == {"fp8": 512 * 256 * 33 // 32, "fp8_columns": 512 * 256 * 33 // 32}


@pytest.mark.parametrize(("told", "given"), [
    ("served: bf16, tensorwise, blockwise, mxfp8, nvfp4", {"options": {"quant_recipe": {"*": "int8"}}}),
    ("recipes of single linears where", {"options": {"quant_recipe": {"*": "bf16"}, "fp4_param_gather": True}, **MAIN}),
    ("quant_recipe: expected dict", {"options": {"quant_recipe": "file.yaml"}})])
def test_recipes_of_linears_that_are_refused(told: str, given: dict[str, Any]) -> None:
    report = simulate(_fp4(**given))
    assert told in report.problems[0].message


# ---- the output head -------------------------------------------------------------------------------------------------
HEAD: dict[str, Any] = EVERY | {"fp8_recipe": "mxfp8", "fp8_output_proj": True}
BLACKWELL: dict[str, Any] = {"topology": "gb200-nvl72", "version": "main 2026-08-22"}


def _head(options: dict[str, Any], mesh: dict[str, int] | None = None) -> dict[str, Placed]:
    return _layer(6, mesh, options, **BLACKWELL)


@pytest.mark.parametrize("params", [True, False])
def test_the_heads_parameter_stays_in_16_bits_beside_copies_in_8(params: bool) -> None:
    """Megatron-LM d98e8a64 core/models/gpt/gpt_model.py:272: it is built outside of fp8_model_init."""
    placed = _head(HEAD | {"fp8_param_gather": params})
    name, size = "output_layer.weight", 1024 * 256
    assert placed[name].rest_bytes == 2 * size
    kept = {"fp8": size + size // 32, "fp8_columns": size + size // 32}
    if params:
        kept["param_buffer"] = size
    assert _buffers(placed) == {f"{name}.{kind}": count for kind, count in kept.items()}
    assert {one for one in _buffers(_head(HEAD | {"fp8_output_proj": False})) if ".fp8" in one} == set()


@pytest.mark.parametrize(("told", "status", "options", "given"), [
    ("requires fp8_recipe='mxfp8'", "illegal", HEAD | {"fp8_recipe": "tensorwise"}, {}),
    ("core 0.16.1 has no such option", "illegal", HEAD, {"version": "core 0.16.1 + bridge 0.3.1"}),
    ("whose weight is cast in each pass", "error", HEAD | {"disable_parameter_transpose_cache": True}, {}),
    ("beside adapters", "error", HEAD, {"method": "lora", "lora": {"rank": 8}}),
    ("skip_weight_param_allocation", "illegal", HEAD, {"model": LLAMA | {"overrides": LLAMA["overrides"] | {
        "tie_word_embeddings": True}}})])
def test_heads_that_cannot_be_in_8_bits(told: str, status: str, options: dict[str, Any], given: dict[str, Any]) -> None:
    _refused(status, told, options, **{**BLACKWELL, **given})


def test_a_head_in_8_bits_takes_less_time_for_more_bytes() -> None:
    """Three products of 256 x 1,024 in 8 bits; the weight twice, less what the bf16 input was kept with."""
    sixteen, eight = (_ran({"tp": 2}, HEAD | {"fp8_output_proj": on}, **BLACKWELL) for on in (False, True))
    assert (sixteen.status, eight.status) == ("ok", "ok")
    held = [report.ranks[0].peak.by_category["buffer"] for report in (sixteen, eight) if report.ranks[0].peak]
    assert held[1] - held[0] == 2 * (1024 * 256 // 2) * 33 // 32
