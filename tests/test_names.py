"""Names of frameworks, implementations and their options stand, as text, in their own folders; exceptions are named.

Recipes are a folder of theirs too: it says what the keys of other tools are called here. So are the sides of `verify`.
"""

from __future__ import annotations

import ast
from typing import Final

import pytest

from checkout import ROOT
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.operators.registry import IMPLEMENTATIONS

# File -> (names, reason). A name that its file no longer has must leave the list.
EXCEPTIONS: Final[dict[str, tuple[frozenset[str], str]]] = {
    "cli/first_file.py": (frozenset({"fsdp2"}), "`init` writes an example"),
    "docgen/glossary.py": (frozenset({"fsdp2"}), "an example on a page"),
    "docgen/models.py": (frozenset({"hf"}), "a page shows each family as this implementation builds it"),
    "docgen/asking.py": (frozenset({"attn_implementation", "bnb_4bit_quant_storage", "use_orig_params"}),
                         "small jobs of a page"),
    "docgen/support.py": (frozenset({"attn_implementation", "cpu_offloading_num_layers",
                                     "deallocate_pipeline_outputs", "fp8_all_gather", "fp8_param_gather",
                                     "fp8_recipe"}), "small jobs of a page"),
    "docgen/served.py": (frozenset({"attn_implementation"}), "small jobs of a page"),
    "inputs/training.py": (frozenset({"hf", "megatron"}), "names of losses"),
    "vllm/quantized/recipe.py": (frozenset({"llm_int8_skip_modules"}), "a key of a checkpoint's configuration"),
    **{f"lint/{name}.py": (frozenset(found), "names of formats of recipes, and of their keys") for name, found in {
        "adapters": ["automodel"], "examples": ["automodel", "megatron", "torchtitan"], "keys": ["automodel"],
        "layout": ["automodel"], "training": ["attn_implementation", "automodel"],
        "without_effect": ["automodel", "megatron", "sharding_strategy", "torchtitan"]}.items()},
    "models/families/deepseek.py": (frozenset({"megatron"}), "an implementation's own treatment of the family"),
    "models/families/glm.py": (frozenset({"megatron"}), "an implementation's own treatment of the family"),
    "models/families/gpt_oss.py": (frozenset({"megatron"}), "an implementation's own treatment of the family"),
    "models/families/nemotron_h.py": (frozenset({"hf"}), "an implementation's own treatment of the family"),
    "models/flops.py": (frozenset({"automodel", "kempnerforge", "llmfoundry", "megatron", "torchtitan"}),
                        "published names of conventions, by the program that prints them"),
    "placement/strategy.py": (frozenset({"megatron"}), "a kind of NeMo RL's workers"),
    "recording/layer.py": (frozenset({"hf"}), "the default loss"),
    "rl/verl/fsdp2.py": (frozenset({"reshard_after_forward"}), "what verl's workers wrap, and what they "
                         "always say: a scenario that says otherwise is refused"),
    "rl/step/policy.py": (frozenset({"use_precision_aware_optimizer"}), "what NeMo RL's worker moves depends on it"),
    "validation/step_times.py": (frozenset({"fp8_recipe"}), "measured rows are told apart by it"),
    "validation/tolerance.py": (frozenset({"automodel", "fsdp2", "megatron", "megatron_fsdp"}),
                                "tolerances of measured rows, by framework"),
    "validation/logs/torchtitan.py": (frozenset({"torchtitan"}), "a format of logs"),
}
ORDINARY: Final = frozenset({"attn", "compile", "dispatcher", "experts", "reduce_scatter", "wrap"})
"""Options whose names have other meanings too."""
OWN: Final = ("frameworks/", "recipes/", "verify/sides/", "verify/real/",
             *(f"operators/{name}/" for name in IMPLEMENTATIONS))


def names() -> frozenset[str]:
    """Names of all frameworks, implementations, and options but ordinary words."""
    adapters = [framework_adapter(name) for name in known_frameworks()]
    options = {option for adapter in adapters for implementation in adapter.implementations
               for option in adapter.options(implementation)}
    return frozenset((*known_frameworks(), *IMPLEMENTATIONS, *(options - ORDINARY)))


def written(text: str, searched: frozenset[str]) -> frozenset[str]:
    """Names that stand in the code as texts, alone or as a key of `framework_options`."""
    texts = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)
             and isinstance(node.value, str))
    return searched & {text.removeprefix("framework_options.") for text in texts}


def test_names_stand_in_their_own_folders() -> None:
    searched, elsewhere = names(), dict[str, frozenset[str]]()
    for path in sorted((ROOT / "simcore").rglob("*.py")):
        place = path.relative_to(ROOT / "simcore").as_posix()
        if not place.startswith(OWN) and (there := written(path.read_text(encoding="utf-8"), searched)):
            elsewhere[place] = there
    assert elsewhere == {place: allowed for place, (allowed, _) in EXCEPTIONS.items()}


@pytest.mark.parametrize("text", ['x = "fsdp2"', 'options["fp8_recipe"]', 'at = "framework_options.wrap_x"'])
def test_a_name_would_be_seen(text: str) -> None:
    assert written(text, frozenset({"fsdp2", "fp8_recipe", "wrap_x"}))
