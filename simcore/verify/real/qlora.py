"""QLoRA on one GPU: bitsandbytes packs a model of transformers, PEFT adapts it, two steps of real tensors on a CPU.

Forward of a packed linear is CUDA's own fallback for many rows, in its order (bitsandbytes 0.50.2
`backends/cuda/ops.py`, _dequant_linear_fallback), since the CPU's kernel is another one. Adam's counters are left out,
and its tables.

Case: `fields` (all of a configuration), `double_quant`, `targets`, `rank`, `adapters` (dtype), `kbit`
(prepare_model_for_kbit_training), `autocast`, `recompute`, `optimizer` (keywords of AdamW), `tokens`.
"""

from __future__ import annotations

import gc
from importlib.metadata import version
from typing import Any

import bitsandbytes as bnb
import bitsandbytes.autograd._functions as functions
import peft
import torch
from transformers import BitsAndBytesConfig

from .steps.measured_steps import two_measured_steps
from .steps.products import Zeros
from .steps.tracker import Tracker, short


class Fallback:
    """CUDA's product of many rows."""

    def default(self, a: torch.Tensor, b: torch.Tensor, shape: Any, absmax: torch.Tensor, size: int, kind: str,
                bias: torch.Tensor | None = None, absmax_8bit: torch.Tensor | None = None,
                absmax_code: torch.Tensor | None = None, absmax_offset: torch.Tensor | None = None) -> torch.Tensor:
        if absmax_8bit is not None:
            absmax_dq = torch.ops.bitsandbytes.dequantize_blockwise(absmax_8bit, absmax, absmax_code, 256,
                                                                    torch.float32)
            absmax = absmax_dq + absmax_offset
        whole = torch.ops.bitsandbytes.dequantize_4bit(b, absmax, size, kind, shape, a.dtype)
        return torch.nn.functional.linear(a, whole, bias)


class Autocast(torch.autocast):  # type: ignore[misc]
    """Ends when it ends, whatever PEFT is told of CUDA's."""

    def __exit__(self, *given: Any) -> Any:
        left = super().__exit__(*given)
        torch.set_autocast_enabled("cpu", False)
        return left


class Ops:
    """torch.ops with another product."""

    class bitsandbytes:
        gemm_4bit = Fallback()


def packed(plain: Any, double_quant: bool, device: str = "cpu", skipped: list[str] | None = None) -> Any:
    """The model as transformers loads it in 4 bits; a weight on meta is random, and made when it is packed.

    `skipped`: modules that are not packed, in place of the default ones.
    """
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import get_keys_to_not_convert

    weights = {name: p.data for name, p in plain.named_parameters()}
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double_quant,
                                bnb_4bit_compute_dtype=torch.bfloat16)
    model = replace_with_bnb_linear(plain, get_keys_to_not_convert(plain) if skipped is None else skipped, config)
    for name, part in model.named_modules():
        if isinstance(part, bnb.nn.Linear4bit):
            old, weight = part.weight, weights.pop(f"{name}.weight")
            weight = torch.empty_like(weight, device=device).normal_(std=0.02) if weight.is_meta else weight
            part.weight = bnb.nn.Params4bit(weight, requires_grad=False, compress_statistics=double_quant,
                                            quant_type="nf4", module=part).to(device)
            if part.bias is not None:
                part.bias = torch.nn.Parameter(weights.pop(f"{name}.bias"), requires_grad=False)
            del old, weight
    model.is_loaded_in_4bit = True  # what PEFT asks for
    return model


def rest_of(model: Any) -> int:
    """Storages of parameters and their constants."""
    kept = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    for part in model.modules():
        if isinstance(part, bnb.nn.Linear4bit):
            state = part.weight.quant_state
            more = [state.absmax, state.code]
            more += [state.offset, state.state2.absmax, state.state2.code] if state.nested else []
            kept |= {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in more}
    return sum(kept.values())


def built(case: dict[str, Any]) -> Any:
    """The adapted model."""
    from .steps import models

    torch.manual_seed(0)
    plain = models.build_fields(case["fields"]).to_empty(device="cpu").to(torch.bfloat16)
    plain.tie_weights()
    for p in plain.parameters():
        torch.nn.init.normal_(p.data)
    model = packed(plain, case["double_quant"])
    if case["kbit"]:
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    lora = peft.LoraConfig(r=case["rank"], lora_alpha=2 * case["rank"], target_modules=case["targets"])
    adapted = peft.get_peft_model(model, lora)
    for p in adapted.parameters():  # as TRL 1.16 sft_trainer.py does
        p.data = p.data.to(getattr(torch, case["adapters"])) if p.requires_grad else p.data
    if case["recompute"]:
        adapted.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
    return adapted.train()


def found(case: dict[str, Any]) -> dict[str, Any]:
    """Tensors, and bytes at rest, at the peaks of forward and of the second step, and at its end."""
    model = built(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, **case["optimizer"])
    known, sizes = steps_of(model, optimizer, autocast=case["autocast"], vocab=case["fields"]["vocab_size"],
                            tokens=case["tokens"])
    return {"versions": {name: version(name) for name in ("bitsandbytes", "peft", "torch", "transformers")},
            "tensors": [[name_of(name), p.numel(), short(p.dtype)] for name, p in model.named_parameters()],
            "sizes": {"storage": known, **sizes}}


def steps_of(model: Any, optimizer: torch.optim.Optimizer, *, autocast: bool, vocab: int,
             tokens: int = 64) -> tuple[int, dict[str, int]]:
    """(bytes at rest; bytes at the peaks of forward and of the second step, and at its end)."""
    functions.torch = type("torch", (), {**vars(torch), "ops": Ops})
    torch.is_autocast_enabled = lambda *_: autocast  # PEFT asks for that of CUDA

    def loss_of(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with Autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(input_ids=tokens, labels=labels, use_cache=False).loss

    tracker = Tracker()
    known = rest_of(model)
    with Zeros(), tracker:
        for p in (*model.parameters(), *model.buffers()):
            tracker.number_of(p)
        gc.collect()
        base = sum(change for _, change in tracker.events)
        steps = two_measured_steps(tracker, optimizer, loss_of, vocab, tokens)
    more = known - base - 4 * sum(p.requires_grad for p in model.parameters())
    return known, {name: size + more for name, size in steps.found().items()}


def name_of(name: str) -> str:
    """A parameter's name without what PEFT puts around modules."""
    told = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
    return told.replace(".lora_A.default.", ".lora_a.").replace(".lora_B.default.", ".lora_b.")
