"""Kinds of jobs of upstream's recipes, told by path, text and what an import says: the table counts them apart.

`text`: trains a language model on texts, also by preferences and rewards. `images`: with images, video or sound.
`other`: neither: generates or evaluates, converts, prepares data, trains BERT, T5 or a diffusion model, or is a part of
a recipe, which another file completes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

TEXT, IMAGES, OTHER = KINDS = ("text", "images", "other")
_OTHER_PATH: Final = re.compile(
    r"/(evals|inference|merge_lora|cloud|modelopt/quant_configs|post_training|ft_launcher|academic_paper_scripts|bert|t5|rl/model_configs)/|"
    r"/(prefetch_\w+|text_generation\w*|run_text_\w+|\w*checkpoint\w*)\.\w+$|"
    r"/(sglang_multiturn|split_placement|tests/trainer)/config/|/(bert|t5)-nemo|/(ckpt_converter|nlg_eval|multi_tokens|"
    r"export_lora|quantization|qwen3_preprocess)\b|/(wan|flux)_", re.IGNORECASE)
"""Folders and files of evaluation, generation, conversion, parts of recipes and diffusion."""
_OTHER_TEXT: Final = re.compile(r"^MODE: inference$", re.MULTILINE)
"""Key of Megatron-LM's tests that generate."""
_OTHER_SAID: Final = ("generation of text", "encoder and decoder (T5)", "a vocabulary of word pieces: BERT or T5")
"""Parts of refusals of Megatron-LM's arguments."""
_IMAGES_PATH: Final = re.compile(
    r"/(vlm|vlm_finetune|multimodal|mimo/scripts|test_cases/mimo)/|multimodal|llava|omni|audio|avlm|vlm_|[-_]vlm|mossvl|qwen\d*vl|"
    r"[-_\d]vl[-_\d./]|kimi_k25|glm_45v|^/0/(ministral3|step37)_", re.IGNORECASE)
_IMAGES_TEXT: Final = re.compile(r"^(processor_type|image_dir|image_max_pixels):|^model_name_or_path: .*-VL-|"
                                 r"FinetuneRecipeForVLM", re.MULTILINE)
"""Keys of axolotl, LLaMA-Factory and Automodel that only recipes with images have."""


def job_of(path: str, text: str, said: Iterable[str]) -> str:
    """Kind of the job of a recipe.

    `path`: within its repository, with a slash before it; `text`: of the file; `said`: messages of its import.
    """
    if (_OTHER_PATH.search(path) or _OTHER_TEXT.search(text)
            or any(part in message for message in said for part in _OTHER_SAID)):
        return OTHER
    return IMAGES if _IMAGES_PATH.search(path) or _IMAGES_TEXT.search(text) else TEXT
