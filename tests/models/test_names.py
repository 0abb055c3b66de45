"""Names of built-in models: ids of repositories, aliases, and what a miss says."""

from __future__ import annotations

import tomllib
from collections import Counter

import pytest

import small
from checkout import ROOT
from simcore.models import names
from simcore.models.graph import known_presets, model_config
from simcore.models.names import find, how_to_go_on, ids_of, names_of
from simcore.simulate import check, simulate

TABLE = tomllib.loads((ROOT / "simcore/models/presets/names.toml").read_text(encoding="utf-8"))
NO_SIZES = {"max_position_embeddings", "sliding_window"}
"""Fields that change no weight."""


def test_every_preset_is_in_the_table_with_its_own_repository_first() -> None:
    assert tuple(sorted(TABLE)) == known_presets()
    own = {preset: model_config(preset, None, "test").get("_name_or_path") for preset in known_presets()}
    assert {preset: (ids_of(preset) or (None,))[0] for preset in known_presets()} == own


def test_no_name_stands_for_two_presets() -> None:
    counted = Counter(name.casefold() for preset in known_presets() for name in names_of(preset))
    assert [name for name, count in counted.items() if count > 1] == []
    lasts: dict[str, set[str]] = {}
    for preset in known_presets():
        for name in ids_of(preset):
            lasts.setdefault(name.rpartition("/")[2].casefold(), set()).add(preset)
    assert {last: presets for last, presets in lasts.items() if len(presets) > 1} == {}


def test_a_repository_differs_only_in_fields_without_weights() -> None:
    for preset, entry in TABLE.items():
        assert set(entry) <= {"ids", "aliases", "changed"}
        for name, fields in entry.get("changed", {}).items():
            assert name in entry["ids"][1:], name
            assert set(fields) <= NO_SIZES, name
            config = model_config(preset, None, "test")
            assert {key for key, value in fields.items() if config.get(key, "absent") == value} == set(), name


@pytest.mark.parametrize(("asked", "preset"), [
    ("Qwen/Qwen3-8B", "qwen3-8b"), ("qwen/qwen3-8b", "qwen3-8b"), ("QWEN3-8B", "qwen3-8b"), ("qwen3-8b", "qwen3-8b"),
    ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"), ("Llama-3.3-70B", "llama-3.1-70b"),
    ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"), ("unsloth/Llama-3.2-1B", "llama-3.2-1b"),
    ("NousResearch/Llama-2-7b-hf", "llama-2-7b"), ("casperhansen/llama-3-70b-fp16", "llama-3-70b"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16", "nemotron-3-nano-30b-a3b"), ("gpt2", "gpt2"),
    ("google/gemma-2b-it", "gemma-2b"), ("deepseek-ai/deepseek-coder-6.7b-instruct", "deepseek-coder-6.7b"),
    ("deepcogito/cogito-v1-preview-llama-3B", "llama-3.2-3b"), ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b-v0.1"),
    ("codellama/CodeLlama-7b-Python-hf", "llama-2-7b"), ("lmsys/vicuna-13b-v1.5", "llama-2-13b"),
    ("Qwen/Qwen3.6-27B", "qwen3.5-27b"), ("Qwen3.5-4B", "qwen3.5-4b"), ("qwen3.5-4b-text", "qwen3.5-4b-text"),
])  # fmt: skip
def test_ids_and_aliases_are_found_in_any_case(asked: str, preset: str) -> None:
    named = find(asked)
    assert named is not None
    assert named.preset == preset
    assert model_config(asked, None, "test") == {**model_config(preset, None, "test"), **named.changed}


@pytest.mark.parametrize("asked", ["unsloth/phi-4", "Qwen/Qwen3-8B-AWQ", "", "/", "a/b/c"])
def test_what_has_another_configuration_is_not_found(asked: str) -> None:
    """Unsloth's phi-4 has Llama's layers; AWQ's weights have 4 bits."""
    assert find(asked) is None


def test_a_repository_with_other_positions_has_its_own() -> None:
    assert model_config("Qwen/Qwen3-8B-Base", None, "test")["max_position_embeddings"] == 32768
    assert model_config("Qwen/Qwen3-8B", None, "test")["max_position_embeddings"] == 40960


def test_a_miss_names_the_nearest_and_how_to_go_on() -> None:
    told = how_to_go_on("Qwen/Qwen3-9B")
    assert "did you mean 'qwen3.5-9b', Qwen/Qwen3.5-9B?" in told
    assert "hf download Qwen/Qwen3-9B config.json" in told
    assert "give its path" in told
    for other in ("zzzzzzzzzz", "swiss-ai/Apertus-8B-Instruct-2509", "foo/bar-nonexist-7B"):
        assert "did you mean" not in how_to_go_on(other), other
    assert "Super-49B-v1_5?" in how_to_go_on("nvidia/Llama-3_3-Nemotron-Super-49B-v1_7")
    assert "hf download OWNER/NAME config.json" in how_to_go_on("meta-llama/")
    assert len(how_to_go_on("x" * 500)) < 300


WRONG = ["Qwen/Qwen3-9B", "llama-3-70c", "meta-llama/", "/", "qwen3 8b", "Qwen/Qwen3-8B/main", "модель", "gpt-5", "-",
         "unsloth/Qwen3-8B-bnb-4bit", "https://huggingface.co/Qwen/Qwen3-8B", "../qwen3-8b", "null ", "qwen3-8b.jsn",
         "x" * 500]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_name_is_one_problem_in_one_line(wrong: str) -> None:
    report = check(small.scenario("fsdp2", {"dp_shard": 2}, model=wrong))
    [problem] = report.problems
    assert report.status == "error"
    assert "unknown model" in problem.message
    assert "\n" not in problem.message


def test_a_report_says_which_preset_answered() -> None:
    def told(model: str) -> list[tuple[str, str]]:
        report = simulate(small.scenario("fsdp2", {"dp_shard": 64}, model=model))
        return [(one.value, one.source) for one in report.assumptions if one.what == "model"]

    assert told("unsloth/llama-3.2-1b") == [
        ("preset llama-3.2-1b", "unsloth/Llama-3.2-1B: config.json with the same shapes")]
    assert told("llama-3.2-1b") == []


def test_models_of_a_wheel_are_read_from_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_packed", lambda: {"made-up": {"model_type": "llama"}})
    names.known_presets.cache_clear()
    try:
        assert {"made-up", "llama-3.1-8b"} <= set(names.known_presets())
        assert names.fields_of("made-up") == {"model_type": "llama"}
    finally:
        names.known_presets.cache_clear()
        names.fields_of.cache_clear()
