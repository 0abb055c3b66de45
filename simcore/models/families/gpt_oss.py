"""GPT-OSS: attention with biases and sinks, every second layer in a window, experts with biases.

As transformers 5.23 `models/gpt_oss`; without `layer_types` the even layers (from 0) slide (`GptOssConfig`).
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, top_k

__all__ = ["FAMILY"]

_SLIDING, _FULL = "sliding_attention", "full_attention"


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `GptOssConfig`; InputError for values that are not modelled."""
    config.choice("hidden_act", ("silu",))
    hidden, experts = config.integer("hidden_size"), config.integer("num_local_experts")
    moe = Moe(hidden, experts, top_k(config, experts), config.integer("intermediate_size"), 0, gated=True,
              router="topk_softmax", bias=True)
    bias = "all" if config.boolean("attention_bias", default=True) else ""
    windows = {_FULL: 0, _SLIDING: config.integer("sliding_window", default=128)}
    mixers = {name: attention(config, bias=bias, sinks=True, window=window) for name, window in windows.items()}
    count = config.integer("num_hidden_layers")
    alternating = tuple((_SLIDING, _FULL)[i % 2] for i in range(count))
    types = config.names("layer_types", alternating, (_SLIDING, _FULL))
    layers = [decoder_layer("gpt_oss", mixers[name], moe) for name in types]
    return chain(config, "gpt_oss", layers, mixers[_FULL].head_dim)


FAMILY = ModelFamily(architecture, untied={
    "megatron": "Bridge 0.3.1 models/gpt_oss/gpt_oss_bridge.py:71: share_embeddings_and_output_weights = False"},
    tables_by_chunk={
    "megatron": "core 0.16.1 models/gpt/gpt_model.py:172: one embedding a GPTModel"})
