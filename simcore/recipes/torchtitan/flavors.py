"""Models of torchtitan 0.2.2 by name and flavor (`models/*/__init__.py`, defaults of `models/*/model/args.py`).

Sizes are written in the words of Hugging Face's configurations. Llama's width of the MLP is the one that
`models/llama3/model/model.py` FeedForward makes: 8/3 of the hidden size times `ffn_dim_multiplier`, rounded up to
`multiple_of`; Llama 4's (`models/llama4/model/model.py` TransformerBlock) is so divided by the experts of a token, the
shared one among them. Of Llama 4's `irope` flavors every fourth layer, from the first on, rotates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simcore.models.graph import model_config

__all__ = ["FLAVORS", "OTHER_MODELS", "Flavor"]


@dataclass(frozen=True, slots=True)
class Flavor:
    """A model of torchtitan: the built-in model that is nearest, and its own sizes. `attention`: kernel it asks for."""

    preset: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    attention: str = "sdpa"

    def changed(self) -> dict[str, Any]:
        """Sizes in which the built-in model differs."""
        fields = model_config(self.preset, None, "")
        return {name: value for name, value in self.sizes.items() if fields.get(name) != value}


def _llama(preset: str, hidden: int, layers: int, heads: int, kv_heads: int, width: int, vocab: int = 128_256,
           attention: str = "sdpa") -> Flavor:
    return Flavor(preset, {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": hidden // heads, "intermediate_size": width, "vocab_size": vocab,
        "tie_word_embeddings": False}, attention)


def _qwen(preset: str, hidden: int, layers: int, heads: int, width: int, *, kv_heads: int = 8, vocab: int = 151_936,
          tied: bool = False, experts: Mapping[str, Any] | None = None) -> Flavor:
    return Flavor(preset, {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": 128, "intermediate_size": width, "vocab_size": vocab,
        "tie_word_embeddings": tied, **(experts or {})})


def _qwen_experts(count: int, width: int) -> dict[str, Any]:
    return {"num_experts": count, "num_experts_per_tok": 8, "moe_intermediate_size": width, "norm_topk_prob": True}


def _deepseek(preset: str, hidden: int, layers: int, heads: int, width: int, expert_width: int, experts: int,
              per_token: int, *, dense: int = 1, shared: int = 2, vocab: int = 102_400, query_rank: int | None = None,
              attention: str = "flex", **more: Any) -> Flavor:
    return Flavor(preset, {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "intermediate_size": width, "moe_intermediate_size": expert_width,
        "n_routed_experts": experts, "num_experts_per_tok": per_token, "n_shared_experts": shared,
        "first_k_dense_replace": dense, "vocab_size": vocab, "q_lora_rank": query_rank, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": False, **more},
        attention)


def _llama4(preset: str, layers: int, nope: int = 0, *, small: bool = False) -> Flavor:
    """A flavor of Llama 4; `nope`: one layer in so many rotates nothing, 0 none."""
    sizes = dict(hidden_size=256, num_attention_heads=16, num_key_value_heads=16, head_dim=16, vocab_size=2048,
                 intermediate_size=512, intermediate_size_mlp=768, num_local_experts=8,
                 interleave_moe_layer_step=2) if small else {}
    return Flavor(preset, {**sizes, "num_hidden_layers": layers, "no_rope_layers": [
        int(not nope or number % nope > 0) for number in range(layers)]}, "flex" if nope else "sdpa")


def _oss(preset: str, hidden: int, layers: int, experts: int) -> Flavor:
    """A flavor of GPT-OSS; experts are 2,880 wide and every second layer slides, from the first on, in all of them."""
    return Flavor(preset, {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_local_experts": experts, "num_experts_per_tok": 4,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
        "vocab_size": 201_088, "sliding_window": 128, "tie_word_embeddings": False}, "flex")


_LLAMA3: Final = {
    **{f"debugmodel{ending}": _llama("llama-3.1-8b", 256, 6, 16, 16, 768, 2048, attention)
       for ending, attention in (("", "sdpa"), ("_flex_attn", "flex"), ("_varlen_attn", "varlen"))},
    **{f"8B{ending}": _llama("llama-3.1-8b", 4096, 32, 32, 8, 14336, attention=attention)
       for ending, attention in (("", "sdpa"), ("_flex", "flex"), ("_varlen", "varlen"))},
    "70B": _llama("llama-3.1-70b", 8192, 80, 64, 8, 28672),
    "405B": _llama("llama-3.1-405b", 16384, 126, 128, 8, 53248),
}
FLAVORS: Final[Mapping[str, Mapping[str, Flavor]]] = {
    "llama3": _LLAMA3,
    "llama4": {
        f"{name}{ending}": _llama4(f"llama-4-{preset}-text", layers, nope, small=name == "debugmodel")
        for ending, nope in (("", 0), ("_irope", 4))
        for name, preset, layers in (("debugmodel", "scout", 6), ("17bx16e", "scout", 48), ("17bx128e", "maverick", 48))
    },
    "gpt_oss": {"debugmodel": _oss("gpt-oss-20b", 256, 4, 8), "20b": _oss("gpt-oss-20b", 2880, 24, 32),
                "120b": _oss("gpt-oss-120b", 2880, 36, 128)},
    "qwen3": {
        "debugmodel": _qwen("qwen3-0.6b", 256, 8, 16, 3072, vocab=2048, tied=True),
        "0.6B": _qwen("qwen3-0.6b", 1024, 28, 16, 3072, tied=True),
        "1.7B": _qwen("qwen3-1.7b", 2048, 28, 16, 6144, tied=True),
        "4B": _qwen("qwen3-4b", 2560, 36, 32, 9728, tied=True),
        "8B": _qwen("qwen3-8b", 4096, 36, 32, 12288),
        "14B": _qwen("qwen3-14b", 5120, 40, 40, 17408),
        "32B": _qwen("qwen3-32b", 5120, 64, 64, 25600),
        "debugmodel_moe": _qwen("qwen3-30b-a3b", 256, 8, 16, 3072, vocab=2048, experts=_qwen_experts(64, 768)),
        "30B-A3B": _qwen("qwen3-30b-a3b", 2048, 48, 32, 6144, kv_heads=4, experts=_qwen_experts(128, 768)),
        "235B-A22B": _qwen("qwen3-235b-a22b", 4096, 94, 64, 12288, kv_heads=4, experts=_qwen_experts(128, 1536)),
    },
    "deepseek_v3": {
        "debugmodel": _deepseek("deepseek-v2-lite", 256, 6, 16, 1024, 256, 8, 3, vocab=2048, attention="sdpa"),
        "debugmodel_flex_attn": _deepseek("deepseek-v2-lite", 256, 6, 16, 1024, 256, 8, 3, vocab=2048),
        "16B": _deepseek("deepseek-v2-lite", 2048, 27, 16, 10944, 1408, 64, 6),
        "236B": _deepseek("deepseek-v2", 5120, 60, 128, 12288, 1536, 160, 6, query_rank=1536),
        "671B": _deepseek("deepseek-v3", 7168, 61, 128, 18432, 2048, 256, 8, dense=3, shared=1, vocab=129_280,
                          query_rank=1536, num_nextn_predict_layers=0),
    },
}
"""Flavors by the model's name."""
OTHER_MODELS: Final = frozenset({
    "flux", "llama3_ft", "vlm", "llama4-vlm", "transformers_modeling_backend",
    *(f"{experiment}.{model}" for experiment in ("simple_fsdp", "compiler_toolkit", "autoparallel")
      for model in ("llama3", "deepseek_v3")),
    "autoparallel.local_map_deepseek_v3", "llama3_simple_fsdp", "deepseek_v3_simple_fsdp"})
"""Other models that torchtitan trains, with layers, heads or frameworks that are not simulated."""
