"""Asks transformers for the parameters of every preset: counts by component, and the tensors of the first layers.

    python tests/truth/probe_models.py > tests/truth/models/transformers-5.23.0.json
    python tests/truth/probe_models.py --check      # asks again and compares with that file

Models are built on the meta device by `AutoModelForCausalLM.from_config`; nothing of rankscope is imported.
`OTHER_SIZES` has more models: presets with fields changed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, Mistral4ForCausalLM

HERE = Path(__file__).resolve().parent
PRESETS = HERE.parents[1] / "simcore" / "models" / "presets"
STORED = HERE / "models" / "transformers-5.23.0.json"
OTHER_SIZES = HERE / "models" / "other-sizes.json"
FIRST_LAYERS = 2
SEVERAL = ("internvl", "llava", "mistral3")  # families with decoders and towers of several types
REMOTE = ("bailing_moe", "nemotron-nas", "step3p5")  # transformers has no code for them, or none of text alone
TOWER_LAYER = re.compile(
    r"(?:vision_tower\.(?:encoder|transformer)\.layers?|visual\.blocks|audio_tower\.layers)\.(\d+)\.")
# Words of a name -> component; the first that fits.
WORDS = (("attn_hc", "residual_streams"), ("ffn_hc", "residual_streams"), ("hc_head", "residual_streams"),
         ("vision_tower", "vision_tower"), ("visual.merger", "projector"), ("deepstack", "projector"),
         ("visual", "vision_tower"), ("multi_modal_projector", "projector"),
         ("embed_vision", "projector"), ("embed_audio", "projector"), ("audio_tower", "sound_tower"),
         ("embed_tokens_per_layer", "layer_inputs"), ("per_layer_model_projection", "layer_inputs"),
         ("per_layer_projection_norm", "layer_inputs"), ("per_layer_input_gate", "mlp"),
         ("per_layer_projection", "mlp"),
         ("linear_attn", "delta_net"), ("shared_expert", "shared_experts"), ("experts", "routed_experts"),
         ("mlp.gate.", "router"), ("mixer.gate.", "router"), ("router", "router"),
         ("latent_proj", "latent_projections"), ("mamba.", "mamba"),
         *((f"mixer.{part}_proj", "attention") for part in "qkvo"), ("mixer.up_proj", "mlp"),
         ("mixer.down_proj", "mlp"), ("mixer.", "mamba"), ("norm", "norms"), ("ln_", "norms"), ("attn", "attention"),
         ("attention.", "attention"),
         ("mlp", "mlp"), ("ffn", "mlp"), ("feed_forward", "mlp"), (".linear.", "mlp"), ("lm_head", "lm_head"),
         ("embed", "embedding"), ("wte", "embedding"), ("wpe", "embedding"))


def built(fields: dict[str, Any]) -> Any:
    """The model of a configuration, without storage."""
    fields = dict(fields)
    for part in ("text_config", "vision_config", "audio_config"):
        if fields.get(part) and fields["model_type"] not in SEVERAL:
            fields[part] = {key: value for key, value in fields[part].items() if key != "model_type"}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        if config.model_type == "mistral4":  # not among those that `AutoModelForCausalLM` knows
            return Mistral4ForCausalLM(config)
        return (AutoModelForImageTextToText if "vision_config" in fields else AutoModelForCausalLM).from_config(
            config)


def first_layers(fields: dict[str, Any]) -> int:
    """So many that each kind of layer is among them; of shared layers one that uses another's weights."""
    fields = fields.get("text_config", fields)
    plain = max(FIRST_LAYERS, fields.get("first_k_dense_replace", 0) + 1, fields.get("full_attention_interval", 0))
    kinds = fields.get("hybrid_override_pattern") or fields.get("layer_types") or fields.get("layers_block_type") or []
    seen = [max(kinds.index(kind) for kind in set(kinds)) + 1] if kinds else []
    shared = [i for i, kind in enumerate(kinds) if kind == "hybrid"][:fields.get("num_mem_blocks", 0) + 1]
    attention = (fields.get("attn_layer_indices") or [0])[0] + 1
    # Layers that use others' keys and values come last: as many of them as of the others.
    times = 2 if fields.get("num_kv_shared_layers") else 1
    return times * int(max(plain, attention, *seen, *(i + 1 for i in shared)))


def cut(fields: dict[str, Any], layers: int) -> dict[str, Any]:
    """The configuration with its first layers alone."""
    if "text_config" in fields:
        return {**fields, "text_config": cut(fields["text_config"], layers)}
    kinds = ("hybrid_override_pattern", "layer_types", "layers_block_type", "mlp_layer_types")
    shared = {"num_kv_shared_layers": layers // 2} if fields.get("num_kv_shared_layers") else {}
    return {**fields, "num_hidden_layers": layers} | {k: fields[k][:layers] for k in kinds if fields.get(k)} | shared


def component_of(name: str, *, sparse: bool) -> str:
    """What a parameter belongs to; an MLP that stands beside experts is a shared one."""
    if "shared_mlp" in name:
        return "shared_experts" if sparse else "mlp"
    return next(component for word, component in WORDS if word in name)


def row(fields: dict[str, Any]) -> dict[str, Any]:
    """Counts of the whole model, names and shapes of its first layers, of a vision tower the first two."""
    model = built(fields)
    sparse = any(".experts." in name for name, _ in model.named_parameters())
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts[component_of(name, sparse=sparse)] += parameter.numel()
    layers = first_layers(fields)
    small = built(cut(fields, layers))
    return {
        "parameters": model.num_parameters(), "components": dict(counts), "num_hidden_layers": layers,
        "tensors": [f"{name} {'x'.join(map(str, p.shape))}" for name, p in small.named_parameters()
                    if _is_told(name)],
        "buffers": [f"{name} {'x'.join(map(str, b.shape))} {str(b.dtype).removeprefix('torch.')}"
                    for name, b in small.named_buffers() if _is_told(name)],
    }


def _is_told(name: str) -> bool:
    return not (found := TOWER_LAYER.search(name)) or int(found[1]) < FIRST_LAYERS


def cases() -> dict[str, dict[str, Any]]:
    """Configurations by name."""
    fields = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in PRESETS.glob("*.json")}
    others = json.loads(OTHER_SIZES.read_text(encoding="utf-8"))
    fields |= {name: {**fields[case["preset"]], **case["overrides"]} for name, case in others.items()}
    return {name: fields[name] for name in sorted(fields) if fields[name]["model_type"] not in REMOTE}


def main() -> int:
    """One object, a key a model; with names only those are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true", help="compare with the stored rows, write nothing")
    asked = parser.parse_args()
    rows = {name: row(fields) for name, fields in cases().items() if not asked.names or name in asked.names}
    if not asked.check:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return 0
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    different = [name for name in {**stored, **rows} if stored.get(name) != rows.get(name)
                 and (not asked.names or name in asked.names)]
    print(f"{len(rows)} models asked for, {len(different)} differ: {', '.join(different) or 'none'}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
