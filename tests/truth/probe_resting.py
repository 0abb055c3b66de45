"""Measures models that read images where they are given text alone: what a step makes, and what the tower takes.

    python tests/truth/probe_resting.py > tests/truth/tape/resting-torch-2.13.0-transformers-5.23.0.json

Models of `sees.py`, in bf16 on a CPU. `step`: bytes by size that the second step of the whole model makes more, and
fewer, than that of its decoder alone. `packed`: bytes by name of each parameter of the tower after transformers has
packed the linears by bitsandbytes, PEFT's prepare_model_for_kbit_training, and the casts of axolotl 067b021c
`loaders/model.py` _convert_embedding_modules_dtype; `adapted`: linears of the tower that names of `TARGETS` adapt.
"""

from __future__ import annotations

import gc
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from oracle import logs
from oracle.cast_back import cast_back
from oracle.steps import delta
from oracle.steps.tracker import Tracker

delta.put_in_place()  # the decoder of Qwen 3.5, of which nothing is told

from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training  # noqa: E402
from sees import FAMILIES  # noqa: E402
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, BitsAndBytesConfig  # noqa: E402

HERE = Path(__file__).resolve().parent
TARGETS = ["q_proj", "o_proj", "down_proj", "linear_fc1"]


def made(model: Any, ids: torch.Tensor) -> Counter[int]:
    """Signed bytes of the second step, by their number."""
    tracker = Tracker()
    with tracker:
        for known in (*model.parameters(), *model.buffers(), ids):
            tracker.number_of(known)
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            gc.collect()
            start = len(tracker.events)
            out = model(input_ids=ids, use_cache=False)
            out.logits.float().sum().backward()
            del out
            gc.collect()
    return Counter(change for _, change in tracker.events[start:])


def compared(model: Any, case: dict[str, Any]) -> dict[str, Any]:
    """What the whole model makes more, and fewer, than its decoder."""
    ids = torch.full((case["batch"], case["seq"]), 7)
    whole = made(model, ids)
    alone = made(AutoModelForCausalLM.from_config(model.config.text_config).to(torch.bfloat16).train(), ids)
    return {"more": sorted((whole - alone).items()), "fewer": sorted((alone - whole).items())}


def packed(model: Any) -> tuple[dict[str, int], list[str]]:
    """Bytes of the tower's parameters, packed, by name; and its adapted linears."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        read = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.bfloat16, device_map="cpu", quantization_config=BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16))
    read = prepare_model_for_kbit_training(read, use_gradient_checkpointing=False)
    cast_back(read)
    inside = ("model.visual.", "model.vision_tower.", "model.multi_modal_projector.")
    sizes = {name: parameter.untyped_storage().nbytes() for name, parameter in read.named_parameters()
             if name.startswith(inside)}
    adapted = get_peft_model(read, LoraConfig(r=4, target_modules=TARGETS))
    names = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name, _ in adapted.named_parameters()
             if ".lora_" in name}
    return sizes, sorted(name for name in names if name.startswith(inside))


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """All of one model."""
    torch.manual_seed(0)
    model = FAMILIES[case["fields"]["model_type"]].built(case).to(torch.bfloat16).train()
    step = compared(model, case)
    sizes, adapted = packed(model)
    return {"step": step, "packed": sizes, "adapted": adapted, "targets": TARGETS, "sections": []}


if __name__ == "__main__":
    logs.main(__file__, measured, HERE / "tape" / "cases-resting.json")
