"""Recipes of axolotl for models that read images: a processor, adapters by a pattern, a tower that is frozen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import RankscopeError
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

RECIPE = """\
base_model: Qwen/Qwen3-VL-4B-Instruct
processor_type: AutoProcessor
datasets: [{path: some/pictures, type: chat_template}]
sequence_len: 2048
micro_batch_size: 1
gradient_checkpointing: true
attn_implementation: flash_attention_2
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_modules: 'model.language_model.layers.[\\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj'
"""
ASKED = {"training.images": 2, "training.image_height": 448}


def imported(folder: Path, text: str, settings: dict[str, Any]) -> Imported:
    file = folder / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    return import_recipe([str(file)], Answers.of_options(1, None, "dgx-h100", settings))


def test_adapters_are_where_the_pattern_matches_whole_names(tmp_path: Path) -> None:
    """The seven linears of each of 36 layers; the tower's have other names, and are left as they are."""
    found = imported(tmp_path, RECIPE, ASKED)
    found.expect_complete()
    found.values["training"].update(images=2, image_height=448)  # as the command does with --set
    scenario = parse_scenario(found.document())
    graph = prepare(scenario)[0].graph
    adapted = [layer.path for layer in graph.layers for spec in graph.tensors[layer.kind]
               if spec.name.endswith("lora_a.weight")]
    assert len(adapted) == 7 * 36
    assert all(path.startswith("model.language_model.layers.") for path in adapted)


def test_images_are_asked(tmp_path: Path) -> None:
    """Their number; their height only of a model that takes any."""
    for model, asked in (("Qwen/Qwen3-VL-4B-Instruct", ["training.images", "training.image_height"]),
                         ("google/gemma-3-4b-it", ["training.images"])):
        found = imported(tmp_path, RECIPE.replace("Qwen/Qwen3-VL-4B-Instruct", model), {})
        assert [question.key for question in found.questions] == asked, model


@pytest.mark.parametrize(("old", "new", "told"), [
    ("Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-8B", "a model with images or sound"),
])
def test_other_inputs_are_refused_by_name(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(RankscopeError) as caught:
        imported(tmp_path, RECIPE.replace(old, new), ASKED).expect_complete()
    assert told in str(caught.value)


def test_without_a_processor_the_model_is_given_text_alone(tmp_path: Path) -> None:
    """Its tower is loaded, packed and adapted with the rest; every linear has an adapter, of the projector too."""
    packed = RECIPE.replace("adapter: lora\n", "adapter: qlora\nload_in_4bit: true\nlora_target_linear: true\n")
    packed = packed.replace("processor_type: AutoProcessor\n", "").replace(
        "Qwen/Qwen3-VL-4B-Instruct", "mistralai/Ministral-3-3B-Reasoning-2512")
    lines = [line for line in packed.splitlines() if "lora_target_modules" not in line]
    found = imported(tmp_path, "\n".join(lines), ASKED)
    found.expect_complete()
    assert found.values["training"]["images"] == 0
    assert found.values["framework_options"]["prepare_model_for_kbit_training"] == "cast_back"
    graph = prepare(parse_scenario(found.document()))[0].graph
    resting = {spec.path.rpartition(".lora_")[0] for spec in graph.tensors[0]
               if spec.rests and spec.module == "adapter"}
    assert len(resting) == 7 * 24 + 3
    assert "model.multi_modal_projector.patch_merger.merging_layer" in resting


def test_a_packed_tower_keeps_what_is_no_norm_in_fp32(tmp_path: Path) -> None:
    """Written where every rank has the whole model; refused under ZeRO, where shards are of fp32 too."""
    text = RECIPE.replace("Qwen/Qwen3-VL-4B-Instruct", "mistralai/Magistral-Small-2509").replace(
        "adapter: lora\n", "adapter: qlora\nload_in_4bit: true\n")
    values: Mapping[str, Any] = imported(tmp_path, text, ASKED).values
    assert values["framework_options"]["prepare_model_for_kbit_training"] == "cast_back"
    assert values["model"] == {"config": "mistralai/Magistral-Small-2509", "overrides": {"tie_word_embeddings": True}}
    (tmp_path / "mine.yaml").write_text(f"{text}deepspeed: zero1.json\n", encoding="utf-8")
    (tmp_path / "zero1.json").write_text('{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}')
    found = import_recipe([str(tmp_path / "mine.yaml"), str(tmp_path / "zero1.json")],
                          Answers.of_options(2, None, "dgx-h100", ASKED))
    assert any("a packed base behind a vision tower" in one.message for one in found.refused)


def test_freeze_mm_modules_freezes_a_tower_that_would_be_trained(tmp_path: Path) -> None:
    full = "\n".join(line for line in RECIPE.splitlines() if not line.startswith(("adapter", "lora_")))
    values: Mapping[str, Any] = imported(tmp_path, f"{full}\nfreeze_mm_modules: true\n", ASKED).values
    assert values["training"]["frozen"] == ["model.visual"]
    assert values["framework_options"]["autocast"] is True  # LayerNorms of the tower are fp32 under it
    values = imported(tmp_path, f"{RECIPE}freeze_mm_modules: true\n", ASKED).values
    assert "frozen" not in values["training"]


def test_a_tower_is_in_the_root_where_the_decoder_alone_is_named(tmp_path: Path) -> None:
    """Under FSDP 2; a tower's class beside it, or none at all, leaves the layers of the tower units."""
    full = [line for line in RECIPE.splitlines() if not line.startswith(("adapter", "lora_", "processor", "gradient"))]
    text = "\n".join(full).replace("Qwen/Qwen3-VL-4B-Instruct", "google/gemma-3-12b-it") + "\nbf16: true\n"
    block = "fsdp_version: 2\nfsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  reshard_after_forward: true\n"
    for named, wrapped in (("Gemma3DecoderLayer", "root"), ("Gemma3DecoderLayer,SiglipEncoderLayer", None), ("", None)):
        line = f"  transformer_layer_cls_to_wrap: {named}\n" * bool(named)
        file = tmp_path / "mine.yaml"
        file.write_text(f"{text}{block}{line}", encoding="utf-8")
        values = import_recipe([str(file)], Answers.of_options(8, None, "dgx-h100", {})).values
        assert values["training"]["images"] == 0
        assert values["framework_options"].get("wrap_tower") == wrapped, named
