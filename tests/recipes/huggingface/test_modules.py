"""Names of linear layers are those of transformers' own models."""

from __future__ import annotations

import json
from typing import Any

from checkout import ROOT
from simcore.models.graph import known_presets
from simcore.recipes.huggingface.modules import LINEARS_BEHIND_TOWERS, family_of, linears_of

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/models/transformers-5.23.0.json").read_text(encoding="utf-8"))
ROUTERS = {"gate", "router"}
"""Modules of the library's own, whose weight is no linear layer's."""


def registered(preset: str) -> set[str]:
    """Last words of matrices of the layers; experts are tensors of three dimensions."""
    named = (spec.split(" ") for spec in TRUTH[preset]["tensors"])
    return {name.split(".")[-2] for name, shape in named if (".layers." in name or ".blocks." in name)
            and shape.count("x") == 1 and name.endswith(".weight")} - ROUTERS


def test_linears_are_those_that_transformers_registers() -> None:
    found = {name: linears_of(family_of(name)) for name in known_presets()
             if name in TRUTH}
    wrong = {name: (linears, registered(name)) for name, linears in found.items()
             if linears and set(linears) != registered(name)}
    assert not wrong
    assert {len(linears) for linears in found.values()} >= {0, 4, 6, 7, 8}


def test_families_with_other_layers_have_no_list() -> None:
    for family in ("bamba", "qwen3_next", "deepseek_v3", "bailing_moe", "nemotron-nas", *LINEARS_BEHIND_TOWERS, "none"):
        assert linears_of(family) == (), family
    assert linears_of("granite") == linears_of("olmo2") == linears_of("llama")
