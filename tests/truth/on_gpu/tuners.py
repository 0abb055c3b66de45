"""Adapters over weights in 4 bits: transformers with bitsandbytes and PEFT, and Unsloth's model."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from on_gpu.makers import Keys, Made, adamw, autocast_loss, batches, plain


def qlora(scenario: dict[str, Any], torch: Any, device: str) -> Made:
    """One process without a wrapper, prepared for training as PEFT's guide says, forward under autocast."""
    import peft
    from oracle.qlora import packed

    keys = Keys(scenario)
    fields = keys.fields()
    assert keys.take("training.method") == "qlora"
    assert keys.take("framework_options.prepare_model_for_kbit_training")
    assert keys.take("training.precision.params") == "fp32"
    bare = plain(fields, torch, "meta", torch.bfloat16, None)
    bare.to_empty(device=device) if device == "cpu" else _materialised(bare, torch, device)
    model = peft.prepare_model_for_kbit_training(packed(bare, double_quant=True, device=device),
                                                 use_gradient_checkpointing=False)
    rank = keys.take("training.lora.rank")
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=keys.take("training.lora.target_modules"))).train()
    if keys.take("training.recompute") == "full":
        model.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
    loss = autocast_loss(model, torch, device)
    made = Made(loss, batches(keys, torch, device, fields["vocab_size"]), adamw(keys, torch, model))
    keys.check_all_taken()
    return made


def _materialised(model: Any, torch: Any, device: str) -> None:
    """Gives what is not packed random values on the device; weights of linears stay on meta until they are packed."""
    linears = {id(part.weight) for name, part in model.named_modules()
               if isinstance(part, torch.nn.Linear) and name != "lm_head"}
    for part in model.modules():
        for name, p in list(part.named_parameters(recurse=False)):
            if id(p) not in linears:
                value = torch.empty_like(p, device=device).normal_(std=0.02)
                setattr(part, name, torch.nn.Parameter(value, requires_grad=p.requires_grad))
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(rotary.config, device=device)


def unsloth(scenario: dict[str, Any], torch: Any, device: str) -> Made:
    """Unsloth's FastLanguageModel over a random checkpoint on disk, with its checkpoints on the host."""
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    from unsloth import FastLanguageModel  # before transformers, which it patches

    keys = Keys(scenario)
    fields, seq = keys.fields(), scenario["training"]["seq_len"]
    assert keys.take("training.method") == "qlora"
    assert keys.take("framework_options.FastLanguageModel")
    assert keys.take("training.precision.params") == "bf16"
    assert (keys.take("training.recompute"), keys.take("training.offload.activations")) == ("full", "host")
    with tempfile.TemporaryDirectory() as folder:
        plain(fields, torch, device, torch.bfloat16, None).save_pretrained(folder)
        model, _ = FastLanguageModel.from_pretrained(folder, max_seq_length=seq, dtype=torch.bfloat16,
                                                     load_in_4bit=True, local_files_only=True)
    rank = keys.take("training.lora.rank")
    model = FastLanguageModel.get_peft_model(
        model, r=rank, lora_alpha=2 * rank, target_modules=keys.take("training.lora.target_modules"), lora_dropout=0,
        bias="none", use_gradient_checkpointing="unsloth", max_seq_length=seq)
    loss = autocast_loss(FastLanguageModel.for_training(model), torch, device)
    made = Made(loss, batches(keys, torch, device, fields["vocab_size"]), adamw(keys, torch, model))
    keys.check_all_taken()
    return made
