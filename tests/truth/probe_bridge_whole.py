"""Asks Megatron-Bridge for the parameters of models whose tower is transformers' own, on one rank, and of two over tp.

    PYTHONPATH=MEGATRON_LM:MEGATRON_BRIDGE/src python tests/truth/probe_bridge_whole.py

It writes models/bridge-whole-towers-main-2026-08-22.json. Sources and stand-ins are those of `probe_bridge_vision.py`.
Of `ministral` and `gemma`: `whole`, `parallel`: parameters; `averaged`: names whose gradients are averaged over tp
(average_gradients_across_tp_domain). `biases`: what Gemma's biases of attention allocate and free, event by event.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oracle import te_stub
from oracle.steps.tracker import Tracker

te_stub.install()

import torch  # noqa: E402
from megatron.bridge.models.gemma_vl.gemma3_vl_provider import Gemma3VLModelProvider  # noqa: E402
from megatron.bridge.models.gemma_vl.modeling_gemma3_vl import Gemma3VLModel  # noqa: E402
from megatron.bridge.models.ministral3.ministral3_provider import Ministral3ModelProvider  # noqa: E402
from probe_bridge_vision import provided, started  # noqa: E402
from transformers import AutoConfig, SiglipVisionConfig  # noqa: E402

STORED = Path(__file__).parent / "models" / "bridge-whole-towers-main-2026-08-22.json"
ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 256, "llama_4_scaling_beta": 0.1}
MINISTRAL: dict[str, Any] = {
    "model_type": "mistral3", "spatial_merge_size": 2,
    "text_config": {"model_type": "ministral3", "hidden_size": 256, "vocab_size": 512, "intermediate_size": 512,
                    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                    "rope_parameters": ROPE},
    "vision_config": {"model_type": "pixtral", "hidden_size": 96, "head_dim": 24, "intermediate_size": 264,
                      "num_attention_heads": 4, "num_hidden_layers": 2, "patch_size": 14, "image_size": 1540,
                      "hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0}}}


GEMMA: dict[str, Any] = {
    "model_type": "gemma3", "mm_tokens_per_image": 16, "tie_word_embeddings": True,
    "text_config": {"model_type": "gemma3_text", "hidden_size": 256, "vocab_size": 512, "intermediate_size": 512,
                    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                    "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 32, "sliding_window_pattern": 2},
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 96, "image_size": 112, "patch_size": 14,
                      "intermediate_size": 264, "num_attention_heads": 4, "num_hidden_layers": 2,
                      "vision_use_head": False}}
MODELS = {"ministral": MINISTRAL, "gemma": GEMMA}


def provider_of(name: str, tp: int, model: dict[str, Any], pp: int = 1) -> Any:
    """Bridge's provider, as its converter fills it (ministral3_bridge.py:86, gemma3_vl_bridge.py:55)."""
    text = model["text_config"]
    sizes = {"hidden_size": text["hidden_size"], "ffn_hidden_size": text["intermediate_size"],
             "num_layers": text["num_hidden_layers"], "num_attention_heads": text["num_attention_heads"],
             "num_query_groups": text["num_key_value_heads"], "kv_channels": text["head_dim"], "seq_length": 128,
             "vocab_size": text["vocab_size"], "bf16": True, "params_dtype": torch.bfloat16,
             "perform_initialization": False, "gradient_accumulation_fusion": False, "tensor_model_parallel_size": tp,
             "sequence_parallel": tp > 1, "pipeline_model_parallel_size": pp, "pipeline_dtype": torch.bfloat16}
    if name == "ministral":
        fields = {key: value for key, value in model.items() if key != "model_type"}
        return Ministral3ModelProvider(**sizes, share_embeddings_and_output_weights=False,
                                       hf_config=AutoConfig.for_model("mistral3", **fields))
    vision = {key: value for key, value in model["vision_config"].items() if key != "model_type"}
    made = Gemma3VLModelProvider(**sizes, window_size=text["sliding_window"],
                                 vision_config=SiglipVisionConfig(**vision))
    made.vision_projector_config.input_size = vision["hidden_size"]
    made.vision_projector_config.hidden_size = text["hidden_size"]
    return made


def biases(batch: int, seq: int) -> list[int]:
    """Signed bytes of what Gemma3VLModel._compute_attention_biases allocates and frees, until it has returned."""
    ids, tracker = torch.full((batch, seq), 7), Tracker()
    ids[:, 1:17] = 500
    own = SimpleNamespace(config=SimpleNamespace(image_token_id=500, window_size=32))
    with tracker:
        tracker.number_of(ids)
        made = Gemma3VLModel._compute_attention_biases(own, ids, dtype=torch.bfloat16)
        found = [change for _, change in tracker.events]
    assert made is not None
    return found


def measured(name: str, tp: int) -> dict[str, list[str]]:
    """Names and shapes of the parameters of a rank, and names of those that are averaged."""
    started(tp)
    named = list(provided(provider_of(name, tp, MODELS[name]), first=True, last=True).named_parameters())
    return {"parameters": [f"{name} {'x'.join(map(str, p.shape))}" for name, p in named],
            "averaged": [name for name, p in named if getattr(p, "average_gradients_across_tp_domain", False)]}


def asked(name: str, tp: int) -> dict[str, list[str]]:
    """In a process of its own."""
    made = subprocess.run([sys.executable, __file__, name, str(tp)], capture_output=True, text=True, check=False)
    if made.returncode:
        sys.exit(made.stderr)
    found: dict[str, list[str]] = json.loads(made.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Writes the file."""
    if len(sys.argv) == 3:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
        return
    rows: dict[str, Any] = {name: {"fields": fields, "whole": asked(name, 1), "parallel": asked(name, 2)}
                            for name, fields in MODELS.items()}
    rows["biases"] = {"batch": 2, "seq": 64, "events": biases(2, 64)}
    STORED.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
