"""What a step of a small Falcon-H1 allocates under the Trainer's autocast: QLoRA as axolotl prepares it, and LoRA.

    python tests/truth/probe_scan_qlora.py > tests/truth/bitsandbytes/scan-0.50.2.json

As `probe_qlora.py`; Mamba's fused function as `simcore/verify/real/steps/mamba.py` has it. `skipped`: modules that are
not packed; `back`: after PEFT's prepare_model_for_kbit_training norms, embedding and head are cast back to bf16
(axolotl 067b021c `loaders/model.py`, _convert_embedding_modules_dtype). `head`: bytes that the head rests in.
"""

from __future__ import annotations

import json
from typing import Any

import bitsandbytes as bnb
import peft
import torch
from oracle.qlora import packed, steps_of
from oracle.steps import mamba, models

SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "mamba_n_heads": 8, "mamba_d_head": 32,
         "mamba_d_ssm": 256, "mamba_n_groups": 2, "mamba_d_state": 32, "mamba_chunk_size": 64}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "gate_proj", "up_proj", "down_proj"]
QLORA = {"skipped": ["out_proj"], "back": True}
CASES: dict[str, dict[str, Any]] = {
    "axolotl": QLORA, "axolotl, replayed": QLORA | {"recompute": True},
    "axolotl, few targets": QLORA | {"targets": ["q_proj", "v_proj"], "recompute": True},
    "head in 16 bits": {"skipped": ["out_proj", "lm_head"]},
    "head in 16 bits, replayed": {"skipped": ["out_proj", "lm_head"], "recompute": True},
    "16 bits": {}, "16 bits, replayed": {"recompute": True}}


def cast_back(model: Any) -> None:
    for name, module in model.named_modules():
        if not isinstance(module, bnb.nn.Linear4bit) and any(
                part in name for part in ("norm", "embed_tokens", "lm_head")):
            module.to(torch.bfloat16)


def built(case: dict[str, Any]) -> Any:
    """The model as transformers loads it and PEFT adapts it."""
    torch.manual_seed(0)
    plain = models.build_meta("falcon-h1-1.5b", SHAPE).to_empty(device="cpu").to(torch.bfloat16)
    for p in plain.parameters():
        torch.nn.init.normal_(p.data)
    model = packed(plain, double_quant=True, skipped=case["skipped"]) if "skipped" in case else plain
    if case.get("back"):
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        cast_back(model)
    lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=case.get("targets", TARGETS))
    adapted = peft.get_peft_model(model, lora)
    if case.get("recompute"):
        adapted.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
    return adapted.train()


def measured(case: dict[str, Any]) -> dict[str, int]:
    model = built(case)
    head = model.base_model.model.lm_head.weight
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False, fused=True)
    rest, sizes = steps_of(model, optimizer, autocast=True, vocab=int(SHAPE["vocab_size"]))
    return {"rest": rest, **sizes, "head": head.nbytes, "trained": sum(p.numel() for p in trained)}


if __name__ == "__main__":
    mamba.put_in_place()
    print(json.dumps({"version": bnb.__version__, "peft": peft.__version__, "shape": SHAPE})[:-1] + ', "cases": {')
    print(",\n".join(f"{json.dumps(name)}: {json.dumps(case | {'found': measured(case)})}"
                     for name, case in CASES.items()) + "\n}}")
