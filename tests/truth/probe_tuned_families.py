"""What a step of LoRA and QLoRA under the Trainer's autocast allocates: families with biases, and with experts.

    python tests/truth/probe_tuned_families.py > tests/truth/bitsandbytes/families-0.50.2.json

As `probe_qlora.py`. `kbit`: PEFT's prepare_model_for_kbit_training; `back`: norms, embedding and head are cast back to
bf16 behind it (axolotl 067b021c `loaders/model.py`, _convert_embedding_modules_dtype). `biases`: dtypes of the biases
of packed linears behind two steps.
"""

from __future__ import annotations

import json
from typing import Any

import bitsandbytes as bnb
import peft
import torch
from oracle.qlora import packed, steps_of
from oracle.steps import models
from probe_scan_qlora import cast_back

SMALL = {"vocab_size": 512, "num_hidden_layers": 3, "hidden_size": 256, "intermediate_size": 512,
         "num_attention_heads": 4, "num_key_value_heads": 2}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
QWEN2 = {"preset": "qwen2.5-7b", "shape": SMALL, "packs": True, "kbit": True}
CASES: dict[str, dict[str, Any]] = {
    "qwen2, prepared": QWEN2, "qwen2, prepared, replayed": QWEN2 | {"recompute": True},
    "qwen2, prepared and cast back, replayed": QWEN2 | {"back": True, "recompute": True}}


def built(case: dict[str, Any]) -> Any:
    """The model as transformers loads it and PEFT adapts it."""
    torch.manual_seed(0)
    plain = models.build_meta(case["preset"], case["shape"]).to_empty(device="cpu").to(torch.bfloat16)
    plain.tie_weights()
    for p in plain.parameters():
        torch.nn.init.normal_(p.data)
    model = packed(plain, double_quant=True) if case.get("packs") else plain
    if case.get("kbit"):
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if case.get("back"):
        cast_back(model)
    lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=case.get("targets", ATTENTION))
    adapted = peft.get_peft_model(model, lora)
    if case.get("recompute"):
        adapted.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
    return adapted.train()


def measured(case: dict[str, Any]) -> dict[str, Any]:
    model = built(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False, fused=True)
    _, sizes = steps_of(model, optimizer, autocast=True, vocab=int(case["shape"]["vocab_size"]))
    biases = {str(part.bias.dtype) for part in model.modules()
              if isinstance(part, bnb.nn.Linear4bit) and part.bias is not None}
    return {**sizes, "trained": sum(p.numel() for p in trained), "biases": sorted(biases)}


if __name__ == "__main__":
    print(json.dumps({"version": bnb.__version__, "peft": peft.__version__})[:-1] + ', "cases": {')
    print(",\n".join(f"{json.dumps(name)}: {json.dumps(case | {'found': measured(case)})}"
                     for name, case in CASES.items()) + "\n}}")
