"""What a step over a base in LLM.int8() allocates: a small Llama that bitsandbytes packs and PEFT adapts.

    python tests/truth/probe_int8.py > tests/truth/bitsandbytes/int8-0.50.2.json

As `probe_qlora.py`. Training takes `MatMul8bitLt` as on CUDA (a CPU has a function of its own), over the operators that
CUDA has (`backends/cuda/ops.py`: int8_vectorwise_quant, int8_linear_matmul, int8_mm_dequant): the same allocations, no
values, and no outlier.
"""

from __future__ import annotations

import json
from typing import Any

import bitsandbytes as bnb
import bitsandbytes.autograd._functions as functions
import peft
import probe_qlora
import torch
from oracle import qlora
from oracle.steps import models
from transformers import BitsAndBytesConfig
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.base import get_keys_to_not_convert

SOME = ["q_proj", "v_proj"]
CASES: dict[str, dict[str, Any]] = {
    "all linears": {}, "replayed": {"recompute": True}, "some linears": {"targets": SOME},
    "some linears, replayed": {"targets": SOME, "recompute": True}, "without a threshold": {"threshold": 0.0},
    "adapters in fp32": {"adapters": "fp32"}, "fp16": {"compute": "fp16"},
    "prepared, autocast": {"kbit": True, "autocast": True, "adapters": "fp32"},
    "prepared, autocast, replayed": {"kbit": True, "autocast": True, "adapters": "fp32", "recompute": True}}


def quantised(a: torch.Tensor, threshold: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """CUDA's int8_vectorwise_quant: rows, their maxima, columns of outliers."""
    stats = torch.empty(a.numel() // a.shape[-1], dtype=torch.float32)
    out, columns = torch.empty(a.shape, dtype=torch.int8), None
    if threshold > 0.0:
        outliers = a.abs() >= threshold
        columns = torch.empty(0, dtype=torch.int64)
        del outliers
    return out.zero_(), stats.zero_(), columns


def product(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, bias: Any = None,
            dtype: Any = None) -> torch.Tensor:
    """int8_scaled_mm over CUDA's two kernels."""
    whole = torch.empty((*a.shape[:-1], b.shape[0]), dtype=torch.int32)
    return torch.empty_like(whole, dtype=torch.float16).zero_().to(dtype or torch.float16)


class Scaled:
    default = staticmethod(product)


class Ops:
    """torch.ops with CUDA's."""

    class bitsandbytes:
        int8_scaled_mm = Scaled()

        @staticmethod
        def int8_mixed_scaled_mm(a: Any, ca: Any, cb: Any, rows: Any, columns: Any, outliers: Any,
                                 bias: Any) -> tuple[Any, Any]:
            sub = torch.empty(0, dtype=a.dtype)
            return product(ca, cb, rows, columns, bias, a.dtype), sub


class Functional:
    """The one function that forward asks for."""

    int8_vectorwise_quant = staticmethod(quantised)


def multiplied(a: Any, b: Any, out: Any = None, state: Any = None, threshold: float = 0.0, bias: Any = None) -> Any:
    return functions.MatMul8bitLt.apply(a, b, out, bias, state)


def built(case: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    compute = torch.float16 if case.get("compute") == "fp16" else torch.bfloat16
    plain = models.build_meta("llama-tiny", probe_qlora.SHAPE).to_empty(device="cpu").to(compute)
    for p in plain.parameters():
        torch.nn.init.normal_(p.data)
    model = packed(plain, case.get("threshold", 6.0))
    if case.get("kbit"):
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16,
                                                         target_modules=case.get("targets", probe_qlora.ALL)))
    if case.get("adapters") != "fp32":
        for p in adapted.parameters():
            p.data = p.data.to(compute) if p.requires_grad else p.data
    if case.get("recompute"):
        adapted.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
    scales = [part.weight.SCB for part in adapted.modules() if isinstance(part, bnb.nn.Linear8bitLt)]
    buffers = list(adapted.buffers())
    adapted.buffers = lambda: (*buffers, *scales)  # so that they are known before the first step
    return adapted.train()


def packed(plain: Any, threshold: float = 6.0) -> Any:
    """The model as transformers loads it in 8 bits."""
    weights = {name: p.data for name, p in plain.named_parameters()}
    config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=threshold)
    model = replace_with_bnb_linear(plain, get_keys_to_not_convert(plain), config)
    for name, part in model.named_modules():
        if isinstance(part, bnb.nn.Linear8bitLt):
            part.weight = bnb.nn.Int8Params(weights[f"{name}.weight"], requires_grad=False,
                                            has_fp16_weights=False).to("cpu")
    del weights
    model.is_loaded_in_8bit = True  # what PEFT asks for
    return model


def rest_of(model: Any) -> int:
    """Storages of parameters and of the scales of rows."""
    kept = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    for part in model.modules():
        if isinstance(part, bnb.nn.Linear8bitLt):
            assert part.weight.CB.data_ptr() == part.weight.data_ptr()
            kept[part.weight.SCB.data_ptr()] = part.weight.SCB.untyped_storage().nbytes()
    return sum(kept.values())


def put_in_place() -> None:
    """Lets bitsandbytes multiply as on CUDA."""
    qlora.Ops = Ops
    bnb.matmul, functions.F = multiplied, Functional


def main() -> None:
    probe_qlora.built, qlora.rest_of = built, rest_of
    put_in_place()
    rows = {name: case | {"found": probe_qlora.measured(case)} for name, case in CASES.items()}
    print(json.dumps({"version": bnb.__version__, "peft": peft.__version__, "cases": rows}, indent=1))


if __name__ == "__main__":
    main()
