"""Presets, and the small patches that let Hugging Face models run on fake tensors."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Mistral4ForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
)
from transformers.models.llama import modeling_llama
from transformers.models.nemotron_h import modeling_nemotron_h

from ..nano import NANO, PATTERN
from . import as_on_cuda, delta, flash

LLAMA = {
    "llama-tiny": dict(vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
                       num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=8192),
    "llama-3.1-8b": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                         num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072),
    "llama-3.2-3b": dict(vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28,
                         num_attention_heads=24, num_key_value_heads=8, head_dim=128,
                         max_position_embeddings=131072, tie_word_embeddings=True),
}  # fmt: skip

NEMOTRON = {
    "nemotron3-nano-30b-a3b": dict(
        NANO, hybrid_override_pattern=PATTERN, max_position_embeddings=262144, expand=2),
    "nemotron3-tiny": dict(
        vocab_size=1024, hidden_size=256, intermediate_size=128, max_position_embeddings=8192,
        hybrid_override_pattern="MEM*E", num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, mamba_num_heads=8, mamba_head_dim=32, ssm_state_size=32, n_groups=2, conv_kernel=4,
        chunk_size=64, expand=2, n_routed_experts=8, n_shared_experts=1, moe_intermediate_size=128,
        moe_shared_expert_intermediate_size=256, num_experts_per_tok=2, routed_scaling_factor=2.5,
        n_group=1, topk_group=1, norm_topk_prob=True, tie_word_embeddings=False),
}  # fmt: skip


PRESETS = Path(__file__).resolve().parents[4] / "simcore" / "models" / "presets"
GATED_EXPERTS = ("Qwen2MoeExperts", "Qwen3MoeExperts", "MixtralExperts", "GptOssExperts", "GraniteMoeHybridExperts",
                 "OlmoeExperts", "Glm4MoeExperts", "Qwen3NextExperts", "Qwen3_5MoeExperts", "Glm4MoeLiteExperts",
                 "DeepseekV2Experts", "DeepseekV3Experts", "ExaoneMoeExperts", "Mistral4Experts", "Gemma4TextExperts",
                 "MiniMaxM2Experts")
PLAIN_OPERATORS = ("gpt_neox", "nemotron", "phi", "seed_oss", "starcoder2")
WITHOUT_SDPA, WITHOUT_ATTENTION = ("gpt_oss",), ("mamba2",)
OF_TWO_SIZES = ("deepseek_v2", "deepseek_v3")  # heads of values are narrower, which a CPU's kernel does not take


def build_meta(preset: str, overrides: dict[str, Any] | None = None, attention: str = "") -> nn.Module:
    if preset not in LLAMA | NEMOTRON:
        return build_of_family(preset, overrides or {}, attention)
    kw = {**(LLAMA | NEMOTRON)[preset], **(overrides or {})}
    llama = preset in LLAMA
    cfg = LlamaConfig(**kw) if llama else NemotronHConfig(**kw)
    if attention != "eager":
        patch_masks()
    cfg._attn_implementation = attention or "sdpa"
    cfg.use_cache = False
    with torch.device("meta"):
        return LlamaForCausalLM(cfg) if llama else NemotronHForCausalLM(cfg)


def build_of_family(preset: str, overrides: dict[str, Any], attention: str) -> nn.Module:
    """A preset that is a published configuration, by its `model_type`; eager attention has its masks."""
    fields = {**fields_of(preset), **overrides}
    family = fields.pop("model_type")
    if family in delta.FAMILIES:
        delta.put_in_place()
    if family in PLAIN_OPERATORS:
        as_on_cuda.put_in_place()
    folder = family.removesuffix("_text")
    modelling = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    for name in ("create_causal_mask", "create_sliding_window_causal_mask", "create_chunked_causal_mask",
                 "create_recurrent_attention_mask"):
        if hasattr(modelling, name) and attention != "eager":
            setattr(modelling, name, no_mask)
    cfg = AutoConfig.for_model(family, **fields)
    by_flash = attention == "flash_attention_2"
    cfg._attn_implementation = "sdpa" if by_flash else attention or attention_of(family)
    cfg.use_cache = False
    cfg.pad_token_id = None  # a small vocabulary may not have it
    with torch.device("meta"):
        made: nn.Module = Mistral4ForCausalLM(cfg) if family == "mistral4" else AutoModelForCausalLM.from_config(cfg)
    if by_flash:  # which the package that is not there would refuse
        flash.put_in_place(made.config)
    for module in made.modules():
        if hasattr(module, "mup_vector"):  # as `from_pretrained` makes it beside weights of 16 bits, which it needs
            module.mup_vector = module.mup_vector.bfloat16()
    return made


def build_fields(fields: dict[str, Any], attention: str = "") -> nn.Module:
    """A model of all fields of a configuration."""
    return build_of_family("", {name: value for name, value in fields.items() if not name.startswith("_")}, attention)


def fields_of(preset: str) -> dict[str, Any]:
    """Fields of a preset; none of "", where all are given."""
    return json.loads((PRESETS / f"{preset}.json").read_text(encoding="utf-8")) if preset else {}


def attention_of(family: str) -> str:
    """SDPA; where the model has none, a stand-in for its flash kernel."""
    if family in WITHOUT_ATTENTION:
        return "eager"
    if family in OF_TWO_SIZES:
        AttentionInterface.register("attention_of_two_sizes", lambda _module, *qkv, **__: (
            EfficientOfTwoSizes.apply(*(x.transpose(1, 2) for x in qkv[:3])), None))
        return "attention_of_two_sizes"
    if family not in WITHOUT_SDPA:
        return "sdpa"

    def attend(_module: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
        return FlashWithSinks.apply(*(x.transpose(1, 2) for x in (q, k, v))), None

    AttentionInterface.register("attention_with_sinks", attend)
    return "attention_with_sinks"


class EfficientOfTwoSizes(torch.autograd.Function):
    """Allocations of torch 2.13's memory-efficient kernel (`transformers/cuda/attention.cu`), but for its delta.

    Transcribed from its source, not measured: the log-sum-exp is rounded up to 32 positions, all is by tokens.
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = v.new_empty(v.shape)
        lse = torch.empty((q.shape[0], q.shape[2], -(-q.shape[1] // 32) * 32), dtype=torch.float32, device=q.device)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, *_rest = ctx.saved_tensors
        return tuple(x.new_empty(x.shape) for x in (q, k, v))


class FlashWithSinks(torch.autograd.Function):
    """Allocations of `kernels-community/vllm-flash-attn3` (0774fcce, `flash_api.cpp`); sinks get no gradient.

    Transcribed from its source, not measured: tiles of 128 rows, head sizes rounded up to 64.
    """

    forward = staticmethod(flash.kept_for_backward)

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, *_rest = ctx.saved_tensors
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        batch, seq, heads, dim = q.shape
        rows, wide = -(-seq // 128) * 128, max(64, dim)
        shapes = [(batch, heads, rows), (batch, heads, rows), (batch, heads, rows * wide),
                  *[(batch, k.shape[2], rows * wide)] * (2 * (k.shape[2] != heads)), (rows // 128, batch, heads)]
        scratch = [torch.empty(shape, dtype=torch.float32, device=q.device) for shape in shapes]
        del scratch
        return grads


def no_mask(*_: Any, **__: Any) -> None:
    return None


def patch_masks() -> None:
    """Keep ``is_causal=True`` with no explicit mask, as an unpadded eager run does.

    Under fake tensors transformers cannot inspect values and would materialise an S x S mask per layer and expand the
    grouped KV heads, which no real run does.
    """
    modeling_llama.create_causal_mask = no_mask
    modeling_nemotron_h.create_causal_mask = no_mask
    modeling_nemotron_h.create_recurrent_attention_mask = no_mask


def decoder_layers(model: Any) -> nn.ModuleList:
    layers: nn.ModuleList = inner_model(model).layers
    return layers


def inner_model(model: Any) -> Any:
    return _first(model, "backbone", "model", "gpt_neox")


def _first(module: Any, *names: str) -> Any:
    """The module below by the first of these names that it has: families call the same part differently."""
    below = dict(module.named_children())
    return next(below[name] for name in names if name in below)


def embed_head_norm(model: Any) -> tuple[nn.Module, nn.Module, nn.Module]:
    inner = inner_model(model)
    norm = _first(inner, "norm", "norm_f", "final_layernorm", "final_layer_norm")
    return _first(inner, "embed_tokens", "embeddings", "embed_in"), norm, model.lm_head


def expert_modules(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if type(m).__name__ in ("NemotronHExperts", *GATED_EXPERTS)]


# ---- MoE with static (perfectly balanced) routing ----------------------------------------
class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        out = torch.empty_like(g)
        dist.all_to_all_single(out, g.contiguous(), group=ctx.group)
        return out, None


class BalancedExperts:
    """The experts as batched matmuls: T*k/E rows per expert.  With EP, tokens travel through two all-to-alls."""

    def __init__(self, module: Any, ep_group: Any, ep: int) -> None:
        self.module, self.ep_group, self.ep, self.experts = module, ep_group, ep, module.num_experts

    def __call__(self, hidden: torch.Tensor, idx: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        width, ep = hidden.shape[-1], self.ep
        order = torch.argsort(idx.reshape(-1))
        tok = order // idx.shape[-1]
        x = hidden[tok]
        gated = hasattr(self.module, "gate_up_proj")
        up, down = self.module.gate_up_proj if gated else self.module.up_proj, self.module.down_proj
        up = up.to_local() if hasattr(up, "to_local") else up
        down = down.to_local() if hasattr(down, "to_local") else down
        here = up.shape[0]
        if ep > 1:
            x = AllToAll.apply(x, self.ep_group)
            x = x.view(ep, here, -1, width).transpose(0, 1).reshape(here, -1, width)
        else:
            x = x.view(self.experts, -1, width)
        h = torch.bmm(x, up.transpose(1, 2))
        if gated:
            gate, h = h.chunk(2, dim=-1)
            h = self.module.act_fn(gate) * h
            del gate
        else:
            h = self.module.act_fn(h)
        y = torch.bmm(h, down.transpose(1, 2))
        if ep > 1:
            y = y.view(here, ep, -1, width).transpose(0, 1).reshape(-1, width)
            y = AllToAll.apply(y, self.ep_group)
        else:
            y = y.view(-1, width)
        y = y * w.reshape(-1)[order][:, None].to(y.dtype)
        return torch.zeros_like(hidden).index_add(0, tok, y)


def patch_balanced_experts(model: nn.Module, ep_group: Any = None, ep: int = 1) -> None:
    for m in expert_modules(model):
        m.forward = BalancedExperts(m, ep_group, ep)


# ---- LoRA --------------------------------------------------------------------------------
class LoRALinear(nn.Module):
    """y = base(x) + scale * B(A(x)); the base layer is frozen."""

    def __init__(self, base: nn.Linear, r: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = base
        dev = base.weight.device
        self.lora_a = nn.Linear(base.in_features, r, bias=False, device=dev, dtype=dtype)
        self.lora_b = nn.Linear(r, base.out_features, bias=False, device=dev, dtype=dtype)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x) + self.lora_b(self.lora_a(x)) * self.scale
        return out


def apply_lora(model: nn.Module, r: int, targets: set[str], dtype: torch.dtype) -> None:
    for p in model.parameters():
        p.requires_grad_(requires_grad=False)
    for mod in list(model.modules()):
        for name, child in list(mod.named_children()):
            if isinstance(child, nn.Linear) and name in targets:
                setattr(mod, name, LoRALinear(child, r, dtype))
