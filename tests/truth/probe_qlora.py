"""What a step of QLoRA allocates: a small Llama that bitsandbytes packs and PEFT adapts, on one process.

    python tests/truth/probe_qlora.py > tests/truth/bitsandbytes/steps-0.50.2.json

Runs on a CPU, two steps of real tensors. Forward of a packed linear is CUDA's own fallback for many rows, in its order
(`backends/cuda/ops.py`, _dequant_linear_fallback), since the CPU's kernel is another one. `rest`: bytes of parameters
and of what their `QuantState` holds; `peak`, `end`: of the second step; `forward`: highest before backward begins.
Adam's counters are left out, and its tables.
"""

from __future__ import annotations

import json
from typing import Any

import bitsandbytes as bnb
import peft
import torch
from oracle.qlora import Autocast, Ops, packed, rest_of, steps_of

__all__ = ["ALL", "CASES", "SHAPE", "Autocast", "Ops", "built", "measured", "rest_of"]

SHAPE = {"vocab_size": 512, "num_hidden_layers": 3}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES: dict[str, dict[str, Any]] = {
    "all linears": {}, "without double quantisation": {"double_quant": False}, "replayed": {"recompute": True},
    "some linears": {"targets": ["q_proj", "v_proj"], "recompute": True},
    "adapters in fp32": {"adapters": "fp32"}, "adapters in fp32, replayed": {"adapters": "fp32", "recompute": True},
    "tied": {"tied": True, "recompute": True},
    "prepared, autocast": {"kbit": True, "autocast": True, "adapters": "fp32"},
    "prepared, autocast, replayed": {"kbit": True, "autocast": True, "adapters": "fp32", "recompute": True},
    "adapters in fp32, autocast, replayed": {"autocast": True, "adapters": "fp32", "recompute": True},
    "full, autocast": {"full": True, "autocast": True},
    "full, autocast, replayed": {"full": True, "autocast": True, "recompute": True},
    "full, tied, autocast, replayed": {"full": True, "tied": True, "autocast": True, "recompute": True}}


def built(case: dict[str, Any]) -> Any:
    """The model as transformers loads it and PEFT adapts it."""
    from oracle.steps import models  # not with transformers 4, whose probe takes the rest of this file

    torch.manual_seed(0)
    shape = SHAPE | ({"tie_word_embeddings": True} if case.get("tied") else {})
    plain = models.build_meta("llama-tiny", shape).to_empty(device="cpu").to(torch.bfloat16)
    plain.tie_weights()
    for p in plain.parameters():
        torch.nn.init.normal_(p.data)
    if case.get("full"):
        if case.get("recompute"):
            plain.gradient_checkpointing_enable({"use_reentrant": False})
        return plain.float().train()
    model = packed(plain, case.get("double_quant", True))
    if case.get("kbit"):
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=case.get("targets", ALL))
    adapted = peft.get_peft_model(model, lora)
    if case.get("adapters") != "fp32":
        for p in adapted.parameters():  # as TRL 1.16 sft_trainer.py does
            p.data = p.data.to(torch.bfloat16) if p.requires_grad else p.data
    if case.get("recompute"):
        adapted.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
    return adapted.train()


def measured(case: dict[str, Any]) -> dict[str, int]:
    model = built(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False, fused=True)
    rest, sizes = steps_of(model, optimizer, autocast=case.get("autocast", False), vocab=int(SHAPE["vocab_size"]))
    return {"rest": rest, **sizes}


if __name__ == "__main__":
    rows = {name: case | {"found": measured(case)} for name, case in CASES.items()}
    print(json.dumps({"version": bnb.__version__, "peft": peft.__version__, "cases": rows}, indent=1))
