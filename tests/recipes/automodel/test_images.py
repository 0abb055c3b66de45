"""Recipes of models that read images: number of images, what is frozen, and the answer of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.simulate import check, simulate

RECIPE = """\
recipe: FinetuneRecipeForVLM
step_scheduler: {global_batch_size: 8, local_batch_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForImageTextToText.from_pretrained
  pretrained_model_name_or_path: google/gemma-3-4b-it
  torch_dtype: torch.bfloat16
  use_liger_kernel: false
  attn_implementation: eager
processor: {_target_: transformers.AutoProcessor.from_pretrained}
distributed: {strategy: fsdp2, dp_size: none}
loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}
dataset:
  _target_: nemo_automodel.components.datasets.vlm.datasets.make_medpix_dataset
  path_or_dataset: mmoukouba/MedPix-VQA
optimizer: {_target_: torch.optim.AdamW, lr: 1e-5}
freeze_config:
  freeze_embeddings: true
  freeze_vision_tower: true
  freeze_language_model: false
"""
FREEZING = RECIPE.index("freeze_config:")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(text: str) -> Imported:
    Path("sees.yaml").write_text(text, encoding="utf-8")
    return import_recipe(["sees.yaml"], Answers.of_options(gpus=8, seq_len=1024, topology="dgx-h100"))


def told(text: str) -> list[str]:
    """Problems of the scenario that a recipe becomes."""
    return [problem.message for problem in check(parse_scenario(imported(text).document())).problems]


def test_a_recipe_with_images_is_answered() -> None:
    found = imported(RECIPE)
    found.expect_complete()
    assert {key: found.values["training"][key] for key in ("images", "frozen", "seq_len")} == {
        "images": 1, "frozen": ["model.vision_tower"], "seq_len": 1024}
    assert [one.why for one in found.left if one.key == "freeze_config.freeze_embeddings"] == [
        "nothing reads it (main 2026-08-22 components/utils/model_utils.py); 0.7.0 refuses the file for it "
        "(parse_freeze_config)"]
    assert simulate(parse_scenario(found.document())).status == "ok"


def test_what_is_frozen_is_what_the_switches_say() -> None:
    """A block without the tower's switch freezes it, no block freezes nothing; the text is frozen where it says so."""
    def frozen(block: str) -> object:
        return imported(RECIPE[:FREEZING] + block).values["training"].get("frozen")

    assert frozen("freeze_config: {freeze_language_model: true}\n") == ["model.vision_tower", "model.language_model"]
    assert frozen("freeze_config: {freeze_vision_tower: false, freeze_language_model: false}\n") is None
    assert frozen("") is None


def test_a_tower_that_is_trained_is_refused_by_name() -> None:
    [message] = told(RECIPE[:FREEZING])
    assert "not yet: a vision tower that is trained" in message


def test_other_data_sets_are_asked_for_their_images() -> None:
    found = imported(RECIPE.replace("make_medpix_dataset", "make_llava_onevision_dataset"))
    assert [one.key for one in found.questions] == ["training.images"]


def test_a_recipe_of_text_says_that_no_sample_has_an_image() -> None:
    """Its tower rests, which is served where its units were measured; what is frozen is written all the same."""
    plain = RECIPE.replace("FinetuneRecipeForVLM", "TrainFinetuneRecipeForNextTokenPrediction")
    assert not imported(plain).refused
    assert imported(plain).values["training"]["frozen"] == ["model.vision_tower"]
    [message] = told(plain[:plain.index("freeze_config")])
    assert message.endswith("text alone, of gemma3 by the layers of hf under automodel")
    found = imported(plain[:plain.index("freeze_config")].replace("google/gemma-3-4b-it", _SPARSE))
    assert (found.values["training"]["images"], found.refused) == (0, ())


def test_weights_in_8_bits_are_loaded_as_those_in_16_bits() -> None:
    """0.7.0 models/mistral3_vlm/model.py: they are made whole while they are read."""
    plain = RECIPE.replace("FinetuneRecipeForVLM", "TrainFinetuneRecipeForNextTokenPrediction").replace("eager", "sdpa")
    text = plain[:plain.index("freeze_config")].replace(
        "google/gemma-3-4b-it", "mistralai/Ministral-3-3B-Instruct-2512")
    found = imported(text)
    assert found.values["model"] == "mistralai/Ministral-3-3B-Instruct-2512-BF16"
    assert told(text) == []
    assert imported(text.replace("Instruct-2512", "Unknown-2512")).values["model"].endswith("Unknown-2512")


def test_other_attention_is_refused() -> None:
    [message] = told(RECIPE.replace("attn_implementation: eager", "attn_implementation: sdpa"))
    assert "not yet: another attention than eager in a model that reads images" in message


def test_images_of_any_size_are_asked_for_their_height() -> None:
    text = RECIPE.replace("google/gemma-3-4b-it", "Qwen/Qwen2.5-VL-3B-Instruct").replace("eager", "sdpa").replace(
        "AutoProcessor.from_pretrained}", "AutoProcessor.from_pretrained, min_pixels: 200704, max_pixels: 1003520}")
    [question] = imported(text).questions
    assert (question.key, question.text) == (
        "training.image_height", "pixels of an image from top to bottom, of a square unless training.image_width is "
        "set too; at least 200,704 and at most 1,003,520 in all")
    Path("sees.yaml").write_text(text, encoding="utf-8")
    found = import_recipe(["sees.yaml"], Answers.of_options(
        gpus=8, seq_len=1024, topology="dgx-h100", settings={"training.image_height": 448}))
    found.expect_complete()
    assert found.values["training"]["frozen"] == ["model.visual"]
    sees = found.document()
    sees.data["training"]["image_height"] = 448
    assert simulate(parse_scenario(sees)).status == "ok"


def test_packs_of_sequences_with_images_are_rows_whose_images_are_asked() -> None:
    """Those of another length, or of another format, are refused; so are models that were not measured with them."""
    packed = "packed_sequence: {pack_size: 8192, max_length: 4096, packing_ratio: 0.9, drop_long_samples: true%s}\n"
    found = imported(RECIPE + packed % "")
    assert [one.key for one in found.questions] == ["training.images"]
    assert (found.values["training"]["lengths"], found.values["training"]["seq_len"]) == ("packed", 1024)  # answered
    for more, message in ((", packing_format: thd", "packs in the format of Transformer Engine (thd)"),
                          (", collate_max_length: 4096", "packs that are padded to another length than theirs")):
        [problem] = imported(RECIPE + packed % more).refused
        assert problem.message.endswith(message), more


_DENSE, _SPARSE = "Qwen/Qwen3.6-27B", "Qwen/Qwen3.6-35B-A3B"


@pytest.mark.parametrize(("name", "fields", "depth", "said"), [
    (_DENSE, "", 1, ""), (_DENSE, "  num_nextn_predict_layers: 0\n", None, ""),
    (_DENSE, "  text_config: {use_cache: false, mtp_num_hidden_layers: 0}\n", None, ""),
    (_DENSE, "  text_config: {mtp_num_hidden_layers: 1}\n", 1, ""),
    (_DENSE, "  text_config: {num_nextn_predict_layers: 1, mtp_num_hidden_layers: 0}\n", 1, ""),
    (_DENSE, "  num_nextn_predict_layers: 2\n", None,
     "model.num_nextn_predict_layers: multi-token prediction by several"),
    (_DENSE, "  text_config: {mtp_num_hidden_layers: 0, hidden_size: 64}\n", None,
     "model.text_config.hidden_size: fields of the"),
    (_SPARSE, "", 1, ""), (_SPARSE, "  text_config: {num_nextn_predict_layers: 1}\n", 1, ""),
])
def test_fields_inside_a_texts_configuration_are_read_one_by_one(name: str, fields: str, depth: int | None,
                                                                 said: str) -> None:
    """0.7.0 models/qwen3_5/model.py, _resolve_mtp_num_layers: the published configuration has a module."""
    text = RECIPE.replace("google/gemma-3-4b-it", name).replace("  torch_dtype", f"{fields}  torch_dtype")
    read = imported(text)
    found = [one.message for one in (*read.wrong, *read.refused)]
    assert [said in one for one in found] == ([True] if said else [])
    model = read.values["model"]
    assert (model["overrides"]["mtp_num_layers"] if isinstance(model, dict) else None) == depth


def test_gemma_4_takes_square_images_and_no_kernels_of_liger() -> None:
    """Its images are filled up to one size; `vision` is in the names of the tower and of what is behind it."""
    recipe = RECIPE.replace("gemma-3-4b-it", "gemma-4-31B-it").replace("use_liger_kernel: false", (
        "use_liger_kernel: true")).replace("distributed: {", "distributed: {activation_checkpointing: true, ")
    found = imported(recipe)
    found.expect_complete()
    assert {key: found.values["training"][key] for key in ("frozen", "image_height", "recompute")} == {
        "frozen": ["model.vision_tower", "model.embed_vision"], "image_height": 768, "recompute": "full"}
    why = {one.key: one.why for one in found.left}
    assert why["model.use_liger_kernel"].startswith("Liger patches no class")
    assert told(recipe) == told(recipe.replace("eager", "sdpa")) == []
    assert "at most 256" in told(recipe.replace("eager", "flash_attention_2"))[0]


OMNI = RECIPE.replace("google/gemma-3-4b-it", "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16").replace(
    "  use_liger_kernel: false\n  attn_implementation: eager\n", "  backend: {attn: sdpa}\n").replace(
    "dp_size: none", "dp_size: none, ep_size: 8").replace("freeze_vision_tower: true", "freeze_vision_tower: true\n  "
                                                          "freeze_audio_tower: true")
"""As Automodel 36044ad3 examples/vlm_finetune/nemotron_omni/nemotron_omni_cord_v2.yaml, with torch's AdamW."""


def test_both_towers_of_an_omni_model_are_frozen_by_their_names() -> None:
    """And its projector, whose adapters are left out."""
    found = imported(OMNI)
    towers = ["vision_model", "vision_projector", "sound_encoder", "sound_projection"]
    assert found.values["training"]["frozen"] == towers
    assert [question.key for question in found.questions] == ["training.image_height"]
    assert not found.refused
    adapted = imported(OMNI + "peft: {dim: 8, exclude_modules: ['*vision_model*', '*sound*']}\n")
    assert adapted.values["training"]["lora"]["exclude_modules"] == ["*vision_model*", "*sound*", "*vision_projector*"]


def test_a_recipe_without_a_class_is_of_the_older_command() -> None:
    """0.3.0 `_cli/app.py`: `automodel finetune vlm`; the class of the model says so."""
    found = imported(RECIPE.replace("recipe: FinetuneRecipeForVLM\n", ""))
    found.expect_complete()
    assert found.values["training"]["frozen"] == ["model.vision_tower"]
    assert [one.kind for one in found.left if one.key == "recipe"] == ["default"]


def test_a_teacher_is_refused_by_name() -> None:
    plain = RECIPE.replace("recipe: FinetuneRecipeForVLM\n", "")
    found = imported(plain + "teacher_model: {_target_: x, pretrained_model_name_or_path: qwen3-8b}\nkd_ratio: 0.5\n")
    assert [one.message for one in found.refused] == ["not yet: teacher_model._target_: distillation from a teacher"]


KIMI = RECIPE[:FREEZING].replace("google/gemma-3-4b-it", "moonshotai/Kimi-VL-A3B-Instruct").replace(
    "  use_liger_kernel: false\n  attn_implementation: eager\n", "  backend: {attn: te, dispatcher: deepep}\n").replace(
        "dp_size: none", "ep_size: 8") + """\
dataloader:
  collate_fn:
    _target_: nemo_automodel.components.datasets.vlm.collate_fns.kimi_vl_collate_fn
    max_length: 2048
"""


def test_kimi_vl_is_padded_by_its_collater_and_answered() -> None:
    """to a token less than max_length; the block freezes the tower."""
    Path("sees.yaml").write_text(KIMI + RECIPE[FREEZING:], encoding="utf-8")
    found = import_recipe(["sees.yaml"], Answers.of_options(gpus=8, topology="dgx-h100", settings={
        "training.image_height": 560}))
    found.expect_complete()
    assert {key: found.values["training"][key] for key in ("images", "frozen", "seq_len")} == {
        "images": 1, "frozen": ["model.vision_tower"], "seq_len": 2047}
    found.values["training"]["image_height"] = 560
    assert simulate(parse_scenario(found.document())).status == "ok"


def test_another_collater_pads_to_no_length() -> None:
    """Its keys have no effect, and the length is asked."""
    text = RECIPE[:FREEZING] + KIMI[KIMI.index("dataloader:"):].replace("kimi_vl_collate_fn", "default_collate_fn")
    Path("sees.yaml").write_text(text + RECIPE[FREEZING:], encoding="utf-8")
    found = import_recipe(["sees.yaml"], Answers.of_options(gpus=8, topology="dgx-h100"))
    assert "training.seq_len" in {question.key for question in found.questions}
    assert {one.key for one in found.left if "collate_fn" in one.key} == {
        "dataloader.collate_fn._target_", "dataloader.collate_fn.max_length"}
