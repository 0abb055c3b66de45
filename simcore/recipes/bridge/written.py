"""Writes scenarios as recipes of Megatron-Bridge: the nearest recipe of the model by name, with overrides."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from simcore.inputs.scenario import Scenario
from simcore.models.names import find
from simcore.recipes.bridge.named import is_benchmark, recipes
from simcore.recipes.bridge.rows import reason_of
from simcore.recipes.bridge.wanted import wanted
from simcore.recipes.outline import Outline
from simcore.recipes.recipe_writer import Job, RecipeWriter

__all__ = ["WRITER"]

_NAME: Final = "recipe"
_PROGRAM: Final = "scripts/training/run_recipe.py"
_LORA: Final = {"LoRA": False, "DoRA": True}
"""Classes of adapters: True for those with magnitudes."""
_OVERRIDDEN: Final = {"num_hidden_layers": "num_layers", "vocab_size": "vocab_size", "mtp_num_layers": "mtp_num_layers",
                      "mtp_hybrid_override_pattern": "mtp_hybrid_override_pattern",
                      "mtp_use_repeated_layer": "mtp_use_repeated_layer"}
"""Key of Bridge's model by the field of the configuration that it changes."""
_COUNTS: Final = "tokenizer.use_tokenizer_vocab_size"
"""Key with which recipes of pretraining count the tokenizer's rows; the model's own are those of the scenario."""


def _write(outline: Outline) -> None:
    """Writes the name and what the recipe has in another way; the fewest overrides win."""
    _ask_rest(outline)
    found = [(name, _overrides(outline, name)) for name in _candidates(outline)]
    if not found:
        method = outline.value("training.method")
        outline.refuse("model", f"{outline.settled.scenario.model_name}: Bridge has no recipe of this model by its "
                                f"name with the method {method}")
        outline.put(_NAME, "none")
        outline.said.update(outline.given_keys)
        return
    name, _ = min(found, key=lambda one: (len(one[1]), "gpu" in one[0], len(one[0]), one[0]))
    outline.put(_NAME, name)
    for key, value in _overrides(outline, name).items():
        outline.put(key, value)


def _ask_rest(outline: Outline) -> None:
    """Keys that the reader always writes alike, or that the choice of the recipe says."""
    for key in ("framework_version", "implementation", "mesh.dp_shard", "training.method", "training.pipeline.schedule",
                "training.pipeline.layers", "training.precision.params", "training.global_batch_size"):
        outline.value(key)


def _candidates(outline: Outline) -> Iterator[str]:
    """Names of recipes of the scenario's model and method that say the model by its name."""
    scenario, method = outline.settled.scenario, outline.value("training.method")
    wants = method if method != "lora" else outline.value("training.lora.use_dora")
    for name, values in recipes().items():
        model, adapters = values.get("model.hf_model_id"), str(values.get("peft._target_", ""))
        has = _LORA.get(adapters.rpartition(".")[2], "other") if adapters and adapters != "None" else "full"
        is_open = not all(map(reason_of, values.get("?", ()))) or "model.hybrid_layer_pattern" in values
        if isinstance(model, str) and has == wants and not is_open and _is_of(model, scenario):
            yield name


def _is_of(model: str, scenario: Scenario) -> bool:
    """True for a repository of the preset that the scenario names, without its overrides."""
    named, own = find(model), find(scenario.model_name)
    return named is not None and own is not None and (named.preset, named.changed) == (own.preset, own.changed)


def _overrides(outline: Outline, name: str) -> dict[str, Any]:
    """Values that a recipe must have in another way for the scenario."""
    base = {key: value for key, value in recipes()[name].items() if value is not None}
    if is_benchmark(name):  # its batch is scaled with the GPUs unless it is given
        base = {key: value for key, value in base.items() if key != "train.global_batch_size"}
    outline.means.clear()
    asked = [*wanted(outline, base), *((f"model.{key}", _changed(outline.settled.scenario).get(field), None)
                                       for field, key in _OVERRIDDEN.items()),
             (_COUNTS, False, False)]
    return {key: value for key, value, usual in asked if base.get(key, usual) != value}


def _changed(scenario: Scenario) -> Mapping[str, Any]:
    return {} if isinstance(scenario.model, str) else scenario.model.overrides


def _text(keys: Mapping[str, Any], job: Job) -> str:
    """A script with the launch, an override a line."""
    words = [f"{key}={_spelled(value)}" for key, value in _dotted(keys, "") if key != _NAME]
    command = job.torchrun(f"{_PROGRAM} --recipe {keys[_NAME]}").removesuffix("\n")
    return job.exports() + " \\\n  ".join([command, *map(shlex.quote, words)]) + "\n"


def _dotted(keys: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _launch(job: Job) -> str:
    del job
    return ""


WRITER: Final = RecipeWriter(".sh", ("megatron", "megatron_fsdp"), _write, _launch, _text)
