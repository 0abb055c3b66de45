"""Measures steps of small models that read images beside a base in 4 bits, prepared and cast back as axolotl does it.

    python tests/truth/probe_vision_packed.py > tests/truth/tape/vision-packed-torch-2.13.0-transformers-5.23.0.json

As `probe_vision_adapted.py`, whose cases these are: bitsandbytes packs all linears but the head, those of the tower
too; PEFT's prepare_model_for_kbit_training casts what is not packed to fp32; of that axolotl 067b021c
`loaders/model.py`, _convert_embedding_modules_dtype, casts back modules with "norm" in their name, and embedding and
head. Products are CUDA's own fallback for many rows (`simcore/verify/real/qlora.py`), in 8 bits those of
`probe_int8.py`. `wide`: parameters that are in fp32 behind a step, with their shapes.
"""

from __future__ import annotations

from typing import Any

import bitsandbytes as bnb
import bitsandbytes.autograd._functions as functions
import peft
import probe_int8
import probe_vision_adapted as adapted
import torch
from oracle import logs, qlora
from oracle.cast_back import cast_back
from sees import FAMILIES

SERVED = ("mistral3", "gemma3", "internvl")


def built(case: dict[str, Any]) -> Any:
    """The packed model as PEFT adapts it, inside transformers' checkpoints if the case asks for them."""
    torch.manual_seed(0)
    plain = FAMILIES[case["fields"]["model_type"]].built(case).to(torch.bfloat16)
    base = probe_int8.packed(plain) if case.get("bits") == 8 else qlora.packed(plain, double_quant=True)
    model = peft.prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    cast_back(model)
    made = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=adapted.PATTERN))
    if case.get("recompute"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    scales = [part.weight.SCB for part in model.modules() if isinstance(part, bnb.nn.Linear8bitLt)]
    buffers = list(model.buffers())
    model.buffers = lambda: (*buffers, *scales)  # so that they are known before the first step
    return made.train()


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Sections of the second step, and what stays in fp32."""
    if case.get("bits") == 8:
        probe_int8.put_in_place()
    functions.torch = type("torch", (), {**vars(torch), "ops": qlora.Ops})
    kept: list[Any] = []

    def build(case: dict[str, Any]) -> Any:
        kept.append(built(case))
        return kept[-1]

    adapted.built = build
    found = adapted.measured(case)
    wide = {name.removeprefix("base_model.model."): list(p.shape) for name, p in kept[-1].named_parameters()
            if p.dtype == torch.float32 and not p.requires_grad}
    return {**found, "wide": wide}


def cases() -> list[dict[str, Any]]:
    """Cases of a base in 4 bits, and of Mistral 3's in 8."""
    found = [case for case in adapted.cases() if case["fields"]["model_type"] in SERVED and not case.get("full")]
    return [*found, *(case | {"name": f"{case['name']}, int8", "bits": 8} for case in found
                      if case["name"].startswith("mistral3"))]


if __name__ == "__main__":
    logs.main(__file__, measured, cases())
