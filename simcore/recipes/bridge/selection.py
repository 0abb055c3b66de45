"""Recipe that a launch selects by the name of its model: `--model X --mode M`, or the performance launcher's options.

Megatron-Bridge 067f987d scripts/training/run_recipe.py:418 (_selected_recipe_name); scripts/performance/utils/utils.py:
447 (_recipe_function_name) and :593: without a recipe for the number of GPUs it is the largest, or the one of a table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.bridge.options import launcher_of
from simcore.recipes.shell.pieces import Word

__all__ = ["TASKS", "selected", "selects"]

TASKS: Final = {"pretrain": "pretrain", "sft": "sft", "lora": "peft", "dora": "peft"}
"""Task of a recipe's name by the mode (scripts/training/recipe_metadata.py, recipe_task)."""
_BY_MODEL: Final = {"--model": "model", "--mode": "mode"}
_BY_PERFORMANCE: Final = {
    "-mr": "model", "--model_recipe_name": "model", "--task": "task", "-ng": "gpus", "--num_gpus": "gpus", "-g": "gpu",
    "--gpu": "gpu", "-c": "precision", "--compute_dtype": "precision", "-cv": "variant", "--config_variant": "variant"}
_DEFAULTS: Final = {"task": "pretrain", "precision": "bf16", "variant": ""}
_TEXT: Final = re.compile(r"\b(?:run_recipe|run_script|bootstrap|setup_experiment|launch_with_nemo_run)\.py\b|"
                          r"\btraining/train\.sh\b")
_SELECTS: Final = re.compile(r"(?:^|\s)(?:--model|-mr|--model_recipe_name)[\s=]")
_GRACE: Final = ("gb200", "gb300")
_CHOSEN: Final[Mapping[str, int]] = {
    **{f"llama3_8b_pretrain_{gpu}_{kind}": 8 for gpu in ("h100", "b200", *_GRACE) for kind in ("bf16", "fp8cs")},
    "llama3_8b_pretrain_gb300_fp8mx": 8, "llama3_8b_pretrain_gb300_nvfp4": 8,
    "nemotronh_56b_pretrain_b200_fp8cs": 64, "nemotronh_56b_pretrain_gb300_fp8cs": 64,
    **{f"qwen3_30b_a3b_pretrain_{gpu}_{kind}": 8 for gpu in ("b200", *_GRACE) for kind in ("bf16", "fp8cs")},
    "qwen3_30b_a3b_pretrain_h100_bf16": 16, "qwen3_30b_a3b_pretrain_h100_fp8cs": 16}
"""GPUs of the recipe that is taken for other numbers of GPUs (utils.py:67), where it is not the largest."""


def selects(text: str) -> bool:
    """True for the text of a launch that selects a recipe by its model."""
    return bool(_TEXT.search(text) and _SELECTS.search(text))


def selected(words: Sequence[Word], path: str, names: Collection[str]) -> tuple[str, int] | None:
    """Recipe that a command selects, and the number of the word by which; None for another command.

    InputError, at the word, for a model, or a combination, that is none of `names`.
    """
    if not any(launcher_of(word.text).is_named for word in words):
        return None
    options = _BY_PERFORMANCE if any(word.text.partition("=")[0] in ("-mr", "--model_recipe_name") for word in words) \
        else _BY_MODEL
    found, number = dict(_DEFAULTS if options is _BY_PERFORMANCE else {}), -1
    for place, word in enumerate(words):
        option, has_value, value = word.text.partition("=")
        if option not in options:
            continue
        given = word if has_value or place + 1 == len(words) else words[place + 1]
        if given.unknown:
            raise InputError(Problem(f"{path}:{word.line}", f"{option}: its value depends on {given.unknown}"))
        found[options[option]] = value if has_value else given.text
        number = place if options[option] == "model" else number
    if number < 0:
        return None
    where = f"{path}:{words[number].line} {words[number].text}"
    name = _of_performance(found, where, names) if options is _BY_PERFORMANCE else _of_model(found, where)
    if name not in names:
        near = difflib.get_close_matches(name, sorted(names), 1, 0.8)
        raise InputError(Problem(where, f"Bridge has no recipe {name}{f'; did you mean {near[0]}?' if near else ''}"))
    return name, number


def _of_model(found: Mapping[str, str], where: str) -> str:
    mode = found.get("mode", "")
    if mode not in TASKS:
        raise InputError(Problem(where, f"--mode: expected {', '.join(TASKS)}" + (f", got {mode!r}" if mode else "")))
    return f"{found['model']}_{TASKS[mode]}_config"


def _of_performance(found: Mapping[str, str], where: str, names: Collection[str]) -> str:
    """Name by the options; where the GPUs have none, that of other GPUs."""
    if missing := [name for name in ("gpus", "gpu") if name not in found]:
        raise InputError(Problem(where, f"the launcher needs {' and '.join(_SPELLED[name] for name in missing)}"))
    variant = found["variant"].lower()
    end = f"{found['gpu'].lower()}_{found['precision'].lower().replace('_', '')}" + (
        "" if variant in ("", "v1", "v2") else f"_{variant}")
    start = f"{found['model'].lower()}_{found['task']}"
    pattern = re.compile(rf"{re.escape(start)}_(\d+)gpu_{re.escape(end)}_config")
    sizes = sorted(int(one[1]) for one in map(pattern.fullmatch, names) if one)
    wanted = int(found["gpus"]) if found["gpus"].isdigit() else 0
    if wanted not in sizes and sizes:
        wanted = _CHOSEN.get(f"{start}_{end}", sizes[-1])
    return f"{start}_{wanted}gpu_{end}_config"


_SPELLED: Final = {"gpus": "-ng", "gpu": "-g"}
