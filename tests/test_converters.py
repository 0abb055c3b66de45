"""Converters of measured runs fail at a word or a key that they do not know, whatever the row.

Samples of both collections are stored (`truth/source_rows.jsonl`): at least one row for each rule. Of the rows that
came after the fit of times (`truth/later_rows.jsonl`) the first of each group is one.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from checkout import ROOT

TRUTH = ROOT / "tests" / "truth"
UNHEARD = "an unheard word"


def module(name: str) -> Any:
    """A script of `tests/truth`, which are not part of a package."""
    if str(TRUTH) not in sys.path:
        sys.path.append(str(TRUTH))
    return importlib.import_module(name)


@cache
def samples() -> dict[str, dict[str, Any]]:
    """Rows of the two collections, and one of each group of later ones, by id."""
    lines = (TRUTH / "source_rows.jsonl").read_text(encoding="utf-8").splitlines()
    first = {row["group"]: row for row in reversed(later())}
    return {row["id"]: row for row in (*map(json.loads, lines), *first.values())}


@cache
def later() -> tuple[dict[str, Any], ...]:
    """Rows that came after the fit of times."""
    lines = (TRUTH / "later_rows.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(map(json.loads, lines))


@cache
def stored() -> dict[str, dict[str, Any]]:
    """Our rows by id."""
    files = sorted((TRUTH / "measured").glob("*.jsonl"))
    return {row["id"]: row for file in files for row in map(json.loads, file.read_text(encoding="utf-8").splitlines())}


def convert(row: dict[str, Any]) -> Any:
    """Our row, by the rule of its collection and group."""
    golden, runs = module("measured_golden"), module("convert_measured")
    if "raw_args" in row:
        return golden.row(row)
    return golden.unfiled(row) if row["group"] == "mcore-golden" else runs.corrected(row, runs.row(row))[0]


def vocabulary_of(row: dict[str, Any]) -> dict[str, Any]:
    """Kinds of words by key."""
    if "raw_args" in row:
        return module("measured_golden").VOCABULARY  # type: ignore[no-any-return]
    if row["group"] == "mcore-golden":
        return {"config": module("source_row").Block(module("golden_words").ARGUMENTS)}
    if row["group"] == "mbridge-perf-summary":
        return module("measured_bridge").VOCABULARY  # type: ignore[no-any-return]
    return module("convert_measured").RULES[row["group"]][1]  # type: ignore[no-any-return]


def words(told: dict[str, Any], vocabulary: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all keys of a row whose words are looked up."""
    kinds = module("source_row")
    for key, value in told.items():
        kind = vocabulary.get(key)
        kind = kind.kind if isinstance(kind, kinds.Unread) else kind
        if isinstance(kind, kinds.Block) and isinstance(value, dict):
            yield from words(value, kind.vocabulary, (*path, key))
        elif kind is not None and not isinstance(kind, kinds.Prose | kinds.Refused):
            yield (*path, key)


def changed(row: dict[str, Any], path: tuple[str, ...], word: object) -> dict[str, Any]:
    """The row with another word, or with a further key."""
    made = copy.deepcopy(row)
    block = made
    for key in path[:-1]:
        block = block[key]
    block[path[-1]] = word
    return made


def test_every_rule_has_a_sample() -> None:
    groups = {row.get("group", "goldens") for row in samples().values()}
    assert groups == {*module("convert_measured").RULES, "mbridge-perf-summary", "mcore-golden", "goldens"}


@pytest.mark.parametrize("name", samples())
def test_a_sample_becomes_its_stored_row(name: str) -> None:
    assert convert(samples()[name]) == stored()[name]


def test_later_rows_become_their_stored_rows_and_no_fit_sees_them() -> None:
    runs = module("convert_measured")
    for row in later():
        assert row["config_group"].startswith(module("measured_runs").LATER), row["id"]
        made = runs.row(row)
        assert (made or runs.aside(row, runs._lacking(row))) == stored()[row["id"]], row["id"]
        assert made is None or made["kept_out"] is True, row["id"]


@pytest.mark.parametrize("name", samples())
def test_an_unknown_word_of_any_key_is_an_error(name: str) -> None:
    """It names the row, the key, the word, and the words that are known."""
    row = samples()[name]
    paths = list(words(row, vocabulary_of(row)))
    assert len(paths) >= 8
    for path in paths:
        with pytest.raises(ValueError, match=re.escape(path[-1])) as caught:
            convert(changed(row, path, UNHEARD))
        assert type(caught.value) is module("source_row").Unheard, path
        message = str(caught.value)
        assert all(told in message for told in (name, UNHEARD, "known")), message


@pytest.mark.parametrize("name", samples())
def test_an_unknown_key_is_an_error(name: str) -> None:
    row = samples()[name]
    blocks = [(), *((key,) for key in ("config", "raw_args", "env_vars") if row.get(key))]
    for block in blocks[1:] if row.get("group") == "mcore-golden" else blocks:
        with pytest.raises(module("source_row").Unheard, match=f"{re.escape(name)}: unknown key .*unheard_of.*known"):
            convert(changed(row, (*block, "unheard_of"), 1))


@pytest.mark.parametrize(("group", "key", "word"), [
    ("torchtitan", "recompute", "selective AC of every third block"), ("kempnerforge", "recompute", "partial"),
    ("mbridge-card", "framework", "Megatron-Bridge 000000000000"), ("axolotl", "gpu_type", "1x96GB"),
    ("torchtitan", "gpu_type", "B100"), ("llm-foundry", "precision", "amp_fp4 mixed (fp32 master)"),
    ("unsloth", "framework", "Unsloth 2"), ("mbridge-perf-summary", "model", "Kimi_K3")])
def test_words_that_once_became_a_default(group: str, key: str, word: str) -> None:
    """An unknown recompute was none, an unknown card another one."""
    row = next(row for row in samples().values() if row.get("group") == group)
    with pytest.raises(module("source_row").Unheard, match=re.escape(f"{key}: unknown word {word!r}; known: ")):
        convert({**row, key: word})


def test_a_group_without_a_rule_is_an_error() -> None:
    row = next(iter(samples().values()))
    with pytest.raises(module("source_row").Unheard, match="group: unknown word 'another-source'; known: simumax-b200"):
        convert({**row, "group": "another-source"})


def test_a_key_that_a_rule_leaves_out_is_an_error_but_for_a_reason() -> None:
    kinds = module("source_row")
    known = {"read": kinds.Number(), "left": kinds.Number(), "idle": kinds.Unread("a date"), "off": kinds.Words({
        False: False, True: True}), "part": kinds.Block({"inner": kinds.Words({"a": 1})})}
    row = kinds.SourceRow({"read": 1, "left": 0, "idle": 7, "off": False, "part": {"inner": "a"}}, known, "r")
    assert row["read"] == 1
    with pytest.raises(kinds.Unheard, match=r"row r: keys that the rule does not read: left: 0; part\.inner: 'a'$"):
        row.check_all_read()
    row.leave("left")
    assert row["part"]["inner"] == 1
    row.check_all_read()


def test_what_a_vocabulary_leaves_alone_cannot_be_read() -> None:
    kinds = module("source_row")
    row = kinds.SourceRow({"idle": 7}, {"idle": kinds.Unread("a date")}, "r")
    with pytest.raises(kinds.Unheard, match="row r: idle is listed as left alone"):
        row["idle"]


def test_known_words_without_a_scenario_are_reasons() -> None:
    kinds = module("source_row")
    row = kinds.SourceRow({"model": "T5", "slice": 1}, {
        "model": kinds.Words({"T5": kinds.Missing("no family")}), "slice": kinds.Refused("several widths")}, "r")
    with pytest.raises(kinds.Unsayable, match="no family"):
        row["model"]
    with pytest.raises(kinds.Unsayable, match="several widths"):
        row.check_all_read()


def test_one_is_no_switch() -> None:
    kinds = module("source_row")
    with pytest.raises(kinds.Unheard):
        kinds.Words({True: "on"}).meaning(1)
    with pytest.raises(kinds.Unheard):
        kinds.Number().meaning(True)


def test_presets_of_all_releases_are_known_to_the_last_word() -> None:
    """Not those of rows alone: every release has hundreds."""
    bridge, kinds = module("measured_bridge"), module("source_row")
    found = [kinds.SourceRow(one["fields"], bridge.PRESET, one["name"]) for one in bridge.presets()]
    assert {tag: sum(one["tag"] == tag for one in bridge.presets()) >= 120 for tag in bridge.ORDER} == dict.fromkeys(
        bridge.ORDER, True)
    assert len(found) > 2000
    with pytest.raises(kinds.Unheard, match="recompute_modules: unknown word"):
        kinds.SourceRow({"recompute_modules": ["moe_glue"]}, bridge.PRESET, "x")


@pytest.mark.parametrize(("release", "model", "gpu", "precision", "fsdp", "grows"), [
    ("25.11", "LLAMA3.1_405B", "GB200", "FP8-CS", False, True), ("25.11", "LLAMA3.1_405B", "B200", "FP8", False, False),
    ("25.11", "LLAMA3.1_405B", "GB200", "BF16", False, False), ("26.02", "DeepSeekV3", "H100", "BF16", False, True),
    ("26.04", "LLAMA3.1_405B", "GB200", "NVFP4", False, False),
    ("26.04.01", "LLAMA3.1_405B", "GB200", "NVFP4", False, True),
    ("26.06", "LLAMA3_70B", "H100", "FP8", False, True), ("26.06", "LLAMA3_70B", "GB300", "BF16", True, False)])
def test_segments_grow_where_the_release_says_so(
    release: str, model: str, gpu: str, precision: str, fsdp: bool, grows: bool
) -> None:
    """`scripts/performance/perf_plugins.py` and `utils/executors.py` of each tag."""
    bridge, kinds = module("measured_bridge"), module("source_row")
    row = next(row for row in samples().values() if row.get("group") == "mbridge-perf-summary")
    run = kinds.SourceRow({
        **row, "framework": f"Megatron-Bridge / NeMo container {release}", "model": model, "gpu_type": gpu,
        "precision": f"{precision} (bf16 params; FP8=current scaling unless MX)"}, bridge.VOCABULARY, "x")
    fields = kinds.SourceRow({"use_megatron_fsdp": fsdp}, bridge.PRESET, "x")
    assert bridge._allocator(run, fields) == ({"environment": {"expandable_segments": True}} if grows else {})


def test_heads_and_rooms_of_experts_are_those_of_the_release() -> None:
    """v0.4.2, v0.5.0 and v0.5.1 `scripts/performance/configs`: fp8_output_proj, set_full_iter_cg_configs."""
    bridge, kinds = module("measured_bridge"), module("source_row")
    row = next(row for row in samples().values() if row.get("group") == "mbridge-perf-summary")
    rooms = {"moe_expert_rank_capacity_factor", "moe_paged_stash", "moe_paged_stash_buffer_size_factor_cuda"}
    for release, model, gpu, precision, graph, has_head, has_rooms in (
            ("26.06", "DeepSeekV3", "GB300", "MXFP8", "full_iteration", True, True),
            ("26.04.01", "DeepSeekV3", "GB300", "MXFP8", "full_iteration", False, False),
            ("26.06", "DeepSeekV3", "B300", "MXFP8", "transformer_engine", False, False),
            ("26.06.01", "DeepSeekV3", "B300", "MXFP8", "transformer_engine", True, False),
            ("26.06", "DeepSeekV3", "GB300", "BF16", "full_iteration", False, True),
            ("26.08", "GPT OSS 120B", "GB200", "MXFP8", "full_iteration", True, True),
            ("26.08", "GPT OSS 120B", "B300", "MXFP8", "full_iteration", False, True),
            ("26.06", "Qwen3_235B_a22B", "GB200", "MXFP8", "full_iteration", False, True)):
        run = kinds.SourceRow({
            **row, "framework": f"Megatron-Bridge / NeMo container {release}", "model": model, "gpu_type": gpu, "ep": 8,
            "precision": f"{precision} (bf16 params; FP8=current scaling unless MX)"}, bridge.VOCABULARY, "x")
        made = bridge._experts(run, kinds.SourceRow({"cuda_graph_impl": graph}, bridge.PRESET, "x"))
        told = release, model, gpu, precision
        assert made.get("fp8_output_proj", False) is has_head, told
        assert rooms.isdisjoint(made) is not has_rooms, told
        assert not has_rooms or rooms <= set(made), told


def test_tokens_of_files_without_a_tokenizer_of_their_own() -> None:
    """NullTokenizer of core 0.16.1 has a token more than its vocabulary; `--make-vocab-size-divisible-by` times tp."""
    row = samples()["mcore-gpt-gpt3_7b_tp4_pp1_memory_speed-gb200"]
    rows = {size: convert(changed(row, ("config", "vocab-size"), size)) for size in (512, 511)}
    assert {size: row["scenario"]["model"]["overrides"]["vocab_size"] for size, row in rows.items()} == {
        512: 1024, 511: 512}


def test_printed_flops_know_their_models() -> None:
    row = next(row for row in samples().values() if row.get("group") == "automodel-perf")
    flops, kinds = module("convert_flops"), module("source_row")
    assert flops.row(row) is not None
    with pytest.raises(kinds.Unheard, match="model: unknown word"):
        flops.row({**row, "model": "Qwen9 1T"})
    with pytest.raises(kinds.Unheard, match="model: unknown word 'Qwen9 1T'; known: "):
        flops.model({**row, "model": "Qwen9 1T"})


def test_what_software_of_a_day_did_is_told_beside_the_configuration() -> None:
    """A resumed run of one day, and a cross entropy compiled by an older torch: neither rule looks at what was read."""
    golden = module("measured_golden")
    resumed = {"second_run": True, "gpu": "H100", "environment": "dev", "memory_values_changed": golden.HELD}
    compiled = {"gpu": "A100", "memory_values_changed": "2025-10-21"}
    row = next(row for row in samples().values() if "raw_args" in row and row["model"] == "gpt")
    row = {**row, **resumed, "config": {**row["config"], "pp": 2, "untie": False, "dist_opt": False}}
    fused = {**row, **compiled, "second_run": False, "config": {**row["config"], "xent_fusion": "native"}}
    found = {name: convert(one).get("not_modelled") for name, one in {
        "resumed": row, "first run": {**row, "second_run": False},
        "later": {**row, "memory_values_changed": "2026-04-14"},
        "one stage": changed(row, ("config", "pp"), 1), "distributed": changed(row, ("config", "dist_opt"), True),
        "compiled": fused, "eager": {**fused, "config": row["config"]},
        "another card": {**fused, "gpu": "GB200"}}.items()}
    assert {name for name, told in found.items() if told == golden.HELD_AFTER} == {"resumed"}
    assert {name for name, told in found.items() if told == golden.MEASURING} == {"compiled"}
    time, memory = golden.rows(fused)
    assert (time["id"], memory["id"]) == (row["id"], f"{row['id']}:memory")
    assert time["scenario"] == memory["as_published"]
    assert time["scenario"]["topology"] == "dgx-a100"
    assert ("step_s" in time, "readings" in time, "step_s" in memory) == (True, False, False)
    assert len(memory["readings"]) == 3
    assert len(golden.rows(row | {"second_run": False})) == 1


def test_a_run_that_ended_out_of_memory_has_no_peak() -> None:
    row = next(row for row in samples().values() if row.get("group") == "mbridge-skill")
    assert convert(row)["verdict"] == "fits"
    assert convert(row)["readings"]
    made = convert({**row, "notes": "GB as printed; layernorm row OOMed on rank 0"})
    assert (made["verdict"], made["readings"]) == ("oom", [])


def test_a_correction_since_the_fit_leaves_the_time_as_it_was_fitted() -> None:
    runs = module("convert_measured")
    config = {"params_total": runs.SINCE_FIT[0][1]}
    run: dict[str, Any] = {"id": "a", "group": "g", "source": "s", "config": config}
    made: dict[str, Any] = {**run, "scenario": {"model": "m"}, "readings": [], "verdict": "fits", "step_s": 1}
    time, memory = runs.corrected(run, dict(made))
    assert (time["scenario"], time["step_s"], "readings" in time) == (made["scenario"], 1, False)
    assert memory["scenario"] == {**made["scenario"], **runs.SINCE_FIT[0][2]}
    assert (memory["id"], memory["verdict"], "step_s" in memory) == ("a:memory", "fits", False)
    assert runs.corrected({**run, "config": None}, dict(made)) == [made]
    assert runs._merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}


def test_a_recipe_of_nemo_rl_is_the_one_that_is_printed() -> None:
    """The mean length fills packs and engines; a line with another degree or batch than the recipe's is no scenario."""
    row = next(row for row in later() if row["id"] == "nemorl-0.6-h100-bf16-grpo-DeepSeek_V3-256g-on")
    made = convert(row)["scenario"]
    assert (made["training"]["seq_len"], made["training"]["micro_batch_size"]) == (701, 2)  # packs of 1,536 tokens
    assert (made["rl"]["logprob_batch_size"], made["rl"]["mean_tokens"], made["generation"]["max_model_len"]) == (
        2, 701, 1536)
    whole = convert({**row, "seq_len": 1536})["scenario"]
    assert (whole["training"]["micro_batch_size"], whole["generation"]["max_model_len"]) == (1, 1536)
    for key, word in (("ep", 32), ("tp", 2), ("global_batch", 256), ("gpus", 512), ("task", "SWE")):
        told = convert({**row, key: word})["not_modelled"]
        assert str(word) in told or "agents" in told or "64n8g" in told, told
    told = convert(changed(row, ("config", "generated"), 1024))["not_modelled"]
    assert "sequences of a step 1024 printed, 512 in the recipe" in told


def test_rows_of_automodels_benchmark_run_the_norm_of_their_files() -> None:
    """`rms_norm: te` in the file of each model whose layers are of 0.7.0; releases before have one kind."""
    for row in map(json.loads, (TRUTH / "measured" / "automodel-perf.jsonl").read_text(encoding="utf-8").splitlines()):
        own = row.get("scenario") and not {"framework_version", "implementation"} & set(row["scenario"])
        if own and "lora" not in row["id"]:
            assert row["scenario"]["framework_options"]["backend.rms_norm"] == "te", row["id"]
