"""Names that stand for a model in a recipe, and the preset that words beside them mean."""

from __future__ import annotations

from simcore.models.names import names_of, presets
from simcore.models.placeholders import is_placeholder, likely, meant

STAND: tuple[str, ...] = (
    "/path/to/model", "path/to/checkpoint", "./path_to/model", "<path_to_dsv3_config>", "/data/<your model>",
    "MODEL_PATH", "model_path", "Follow instructions in https://github.com/NVIDIA-NeMo/RL/blob/main/docs/guides/deepseek.md")
NAMES: tuple[str, ...] = ("Qwen/Qwen3-8B", "models/Llama 3", "/mnt/models/qwen", "./config.json", "~/pathology/to.json",
                          "model_path/config.json")


def test_words_that_stand_for_a_model_are_told_from_names() -> None:
    assert [text for text in STAND if not is_placeholder(text)] == []
    named = [*NAMES, *(name for preset in presets() for name in names_of(preset))]
    assert [text for text in named if is_placeholder(text)] == []


def test_the_model_that_words_mean_is_the_longest_name_in_them() -> None:
    for texts, name in ((("nemo_gym/grpo_nanov3.yaml",), "nemotron-3-nano-30b-a3b"),
                        (("/path/to/model", "nemotron-3-super/stage1_rlvr.yaml"), "nemotron-3-super-120b-a12b"),
                        (("nemo_gym/grpo_qwen3_30ba3b_thinking_swe2.yaml",), "Qwen/Qwen3-30B-A3B-Thinking-2507"),
                        (("grpo-qwen3-30ba3b.yaml",), "qwen3-30b-a3b"),
                        (("docs/guides/deepseek.md", "dapo.yaml"), "deepseek-v3"),
                        (("<path_to_dsv3_config>",), "deepseek-v3"),
                        (("/path/to/deepseek-v32",), ""), (("nemotron-3-super-omni/run.yaml",), ""),
                        (("phi-2.yaml",), ""), (("/path/to/model", "mine.yaml"), "")):
        assert meant(*texts) == name, texts


def test_a_model_is_named_after_the_one_whose_family_version_and_size_it_has() -> None:
    for name, preset in (("princeton-nlp/Llama-3-Base-8B-SFT", "llama-3-8b"),
                         ("allenai/Llama-3.1-Tulu-3-70B-SFT", "llama-3.1-70b"), ("me/qwen3-0.6b-mine", "qwen3-0.6b"),
                         ("me/dolphin-2.9-llama3-8b", "llama-3-8b")):
        assert likely(name) == preset, name


def test_a_name_of_other_layers_formats_or_sizes_is_left_open() -> None:
    for name in ("Qwen/Qwen3-8B", "me/tulu-2-7b", "unsloth/llama-3-8b-bnb-4bit", "me/Qwen2.5-7B-Instruct-GPTQ-Int4",
                 "me/Qwen3-VL-9B", "Qwen/Qwen3-Omni-30B-A3B", "me/qwen3-1.7b_eagle3", "gpt2-medium",
                 "me/merge-of-qwen3-8b-and-llama-3-8b", "me/llama-3-base-9b", "some/words"):
        assert likely(name) == "", name
