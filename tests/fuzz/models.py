"""Models to draw: every family, full size or with a few layers, some with sizes that nothing divides."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

import simcore.models
from simcore.models.graph import known_presets

__all__ = ["configuration", "drawn_model", "shortened"]

_COUNTS: Final = ("num_hidden_layers", "n_layer", "n_layers")
_WIDTHS: Final = {"vocab_size": (251, 1000, 32003, 131072), "intermediate_size": (96, 1000, 2816),
                  "num_key_value_heads": (1, 2, 4), "tie_word_embeddings": (True, False),
                  "num_experts_per_tok": (1, 2, 3), "n_routed_experts": (4, 6, 16), "num_local_experts": (2, 6),
                  "num_experts": (4, 12), "moe_intermediate_size": (96, 520)}


@cache
def configuration(preset: str) -> dict[str, Any]:
    """Fields of a shipped model."""
    path = Path(simcore.models.__path__[0]) / "presets" / f"{preset}.json"
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields


def shortened(fields: dict[str, Any], layers: int, random: Random) -> dict[str, Any]:
    """Overrides for `layers` layers, each of a kind that the model has."""
    count = next((key for key in _COUNTS if key in fields), "num_hidden_layers")  # of a decoder inside a model
    made: dict[str, Any] = {count: layers}
    for key, value in fields.items():
        if key == "hybrid_override_pattern":
            made[key] = "".join(random.choice(value) for _ in range(layers))
        elif isinstance(value, list) and len(value) == fields.get(count):
            made[key] = [random.choice(value) for _ in range(layers)]
        elif key == "attn_layer_indices":
            made[key] = sorted(random.sample(range(layers), random.randint(0, layers)))
        elif key == "first_k_dense_replace":
            made[key] = random.randint(0, layers)
    return made


def drawn_model(random: Random) -> str | dict[str, Any]:
    """A preset, or one with some of its keys changed."""
    preset = random.choice(known_presets()) if random.random() < 0.8 else random.choice(
        ("llama-tiny", "nemotron-3-tiny"))
    if random.random() < 0.25:
        return preset
    fields = configuration(preset)
    overrides = shortened(fields, random.choice((1, 2, 3, 4, 6)), random)
    for key, values in _WIDTHS.items():
        if key in fields and random.random() < 0.1:
            overrides[key] = random.choice(values)
    return {"config": preset, "overrides": overrides}
