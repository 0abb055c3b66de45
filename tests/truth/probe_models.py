"""Asks transformers for the parameters of every preset: counts by component, and the tensors of the first layers.

    python tests/truth/probe_models.py > tests/truth/models/transformers-5.23.0.json

Models are built on the meta device by `AutoModelForCausalLM.from_config`; nothing of rankscope is imported.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

PRESETS = Path(__file__).resolve().parents[2] / "simcore" / "models" / "presets"
FIRST_LAYERS = 2
# Words of a name -> component; the first that fits.
WORDS = (("shared_expert", "shared_experts"), ("experts", "routed_experts"), ("mlp.gate.", "router"),
         ("router", "router"), ("norm", "norms"), ("ln_", "norms"), ("attn", "attention"), ("mlp", "mlp"),
         ("ffn", "mlp"),
         ("lm_head", "lm_head"), ("embed", "embedding"), ("wte", "embedding"), ("wpe", "embedding"))


def built(fields: dict[str, Any]) -> Any:
    """The model of a configuration, without storage."""
    fields = dict(fields)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def row(fields: dict[str, Any]) -> dict[str, Any]:
    """Counts of the whole model, names and shapes of its first layers."""
    model = built(fields)
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts[next(component for word, component in WORDS if word in name)] += parameter.numel()
    layers = max(FIRST_LAYERS, fields.get("first_k_dense_replace", 0) + 1)
    small = built({**fields, "num_hidden_layers": layers})
    return {
        "parameters": model.num_parameters(), "components": dict(counts), "num_hidden_layers": layers,
        "tensors": [f"{name} {'x'.join(map(str, p.shape))}" for name, p in small.named_parameters()],
        "buffers": [f"{name} {'x'.join(map(str, b.shape))} {str(b.dtype).removeprefix('torch.')}"
                    for name, b in small.named_buffers()],
    }


def main() -> None:
    """One object, a key a preset; Nemotron-H has a truth of its own (`placement`), MPT with biases is llm-foundry's."""
    fields = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(PRESETS.glob("*.json"))}
    rows = {name: row(one) for name, one in fields.items()
            if one["model_type"] != "nemotron_h" and one.get("no_bias", True)}
    json.dump(rows, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
