"""torchtitan under FSDP2: what it refuses, sets and compiles."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

import small
from frameworks.fsdp2.test_table import gathered_bytes
from simcore.cli.sheets.first_screen import first_screen
from simcore.models.graph import build, model_config
from simcore.recipes.torchtitan.flavors import FLAVORS
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.simulation.simulation import legal_simulation


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
    ({"dp_shard": 2}, {"options": {"fp8_recipe": "rowwise"}}, "fp8_recipe: changes nothing without fp8"),
    ({"dp_shard": 2}, {"precision": {"compute": "fp8"}, "recompute": "full",
                       "options": {"compile": True, "fp8_recipe": "tensorwise", "fp8_all_gather": True}},
     "together with `recipe_name` is not supported"),
    ({"dp_shard": 2}, {"options": {"reshard_after_forward": 2}}, "reshard_after_forward: expected null or true"),
    ({"dp_shard": 2}, {"method": "lora"}, "torchtitan has no adapters"),
    ({"dp_shard": 4, "ep": 2}, {"model": "qwen3-30b-a3b", "routing": {"capacity_factor": 1.5}}, "no expert capacity"),
    ({"dp_shard": 2}, {"options": {"sync_gradients": "last"}}, "sync_gradients: expected 'every'"),
    ({"dp_shard": 2}, {"model": "mixtral-8x7b"}, "not yet: mixtral in the layers of torchtitan"),
    ({"dp_shard": 2, "tp": 2}, {"model": "qwen3-30b-a3b", "options": {"compile": True}}, "Qwen3-MoE beside compiled"),
    ({"dp_shard": 2, "tp": 2}, {"model": "llama-4-scout-text", "options": {"compile": True}},
     "compiled blocks of torchtitan's Llama 4 keep with tensor parallelism"),
    ({"dp_shard": 2, "cp": 2}, {"model": "qwen3-30b-a3b", "options": {"compile": True}}, "with context parallelism"),
    ({"dp_shard": 2}, {"model": "deepseek-v3", "options": {"compile": True, "attn": "flex"}},
     "DeepSeek V3 keep with latent attention and flex_attention"),
    ({"dp_shard": 2, "tp": 2, "cp": 2}, {"model": "qwen3-30b-a3b"}, "parallelism of torchtitan's Qwen3-MoE beside con"),
    ({"dp_shard": 2, "tp": 2, "etp": 2}, {"model": "qwen3-30b-a3b"}, "etp 2 changes nothing without expert parallel"),
    ({"dp_shard": 2, "tp": 4, "ep": 2, "etp": 2}, {"model": "qwen3-30b-a3b"}, "only support ETP=TP or ETP=1"),
    ({"dp_shard": 2, "tp": 4}, {"model": {"config": "qwen3-30b-a3b", "overrides": {"moe_intermediate_size": 720}}},
     "stride along 0 dim to be multiple of 16 bytes"),
    ({"dp_shard": 2, "tp": 4}, {"model": {"config": "deepseek-v2-lite", "overrides": {
        "hidden_size": 1280, "num_attention_heads": 10, "num_key_value_heads": 10}}}, "10 heads must be"),
    ({"dp_replicate": 2, "dp_shard": 2, "ep": 4}, {"model": "qwen3-30b-a3b"}, "2 ranks of a replica must be a mult"),
    ({"dp_shard": 320, "ep": 64}, {"model": "qwen3-30b-a3b"}, "uneven sharding on dim 1: 768 entries on 5 ranks"),
    ({"dp_shard": 4, "ep": 2}, {"model": "qwen3-30b-a3b", "options": {"prefetch": 1}}, "prefetch: changes nothing"),
    ({"dp_shard": 4, "ep": 2}, {"model": "qwen3-30b-a3b", "recompute": {"mode": "per_op"}, "options": {
        "keeps_exchange": False}}, "keeps_exchange: changes nothing without"),
    ({"dp_shard": 2, "cp": 2}, {"options": {"attn": "flex"}}, "not yet: flex_attention with context parallelism"),
    ({"dp_shard": 2, "cp": 2}, {"model": "deepseek-v2-lite", "options": {"attn": "flex"}}, "only supports SDPA attent"),
    ({"dp_shard": 2}, {"options": {"attn": "flex", "sdpa_backend": "flash"}}, "backend: changes nothing with attn"),
    ({"dp_shard": 2, "pp": 2}, {"model": "qwen3-8b", "microbatches": 4}, "qwen3 does not support pipelining"),
    ({"dp_shard": 2, "pp": 2}, {"model": "gpt-oss-20b", "microbatches": 4}, "gpt_oss does not support pipelining"),
    ({"dp_shard": 2, "cp": 2}, {"model": "gpt-oss-20b"}, "CP support for gpt-oss model is still in progress."),
    ({"dp_shard": 2}, {"model": "gpt-oss-20b", "options": {"attn": "sdpa"}}, "gpt-oss only support FlexAttention"),
    ({"dp_shard": 2, "tp": 2}, {"model": "gpt-oss-20b", "options": {"async_tp": True}}, "Async TP requires torch.comp"),
    ({"dp_shard": 2, "tp": 2}, {"model": "gpt-oss-20b", "options": {"async_tp": True, "compile": True}},
     "async_tp: changes nothing in GPT-OSS"),
    ({"dp_shard": 2}, {"model": "gpt-oss-20b", "options": {"sdpa_backend": "flash"}}, "sdpa_backend: changes nothing"),
    ({"dp_shard": 2}, {"model": "gpt-oss-20b", "options": {"repeat_kv": True}}, "repeat_kv: changes nothing in"),
    ({"dp_shard": 2, "tp": 2, "cp": 2}, {"model": "qwen3-8b"},
     "not yet: tensor parallelism of torchtitan's Qwen3 beside context parallelism"),
    ({"dp_shard": 2, "tp": 2}, {"model": "qwen3-8b", "options": {"compile": True}},
     "not yet: tensor parallelism of torchtitan's Qwen3 beside compiled blocks"),
    ({"dp_shard": 2, "tp": 2}, {"options": {"async_tp": True}}, "Async TP requires 'model' in --compile.components"),
    ({"dp_shard": 2, "tp": 2}, {"options": {"async_tp": True, "compile": True}},
     "not yet: asynchronous tensor parallelism without checkpointing"),
    ({"dp_shard": 2}, {"options": {"async_tp": True, "compile": True}, "recompute": "full"},
     "async_tp: changes nothing without tensor parallel"),
    ({"dp_shard": 2}, {"model": "nemotron-3-tiny"}, "not yet: nemotron_h in the layers of torchtitan"),
    ({"dp_shard": 2}, {"model": "deepseek-v2-lite", "precision": {"compute": "fp32"}}, "experts in fp32: torchtitan"),
    ({"dp_shard": 2}, {"loss": "hf"}, "not yet: hf under fsdp2"),
    ({"dp_shard": 2}, {"method": "lora", "lora": {"target_modules": ["wq"]}}, "torchtitan has no adapters"),
    ({"dp_shard": 2}, {"recompute": {"mode": "uniform", "num_layers": 2}}, "other checkpointing under torchtitan"),
    ({"dp_shard": 2}, {"recompute": {"mode": "every", "modules": ["mm"]}}, "layers are recomputed whole"),
    ({"dp_shard": 2}, {"recompute": {"mode": "per_op", "modules": ["mm"]}}, "another list of operators")])
def test_what_torchtitan_refuses(mesh: dict[str, int], given: dict[str, Any], told: str) -> None:
    report = _titan(mesh, **given)
    assert report.status != "ok"
    assert told in "; ".join(str(problem.message) for problem in report.problems)


def test_context_parallel_ranks_alone_share_parameters() -> None:
    assert _titan({"cp": 2}).status == "ok"


def test_defaults_are_torchtitan_s_own() -> None:
    autos = {a.what: a.value for a in _titan({"dp_shard": 4, "tp": 2}).assumptions}
    assert autos["training.optimizer.implementation"] == "fused"
    assert autos["training.precision.grad_reduce"] == "fp32"
    assert autos["framework_options.disable_loss_parallel"] == "false"


def test_always_gathers_norm_and_head_again() -> None:
    default, always = (_titan({"dp_shard": 4}, options=options) for options in ({}, {"reshard_after_forward": True}))
    assert gathered_bytes(always, "backward", False) > gathered_bytes(default, "backward", False)


def test_compiled_blocks_keep_less_and_a_compiled_loss_writes_no_copy_in_fp32() -> None:
    def after_loss(**options: Any) -> int:
        peak = _titan({"dp_shard": 4}, options, recompute={"mode": "per_op"}).ranks[0].peak
        assert peak is not None
        return peak.by_phase["loss"]

    assert after_loss(compile=True) < after_loss(compile="model") < after_loss()
    assert after_loss(compile=True) < after_loss(compile="loss") < after_loss()


def test_what_is_compiled_names_its_assumption() -> None:
    assert "framework_options.compile" in {a.what for a in _titan({"dp_shard": 4}, {"compile": True}).assumptions}


def test_products_beside_collectives_take_less_time_and_memory_of_two_pieces() -> None:
    plain, beside = (_titan({"dp_shard": 2, "tp": 2}, {"compile": True, "async_tp": asked}, recompute="full")
                     for asked in (False, True))
    assert plain.time is not None
    assert beside.time is not None
    assert beside.time.exposed_communication_s < plain.time.exposed_communication_s
    sent = [[(row.collective, row.axis, row.payload_bytes, row.calls) for row in one.ranks[0].traffic]
            for one in (plain, beside)]
    assert sent[0] == sent[1]
    pieces = 2 * 2 * 64 * 256 // 2  # two, in 16 bits, of 64 tokens of 256 elements over tp 2
    peaks = [one.ranks[0].peak for one in (plain, beside)]
    plain_bytes, beside_bytes = (peak.outside["nccl"] for peak in peaks if peak)
    assert beside_bytes - plain_bytes == pieces
    assert "framework_options.async_tp" in {one.what for one in beside.assumptions}


def test_weights_of_blocks_are_gathered_in_one_byte() -> None:
    def gathered(**options: Any) -> int:
        report = _titan({"dp_shard": 4}, {"compile": True, **options}, precision={"compute": "fp8"}, recompute="full")
        return sum(t.payload_bytes for t in report.ranks[0].traffic if t.collective == "all_gather")

    assert gathered(fp8_all_gather=True) < gathered()


def test_a_scale_a_row_costs_time_and_sends_as_without_fp8() -> None:
    """Its products are as fast; casts by columns, and what tensor parallelism sends in 16 bits, are more."""
    def titan(**options: Any) -> Report:
        return _titan({"dp_shard": 2, "tp": 2}, {"compile": True, **options}, precision={"compute": "fp8"},
                      recompute="full", seq_len=1024)

    tensor, default, row = titan(fp8_recipe="tensorwise"), titan(), titan(fp8_recipe="rowwise")
    assert tensor.time is not None
    assert default.time is not None
    assert row.time is not None
    assert tensor.time.step_s == default.time.step_s < row.time.step_s
    gathered = [sum(t.payload_bytes for t in one.ranks[0].traffic if (t.collective, t.axis) == ("all_gather", "tp"))
                for one in (tensor, row)]
    assert gathered[0] < gathered[1]


def test_fp8_without_checkpoints_is_refused() -> None:
    report = _titan({"dp_shard": 2}, {"compile": True}, precision={"compute": "fp8"}, recompute="none")
    assert "without checkpointing" in report.problems[0].message


def test_every_microbatch_reduces_its_gradients() -> None:
    one, two = (_titan({"dp_shard": 4}, global_batch_size=4 * count) for count in (1, 2))
    sent = [sum(t.calls for t in report.ranks[0].traffic if t.collective == "reduce_scatter") for report in (one, two)]
    assert sent[1] == 2 * sent[0] > 0


def test_each_stage_counts_its_own_layers() -> None:
    """Four layers a stage, the third of each is recomputed; embedding and head are no layers."""
    given: dict[str, Any] = {"recompute": {"mode": "every", "num_layers": 3}, "implementation": "torchtitan",
                             "model": {"config": "llama-tiny", "overrides": {"num_hidden_layers": 8}}}
    table = small.prepared("fsdp2", {"dp_shard": 2, "pp": 2}, microbatches=2, **given)[1]
    blocks = [[layer for layer in stage if 0 < layer < 9] for stage in table.stages]
    assert table.kept_whole == tuple(layer for stage in blocks for layer in (*stage[:2], *stage[3:5]))
    assert sum(map(len, blocks)) - len(table.kept_whole) == 2


def test_experts_gathered_in_a_replay_by_operator_are_an_assumption() -> None:
    said = [{a.what for a in _titan({"dp_shard": 4, "ep": ep}, model="qwen3-30b-a3b", recompute=recompute).assumptions}
            for ep, recompute in ((2, {"mode": "per_op"}), (2, "full"), (4, {"mode": "per_op"}))]
    assert ["experts gathered in replays" in one for one in said] == [True, False, False]


def test_the_fullest_experts_have_more_than_the_mean_unless_routing_is_stated() -> None:
    loads = []
    for routing in ("auto", "balanced"):
        asked = small.scenario("fsdp2", {"dp_shard": 4, "ep": 4}, model="qwen3-30b-a3b", implementation="torchtitan",
                               routing=routing)
        simulation = legal_simulation(asked)
        loads.append((simulation.framework.fullest_load > 1, "hot ranks" in {a[0] for a in
                                                                            simulation.framework.assumptions}))
    assert loads == [(True, True), (False, False)]


def test_checkpoints_by_operator_keep_exchanged_rows_from_2025_09_on() -> None:
    """Twice the rows of a layer of DeepSeek's 16B, 8 sequences of 4096 tokens: 6 of each token, in 16 bits."""
    def kept(**options: Any) -> int:
        model = {"config": "deepseek-v2-lite", "overrides": {"num_hidden_layers": 3}}
        peak = _titan({"dp_shard": 8, "ep": 8}, options, model=model, seq_len=4096, micro_batch_size=8,
                      recompute={"mode": "per_op"}).ranks[0].peak
        assert peak is not None
        return peak.by_phase["loss"]

    rows, counts = 2 * 8 * 4096 * 6 * 2048 * 2, 8 * 64
    assert kept() - kept(keeps_exchange=False) == 2 * (rows + counts)
    assert kept() == kept(keeps_exchange=True)


def test_flex_attention_is_flash_attention_s_memory_and_an_assumption() -> None:
    flash, flex = (_titan({"dp_shard": 2}, options) for options in ({"sdpa_backend": "flash"}, {"attn": "flex"}))
    peaks = [one.ranks[0].peak for one in (flash, flex)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0].allocated_bytes == peaks[1].allocated_bytes
    assert "attention by flex_attention" in {one.what for one in flex.assumptions}


def test_checkpoints_by_operator_keep_what_flex_attention_is_given() -> None:
    """A compiled region puts out its inputs (torch 2.13 `_higher_order_ops/wrap.py`), rotated queries and keys too.

    Values lie in what their projection put out, every second of which is kept anyway, as the third one.
    """
    def kept(options: dict[str, Any]) -> int:
        peak = _titan({"dp_shard": 2}, options, seq_len=512, recompute={"mode": "per_op"}).ranks[0].peak
        assert peak is not None
        return peak.by_phase["loss"]

    sizes = model_config("llama-tiny", None, "")
    heads, layers = sizes["num_attention_heads"] + sizes["num_key_value_heads"], sizes["num_hidden_layers"]
    dim = sizes["hidden_size"] // sizes["num_attention_heads"]
    assert kept({"attn": "flex"}) - kept({"sdpa_backend": "flash"}) == 2 * layers * 512 * heads * dim


def test_a_job_that_torch_2_13_stops_is_told_on_the_first_screen() -> None:
    report = _titan({"dp_shard": 8, "ep": 2}, model={"config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 2}},
                    recompute={"mode": "per_op"})
    stream = io.StringIO()
    Console(file=stream, width=120, color_system=None).print(*first_screen([report], 120), sep="\n", soft_wrap=True)
    assert "experts gathered in replays: as before torch 2.13, which stops there" in stream.getvalue()


def test_gpt_oss_has_upstream_s_parameters_and_its_layers_are_made_in_bf16() -> None:
    """Counts of `GptOssModel` on the meta device, with those in bf16 (torchtitan 0.2.2 models/gpt_oss/__init__.py)."""
    for size, (whole, narrow) in {"debugmodel": (183_397_920, 80_440_608), "20b": (20_914_757_184, 19_756_487_424),
                                  "120b": (116_829_156_672, 115_670_886_912)}.items():
        flavor = FLAVORS["gpt_oss"][size]
        graph = build(model_config(flavor.preset, flavor.changed(), ""), "torchtitan")
        specs = [spec for layer in graph.layers for spec in graph.tensors[layer.kind] if spec.is_owned]
        assert sum(spec.numel for spec in specs) == whole, size
        assert sum(spec.numel for spec in specs if spec.stored == "bf16") == narrow, size


def test_blocks_of_gpt_oss_are_never_compiled() -> None:
    """`parallelize_gptoss` compiles nothing: the loss alone is what a compiled run has more."""
    model = {"config": "gpt-oss-20b", "overrides": {"num_hidden_layers": 2}}
    peaks = {compiled: _titan({"dp_shard": 2}, {"compile": compiled} if compiled else {}, model=model, seq_len=512)
             for compiled in (False, True, "model", "loss")}
    by_word = {word: report.ranks[0].peak for word, report in peaks.items()}
    assert by_word[True] == by_word["loss"] != by_word[False] == by_word["model"]
    assert "compiled blocks" in {one.what for one in peaks["model"].assumptions}
