"""What a step of QLoRA allocates: a small Llama that bitsandbytes packs and PEFT adapts, on one process.

    python tests/truth/probe_qlora.py > tests/truth/bitsandbytes/steps-0.50.2.json

Runs on a CPU, two steps of real tensors. Forward of a packed linear is CUDA's own fallback for many rows, in its order
(`backends/cuda/ops.py`, _dequant_linear_fallback), since the CPU's kernel is another one. `rest`: bytes of parameters
and of what their `QuantState` holds; `peak`, `end`: of the second step; `forward`: highest before backward begins.
Adam's counters are left out, and its tables.
"""

from __future__ import annotations

import gc
import json
from typing import Any

import bitsandbytes as bnb
import bitsandbytes.autograd._functions as functions
import peft
import torch
from oracle.fsdp2_tracker import Tracker
from oracle.measured_steps import two_measured_steps
from transformers import BitsAndBytesConfig

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


def built(case: dict[str, Any]) -> Any:
    """The model as transformers loads it and PEFT adapts it."""
    from oracle import fsdp2_models as models  # not with transformers 4, whose probe takes the rest of this file
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import get_keys_to_not_convert

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
    weights = {name: p.data for name, p in plain.named_parameters()}
    double = case.get("double_quant", True)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
                                bnb_4bit_compute_dtype=torch.bfloat16)
    model = replace_with_bnb_linear(plain, get_keys_to_not_convert(plain), config)
    for name, part in model.named_modules():
        if isinstance(part, bnb.nn.Linear4bit):
            old = part.weight
            part.weight = bnb.nn.Params4bit(weights[f"{name}.weight"], requires_grad=False,
                                            compress_statistics=double, quant_type="nf4", module=part).to("cpu")
            del old
    model.is_loaded_in_4bit = True  # what PEFT asks for
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


def measured(case: dict[str, Any]) -> dict[str, int]:
    model = built(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False, fused=True)
    functions.torch = type("torch", (), {**vars(torch), "ops": Ops})  # type: ignore[attr-defined]
    torch.is_autocast_enabled = lambda *_: case.get("autocast", False)  # PEFT asks for that of CUDA

    def loss_of(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with Autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
            return model(input_ids=tokens, labels=labels, use_cache=False).loss

    tracker = Tracker()
    known = rest_of(model)
    with tracker:
        for p in (*model.parameters(), *model.buffers()):
            tracker.number_of(p)
        gc.collect()
        base = sum(change for _, change in tracker.events)
        steps = two_measured_steps(tracker, optimizer, loss_of, int(SHAPE["vocab_size"]))
    more = known - base - 4 * len(trained)
    return {"rest": known, **{name: size + more for name, size in steps.found().items()}}


if __name__ == "__main__":
    rows = {name: case | {"found": measured(case)} for name, case in CASES.items()}
    print(json.dumps({"version": bnb.__version__, "peft": peft.__version__, "cases": rows}, indent=1))
