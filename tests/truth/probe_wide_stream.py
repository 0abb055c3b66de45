"""What a step under autocast allocates in models with powers or LayerNorm, which are fp32 there: LoRA and QLoRA.

    OMP_NUM_THREADS=1 python tests/truth/probe_wide_stream.py > tests/truth/bitsandbytes/wide-stream-0.50.2.json
    OMP_NUM_THREADS=1 python tests/truth/probe_wide_stream.py 20261202 48   # wide-stream-drawn-0.50.2.json

The second measures cases that are drawn: seed, number. As `probe_tuned_families.py`. A packed linear puts out the type
of its input (bitsandbytes 0.50.2 `nn/modules.py`, Linear4bit.forward), so the residual stream becomes fp32. CUDA's
autocast of powers and LayerNorm (torch 2.13 `ATen/autocast_mode.h`, AT_FORALL_FP32) is done by hand, and LayerNorm's
mean and deviation of a row are in fp32, as CUDA's are. `skipped`: modules that are not packed.
"""

from __future__ import annotations

import json
import math
import random
import sys
from typing import Any

import bitsandbytes as bnb
import peft
import probe_tuned_families as families
import torch
from oracle.steps import mamba
from transformers import activations

SMALL = families.SMALL | {"head_dim": 64}
NEMOTRON_H = {"preset": "nemotron-3-tiny", "shape": {"vocab_size": 512}, "packs": True,
              "skipped": ["out_proj", "lm_head"], "experts": True}
DENSE = {"preset": "nemotron-mini-4b", "shape": SMALL, "packs": True, "targets": [
    *families.ATTENTION, "up_proj", "down_proj"]}
ARCEE = DENSE | {"preset": "afm-4.5b"}
PHI = {"preset": "phi-2", "shape": {
    **families.SMALL, "num_key_value_heads": 4, "resid_pdrop": 0.0, "partial_rotary_factor": 0.5},
       "targets": ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"]}
STARCODER = {"preset": "starcoder2-3b", "shape": {
    **families.SMALL, "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0,
    "sliding_window": None}, "targets": [*families.ATTENTION, "c_fc", "c_proj"]}
PREPARED = {"kbit": True, "back": True}
CASES: dict[str, dict[str, Any]] = {
    "nemotron_h": NEMOTRON_H, "nemotron_h, replayed": NEMOTRON_H | {"recompute": True},
    "nemotron_h, all linears, replayed": NEMOTRON_H | {"recompute": True, "experts": False, "targets": [
        *families.ATTENTION, "in_proj", "up_proj", "down_proj"]},
    "nemotron_h, experts in 16 bits": NEMOTRON_H | {"experts": False},
    "nemotron": DENSE, "nemotron, replayed": DENSE | {"recompute": True},
    "nemotron, prepared and cast back, replayed": DENSE | PREPARED | {"recompute": True},
    "nemotron, attention alone": DENSE | {"targets": families.ATTENTION},
    "arcee": ARCEE, "arcee, replayed": ARCEE | {"recompute": True},
    "arcee, prepared and cast back": ARCEE | PREPARED,
    "phi": PHI, "phi, replayed": PHI | {"recompute": True}, "phi, packed": PHI | {"packs": True},
    "phi, packed, replayed": PHI | {"packs": True, "recompute": True},
    "phi, packed, few, prepared, replayed": PHI | PREPARED | {"packs": True, "recompute": True, "targets": ["q_proj"]},
    "starcoder2": STARCODER, "starcoder2, replayed": STARCODER | {"recompute": True},
    "starcoder2, packed": STARCODER | {"packs": True},
    "starcoder2, packed, replayed": STARCODER | {"packs": True, "recompute": True},
    "nemotron, 16 bits": DENSE | {"packs": False}, "nemotron, few, large head": DENSE | {
        "targets": ["down_proj"], "shape": SMALL | {"vocab_size": 2048, "num_hidden_layers": 1}},
    "arcee, attention alone, replayed": ARCEE | {"targets": families.ATTENTION, "recompute": True}}


def drawn(seed: int, number: int) -> dict[str, dict[str, Any]]:
    """So many cases: family, sizes, what has adapters, how the base is prepared, whether layers are replayed."""
    given = random.Random(seed)
    return {str(index): _one(given) for index in range(number)}


def _one(given: random.Random) -> dict[str, Any]:
    base = given.choice([NEMOTRON_H, DENSE, ARCEE, PHI, STARCODER])
    asked: dict[str, Any] = {"recompute": given.random() < 0.5}
    linears = ["in_proj"] if base is NEMOTRON_H else []
    every = [*base["targets"]] if "targets" in base else [*families.ATTENTION, *linears, "up_proj", "down_proj"]
    few = given.choice([every, every[:3], every[-1:], every[-2:], ["q_proj", "v_proj"]])
    if base is NEMOTRON_H:
        number = given.choice([3, 4, 5])
        letters = "".join(given.choice("MME*-") for _ in range(number)) + given.choice(["E*", "*M", "-*"])
        asked |= {"experts": "E" in letters and not {"up_proj", "down_proj"} & {*few} and given.random() < 0.5,
                  "shape": {"vocab_size": given.choice([512, 1024]), "hybrid_override_pattern": letters,
                            "num_hidden_layers": len(letters)}}
    else:
        heads, more = given.choice([2, 4, 8]), {key: base["shape"][key] for key in _FURTHER if key in base["shape"]}
        asked |= {"shape": {"vocab_size": given.choice([512, 2048]), "num_hidden_layers": given.choice([1, 2, 4]),
                            "hidden_size": given.choice([256, 512]), "intermediate_size": given.choice([512, 1408]),
                            "num_attention_heads": heads, "num_key_value_heads": given.choice([1, 2, heads]),
                            **({} if more else {"head_dim": given.choice([32, 64])}), **more}}
        asked |= {"packs": given.random() < 0.7}
        asked |= PREPARED if asked["packs"] and given.random() < 0.5 else {}
    return base | asked | {"targets": few}


_FURTHER = ("resid_pdrop", "partial_rotary_factor", "attention_dropout", "residual_dropout", "embedding_dropout",
            "sliding_window")


class LayerNorm(torch.autograd.Function):
    """LayerNorm of frozen weights as CUDA allocates it (torch 2.13 `ATen/native/cuda/layer_norm_kernel.cu`)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shape: Any, weight: torch.Tensor, bias: torch.Tensor,
                eps: float) -> torch.Tensor:
        out = torch.native_layer_norm(x, shape, weight, bias, eps)[0]
        rows = (*x.shape[:-1], 1)
        ctx.save_for_backward(x, weight, bias, torch.zeros(rows), torch.zeros(rows))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.saved_tensors
        return grad.clone(), None, None, None, None


def layer_norm(x: torch.Tensor, shape: Any, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """LayerNorm as CUDA's autocast has it: what it is given is cast to fp32, from the last argument to the first."""
    if torch.is_autocast_cpu_enabled():
        bias, weight, x = bias.float(), weight.float(), x.float()
    return LayerNorm.apply(x, shape, weight, bias, eps)


def new_gelu(_module: Any, x: torch.Tensor) -> torch.Tensor:
    """NewGELUActivation with CUDA's autocast of powers, to fp32."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x.float(), 3.0))))


if __name__ == "__main__":
    asked = drawn(*map(int, sys.argv[1:])) if sys.argv[1:] else CASES
    torch.nn.functional.layer_norm = layer_norm
    activations.NewGELUActivation.forward = new_gelu  # type: ignore[method-assign]
    families.cast_sums()
    activations.ReLUSquaredActivation.forward = families.squared  # type: ignore[method-assign]
    mamba.put_in_place()
    print(json.dumps({"version": bnb.__version__, "peft": peft.__version__, "torch": torch.__version__})[:-1]
          + ', "cases": {')
    print(",\n".join(f"{json.dumps(name)}: {json.dumps(case | {'found': families.measured(case)})}"
                     for name, case in asked.items()) + "\n}}")
