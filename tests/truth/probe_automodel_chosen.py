"""Measures dense layers whose indexer chooses keys in nemo-automodel 0.7.0, event by event, and what models register.

    python tests/truth/probe_automodel_chosen.py > tests/truth/tape/automodel-chosen-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process: DeepSeek-V3.2 and GLM-5 with `attn: sdpa`. Attention is torch's memory-efficient
kernel, the one that takes a mask on a GPU, by a stand-in with its tensors; as `scaled_dot_product_attention` does, a
mask of truth values is written out anew in the type of the query. LayerNorm's statistics are in
fp32, as CUDA's. Other stand-ins are those of `probe_automodel_mla.py`. `grads`: parameters
that backward gave a gradient to. `alive`: of GLM-5's layers of which some take the keys of an earlier one, how many
tensors of chosen keys live before each layer's forward, after the head's, and before each layer's backward.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import Any
from weakref import ref

import probe_automodel_mla as mla
import torch
from json_lines import by_name
from nemo_automodel.components._peft import lora_mlp
from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules
from nemo_automodel.components.models.deepseek_v32 import layers as chosen
from nemo_automodel.components.models.deepseek_v32.config import DeepseekV32Config
from nemo_automodel.components.models.deepseek_v32.model import DeepseekV32Block, DeepseekV32ForCausalLM
from nemo_automodel.components.models.glm_moe_dsa.model import Block, GlmMoeDsaForCausalLM
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from transformers.models.glm_moe_dsa.configuration_glm_moe_dsa import GlmMoeDsaConfig

TYPES = ["full", "full", "shared", "full", "shared"]
SHAPE = mla.SHAPE | {"index_n_heads": 4, "index_head_dim": 32, "index_topk": 40}
CONFIGS: dict[str, Any] = {"deepseek_v32": DeepseekV32Config, "glm_moe_dsa": GlmMoeDsaConfig}
MODELS: dict[str, Any] = {"deepseek_v32": DeepseekV32ForCausalLM, "glm_moe_dsa": GlmMoeDsaForCausalLM}
BLOCKS: dict[str, Any] = {"deepseek_v32": DeepseekV32Block, "glm_moe_dsa": Block}
CASES: dict[str, dict[str, Any]] = {
    f"{family}{name}": {"family": family, **case} for family in CONFIGS for name, case in {
        "": {"batch": 2, "seq": 192}, " of one": {"batch": 1, "seq": 128}, " short": {"batch": 1, "seq": 32},
        " checkpointed": {"batch": 2, "seq": 192, "checkpoint": True}}.items()}
for _name in ("", " short", " checkpointed"):  # a layer that takes the keys of an earlier one
    CASES[f"glm_moe_dsa{_name} borrows"] = {**CASES[f"glm_moe_dsa{_name}"], "borrows": True}
for _name in ("deepseek_v32", "glm_moe_dsa", "glm_moe_dsa checkpointed"):  # all linear layers, the indexer's too
    CASES[f"{_name} adapted"] = {**CASES[_name], "lora": 8}
for _name in ("", " checkpointed"):
    CASES[f"glm_moe_dsa{_name} interleaved"] = {**CASES[f"glm_moe_dsa{_name}"], "interleaves": True}


class LayerNorm(torch.autograd.Function):
    """CUDA's kernel, whose statistics are in fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        rows = [x.new_empty((*x.shape[:-1], 1), dtype=torch.float32) for _ in range(2)]
        ctx.save_for_backward(x, weight, bias, *rows)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> Any:
        raise AssertionError("indices have no gradient")


class Attention(torch.autograd.Function):
    """The memory-efficient kernel of [b, heads, s, d] and a mask that is added; its output lies token by token."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, heads, seq, _ = q.shape
        out = q.new_empty((batch, seq, heads, v.shape[3])).transpose(1, 2)
        statistics = q.new_empty((batch, heads, -(-seq // 32) * 32), dtype=torch.float32)
        ctx.save_for_backward(q, k, v, mask, out, statistics)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, _mask, _out, _statistics = ctx.saved_tensors
        made = tuple(x.new_empty((x.shape[0], x.shape[2], x.shape[1], x.shape[3])).transpose(1, 2) for x in (q, k, v))
        _delta = q.new_empty(q.shape[:3], dtype=torch.float32)
        return *made, None


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, attn_mask: torch.Tensor, **_: Any) -> torch.Tensor:
    if attn_mask.dtype == torch.bool:
        attn_mask = torch.empty_like(attn_mask, dtype=q.dtype)
    out: torch.Tensor = Attention.apply(q, k, v, attn_mask)
    return out


def watched(choose: Callable[..., torch.Tensor], made: list[Any]) -> Callable[..., torch.Tensor]:
    def chosen_keys(*args: Any, **given: Any) -> torch.Tensor:
        out = choose(*args, **given)
        made.append(ref(out))
        return out

    return chosen_keys


def alive(*, checkpoint: bool) -> dict[str, list[int]]:
    """Numbers of tensors of chosen keys while a model of `TYPES` runs."""
    made: list[Any] = []
    seen: dict[str, list[int]] = {"forward": [], "backward": []}

    def count(phase: str) -> None:
        gc.collect()
        seen[phase].append(sum(one() is not None for one in made))

    shape = config("glm_moe_dsa")
    shape.num_hidden_layers, shape.indexer_types, shape.mlp_layer_types = len(TYPES), TYPES, ["dense"] * len(TYPES)
    with FakeTensorMode():
        model = GlmMoeDsaForCausalLM(shape, backend=mla.BACKEND).train()
        for name, layer in model.model.layers.items():
            layer.self_attn.attn_func = attention
            if layer.self_attn.indexer is not None:
                stand_in_norm(layer.self_attn.indexer.k_norm)
                layer.self_attn.indexer.forward = watched(layer.self_attn.indexer.forward, made)
            run = checkpoint_wrapper(layer, preserve_rng_state=False) if checkpoint else layer
            model.model.layers[name] = run
            run.register_forward_pre_hook(lambda *_: count("forward"))
            run.register_full_backward_pre_hook(lambda *_: count("backward"))
        model.lm_head.register_forward_hook(lambda *_: count("forward"))
        model(torch.zeros(1, 64, dtype=torch.int64)).logits.sum().backward()
    return seen


def stand_in_norm(norm: Any) -> None:
    norm.forward = lambda x: LayerNorm.apply(x, norm.weight, norm.bias)


def config(family: str) -> Any:
    given = {"qk_head_dim": SHAPE["qk_nope_head_dim"] + SHAPE["qk_rope_head_dim"]} if family == "deepseek_v32" else {}
    made = CONFIGS[family](**SHAPE, **given)
    made.torch_dtype = torch.bfloat16
    return made


def registered(family: str) -> dict[str, Any]:
    with torch.device("meta"):
        model = MODELS[family](config(family), backend=mla.BACKEND)
    return {"parameters": [[n, list(p.shape)] for n, p in model.named_parameters()],
            "buffers": [[n, list(b.shape), str(b.dtype)] for n, b in model.named_buffers()]}


def events(case: dict[str, Any]) -> dict[str, Any]:
    fake = FakeTensorMode()
    made, given = config(case["family"]), {}
    made.indexer_rope_interleave = case.get("interleaves", False)
    made.indexer_types = ["shared" if case.get("borrows") else "full"] * 2
    with fake:
        block = BLOCKS[case["family"]](0, made, None, mla.BACKEND).train()
        block.self_attn.attn_func = attention
        if "lora" in case:
            apply_lora_to_linear_modules(block, PeftConfig(match_all_linear=True, dim=case["lora"], use_triton=False))
        if case.get("borrows"):
            chosen_keys = (case["batch"], case["seq"], min(SHAPE["index_topk"], case["seq"]))
            given["prev_topk_indices"] = torch.zeros(chosen_keys, dtype=torch.int64)
        else:
            stand_in_norm(block.self_attn.indexer.k_norm)
    found = mla.measured(case, block, fake, given)
    return {"case": case, "grads": sorted(n for n, p in block.named_parameters() if p.grad is not None), **found}


if __name__ == "__main__":
    mla.stand_in()
    lora_mlp.install_fused_lora_mlp = lambda _model: 0  # nor on weights of the meta device, as FSDP2 runs have them
    assert not chosen._FAST_HADAMARD_AVAILABLE, "the kernel of fast_hadamard_transform makes other temporaries"
    rows = {name: events(case) for name, case in CASES.items()}
    around = {"shape": SHAPE, "types": TYPES, "alive": {name: alive(checkpoint=name == "full") for name in (
        "none", "full")}, "registered": {family: registered(family) for family in CONFIGS}}
    print(json.dumps(around)[:-1]
          + ', "layers": {')
    print(by_name(rows, compact=True))
    print("}}")
