"""What a step of LoRA and QLoRA under the Trainer's autocast allocates: families with biases, and with experts.

    python tests/truth/probe_tuned_families.py > tests/truth/bitsandbytes/families-0.50.2.json

As `probe_qlora.py`. `kbit`: PEFT's prepare_model_for_kbit_training; `back`: norms, embedding and head are cast back to
bf16 behind it (axolotl 067b021c `loaders/model.py`, _convert_embedding_modules_dtype). `biases`: dtypes of the biases
of packed linears behind two steps. `experts`: those that are one parameter are packed too, as axolotl does it
(`monkeypatch/moe_quant.py`). `saved`: modules that train beside adapters. `full`: all parameters in bf16, without
autocast. Experts run as grouped products, with CUDA's autocast of sums: an fp32 result (torch 2.13
`ATen/autocast_mode.h`, AT_FORALL_FP32_SET_OPT_DTYPE), which the kernel makes of 16 bits without a copy; powers too.
"""

from __future__ import annotations

import json
from typing import Any

import bitsandbytes as bnb
import peft
import torch
from bitsandbytes.nn import parametrize
from oracle.qlora import packed, steps_of
from oracle.steps import mamba, models
from probe_scan_qlora import cast_back
from transformers import activations

SMALL = {"vocab_size": 512, "num_hidden_layers": 3, "hidden_size": 256, "intermediate_size": 512,
         "num_attention_heads": 4, "num_key_value_heads": 2}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
QWEN2 = {"preset": "qwen2.5-7b", "shape": SMALL, "packs": True, "kbit": True}
EXPERTS = {"moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 64,
           "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
           "max_position_embeddings": 4096, **SMALL}
ALL = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
QWEN3 = {"preset": "qwen3-30b-a3b", "shape": EXPERTS}
SHARED = {"preset": "qwen1.5-moe-a2.7b", "shape": EXPERTS | {"shared_expert_intermediate_size": 256},
          "targets": [*ALL, "shared_expert_gate"]}
GLM = {"preset": "glm-4.5-air", "shape": {
    **SMALL, "head_dim": 64, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "first_k_dense_replace": 1, "n_shared_experts": 1, "max_position_embeddings": 4096, "num_nextn_predict_layers": 0}}
MIXTRAL = {"preset": "mixtral-8x7b", "shape": {
    **SMALL, "intermediate_size": 128, "num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 64,
    "sliding_window": None, "max_position_embeddings": 4096}}
NEMOTRON = {"preset": "nemotron-3-tiny", "shape": {"vocab_size": 512}}
GRANITE = {"preset": "granite-4.0-h-tiny", "shape": {
    **SMALL, "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 8, "num_experts_per_tok": 2,
    "shared_intermediate_size": 256, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 32,
    "mamba_chunk_size": 64}}
LLAMA = {"preset": "llama-tiny", "shape": {"vocab_size": 512, "num_hidden_layers": 3},
         "saved": ["embed_tokens", "lm_head"]}
TIED = LLAMA | {"shape": {**LLAMA["shape"], "tie_word_embeddings": True}}  # type: ignore[dict-item]
PACKED = {"packs": True, "experts": True}
CASES: dict[str, dict[str, Any]] = {
    "qwen2, prepared": QWEN2, "qwen2, prepared, replayed": QWEN2 | {"recompute": True},
    "qwen2, prepared and cast back, replayed": QWEN2 | {"back": True, "recompute": True},
    "qwen3_moe": QWEN3, "qwen3_moe, replayed": QWEN3 | {"recompute": True},
    "qwen3_moe, experts adapted, replayed": QWEN3 | {"targets": ALL, "recompute": True},
    "qwen2_moe": SHARED, "qwen2_moe, replayed": SHARED | {"recompute": True},
    "glm4_moe": GLM, "glm4_moe, replayed": GLM | {"recompute": True},
    "mixtral": MIXTRAL, "mixtral, replayed": MIXTRAL | {"recompute": True},
    "nemotron_h": NEMOTRON, "nemotron_h, replayed": NEMOTRON | {"recompute": True},
    "granitemoehybrid": GRANITE, "granitemoehybrid, replayed": GRANITE | {"recompute": True},
    "qwen3_moe, packed": QWEN3 | PACKED, "qwen3_moe, packed, replayed": QWEN3 | PACKED | {"recompute": True},
    "glm4_moe, packed": GLM | PACKED, "glm4_moe, packed, replayed": GLM | PACKED | {"recompute": True},
    "saved": LLAMA, "saved, replayed": LLAMA | {"recompute": True}, "saved, tied": TIED,
    "saved, tied, replayed": TIED | {"recompute": True},
    "head saved": LLAMA | {"saved": ["lm_head"]}, "embedding saved": LLAMA | {"saved": ["embed_tokens"]},
    "head saved, tied": TIED | {"saved": ["lm_head"]}, "embedding saved, tied": TIED | {"saved": ["embed_tokens"]},
    "glm4_moe, in full": GLM | {"full": True}, "glm4_moe, in full, replayed": GLM | {"full": True, "recompute": True}}


class Sum(torch.autograd.Function):
    """Sum of 16-bit numbers over one dimension, in fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
        ctx.dim, ctx.keepdim, ctx.shape, ctx.dtype = dim, keepdim, x.shape, x.dtype
        shape = [1 if at == dim % x.dim() else size for at, size in enumerate(x.shape)]
        return torch.zeros(shape if keepdim else [size for at, size in enumerate(x.shape) if at != dim % x.dim()])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        grad = grad if ctx.keepdim else grad.unsqueeze(ctx.dim)
        return grad.expand(ctx.shape).to(ctx.dtype), None, None


def cast_sums() -> None:
    """Sums of 16-bit tensors over one dimension as CUDA's autocast has them."""
    plain = torch.Tensor.sum

    def sum_of(x: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        if x.dtype is torch.bfloat16 and torch.is_autocast_enabled("cpu") and "dim" in named and "dtype" not in named:
            return Sum.apply(x, named["dim"], named.get("keepdim", False))
        return plain(x, *given, **named)

    torch.Tensor.sum = sum_of


def built(case: dict[str, Any]) -> Any:
    """The model as transformers loads it and PEFT adapts it."""
    torch.manual_seed(0)
    plain = models.build_meta(case["preset"], case["shape"]).to_empty(device="cpu").to(torch.bfloat16)
    plain.tie_weights()
    if models.expert_modules(plain):
        plain.config._experts_implementation = "grouped_mm"
    for p in plain.parameters():
        torch.nn.init.normal_(p.data)
    if case.get("full"):
        if case.get("recompute"):
            plain.gradient_checkpointing_enable({"use_reentrant": False})
        return plain.train()
    model = packed(plain, double_quant=True, **skips_of(case)) if case.get("packs") else plain
    for module in models.expert_modules(model) if case.get("experts") else ():
        for name, _ in list(module.named_parameters(recurse=False)):
            parametrize.replace_parameter_4bit(module, name, compress_statistics=True, quant_type="nf4")
    if case.get("kbit"):
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if case.get("back"):
        cast_back(model)
    lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=case.get("targets", ATTENTION),
                           modules_to_save=case.get("saved"))
    adapted = peft.get_peft_model(model, lora)
    if case.get("recompute"):
        adapted.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
    return adapted.train()


def skips_of(case: dict[str, Any]) -> dict[str, Any]:
    """Argument of `packed` with the modules that are not packed; none without a list of them."""
    return {"skipped": case["skipped"]} if "skipped" in case else {}


def beside(model: Any) -> int:
    """Bytes of the constants of packed experts, which are no parameters."""
    states = [part.quant_state for part in model.modules() if isinstance(part, parametrize.Bnb4bitParametrization)]
    return sum(x.nbytes for state in states for x in (state.absmax, state.code, state.offset, state.state2.absmax,
                                                      state.state2.code))


def measured(case: dict[str, Any]) -> dict[str, Any]:
    model = built(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False, fused=True)
    _, sizes = steps_of(model, optimizer, autocast=not case.get("full"), vocab=int(case["shape"]["vocab_size"]))
    sizes = {name: size + beside(model) for name, size in sizes.items()}
    biases = {str(part.bias.dtype) for part in model.modules()
              if isinstance(part, bnb.nn.Linear4bit) and part.bias is not None}
    return {**sizes, "trained": sum(p.numel() for p in trained), "biases": sorted(biases)}


def squared(_module: Any, x: torch.Tensor) -> torch.Tensor:
    """ReLUSquaredActivation with CUDA's autocast of powers, to fp32."""
    x = torch.nn.functional.relu(x)
    return torch.square(x.float() if torch.is_autocast_enabled("cpu") else x)


if __name__ == "__main__":
    cast_sums()
    activations.ReLUSquaredActivation.forward = squared  # type: ignore[method-assign]
    mamba.put_in_place()
    print(json.dumps({"version": bnb.__version__, "peft": peft.__version__})[:-1] + ', "cases": {')
    print(",\n".join(f"{json.dumps(name)}: {json.dumps(case | {'found': measured(case)})}"
                     for name, case in CASES.items()) + "\n}}")
