"""The dense Llama family (RMSNorm, rotary grouped-query attention, SwiGLU), and some that differ little from it.

As transformers 5.23 `models/llama`. Granite 3 (`models/granite`): numbers multiply the embedding, every residual branch
and the logits; the one for attention's scores stands where Llama has one too. OLMo 2 (`models/olmo2`): norms behind
attention and MLP alone, and over all heads of query and of key together; rotary tables stay in fp32. Seed-OSS
(`models/seed_oss`): biases of query, key and value, and dropout of what attention and MLP add. ERNIE 4.5
(`models/ernie4_5`): neighbours of a head are rotated, in fp32. Arcee (`models/arcee`): relu squared, two linears.
Hunyuan (`models/hunyuan_v1_dense`): norms of query and key behind their rotation. Nemotron (`models/nemotron`):
LayerNorm by one more than its weight, relu squared, half of a head is rotated. OLMo 3 (`models/olmo3`): OLMo 2 with a
window in three layers of four, and rotary tables for each kind. Llama 4's language model (`models/llama4`): experts
chosen by sigmoid beside a shared one, in every layer or every second one, and layers that rotate nothing. SmolLM3
(`models/smollm3`): Llama's layers, of which each fourth rotates nothing.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, LayerKind, Mlp, Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import (
    attention,
    chain,
    check_fair_heads,
    decoder_layer,
    mlp,
    rotated_dims,
    top_k,
)

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a config of Llama, or of a family that differs little from it.

    InputError for values that are not modelled.
    """
    family = str(config.fields["model_type"])
    if family in _OTHERS:
        return _OTHERS[family](config)
    if family == "llama":
        check_fair_heads(config)
    for field in _BIASES.get(family, ("attention_bias", "mlp_bias")):
        if config.boolean(field, default=False):
            raise config.fail(field, "biases are not modelled yet")
    mixer = attention(config, qk_norm=family in ("olmo2", "hunyuan_v1_dense"),
                      head_dim=128 if family == "ernie4_5" else 0)
    layer = _olmo(config, mixer, family) if family == "olmo2" else replace(
        decoder_layer(family, mixer, mlp(config)), scaled=family == "granite")
    return chain(config, family, [layer] * config.integer("num_hidden_layers"), mixer.head_dim,
                 scaled=family == "granite", tied=family == "ernie4_5")


_BIASES = {"olmo2": ("attention_bias",), "ernie4_5": ("use_bias",)}


def _seed_oss(config: Config) -> Architecture:
    """Layers of Seed-OSS; without a word about it a tenth is dropped (`SeedOssConfig`)."""
    config.refuse("mlp_bias", "attention_out_bias")
    mixer = replace(attention(config, bias="qkv" if config.boolean("attention_bias", default=True) else "",
                              head_dim=128), dropout=config.fraction("attention_dropout", 0.1) > 0)
    layer = replace(decoder_layer("seed_oss", mixer, mlp(config)), dropout=config.fraction("residual_dropout", 0.1) > 0)
    return chain(config, "seed_oss", [layer] * config.integer("num_hidden_layers"), mixer.head_dim)


def _olmo(config: Config, mixer: Attention, family: str) -> LayerKind:
    return LayerKind("decoder", family, mixer.hidden, (
        Branch("", "self_attn", replace(mixer, whole_norms=True), behind="post_attention_layernorm"),
        Branch("", "mlp", mlp(config), behind="post_feedforward_layernorm")))


def _olmo3(config: Config) -> Architecture:
    """Every fourth layer sees all tokens where the configuration does not say otherwise (`Olmo3Config`)."""
    config.refuse("attention_bias")
    count = config.integer("num_hidden_layers")
    types = config.names("layer_types", tuple(_FULL if i % 4 == 3 else _SLIDING for i in range(count)),
                         (_SLIDING, _FULL))
    window, mixer = config.integer("sliding_window", default=4096), attention(config, qk_norm=True)
    names = tuple(dict.fromkeys(types))
    kinds = {name: replace(_olmo(config, replace(mixer, window=window * (name == _SLIDING)), "olmo3"),
                           tables=mixer.head_dim * (len(names) - 1)) for name in names}
    made = chain(config, "olmo3", [kinds[name] for name in types], mixer.head_dim,
                 window=window if _SLIDING in names else 0)
    further = (len(names) - 1) * mixer.head_dim
    parts = tuple((path, replace(kind, block=replace(kind.block, further_dim=further)) if isinstance(
        kind.block, Embedding) else kind) for path, kind in made.parts)
    return replace(made, parts=parts, buffers=tuple(
        (f"model.rotary_emb.{name}", size) for name in names for _, size in made.buffers))


def _arcee(config: Config) -> Architecture:
    config.choice("hidden_act", ("relu2",))
    config.refuse("attention_bias", "mlp_bias")
    mixer = attention(config)
    layer = decoder_layer("arcee", mixer, Mlp(mixer.hidden, config.integer("intermediate_size"), gated=False))
    return chain(config, "arcee", [layer] * config.integer("num_hidden_layers"), mixer.head_dim)


def _nemotron(config: Config) -> Architecture:
    config.choice("hidden_act", ("relu2",))
    config.refuse("attention_bias", "mlp_bias")
    mixer = attention(config)
    rotated = rotated_dims(config, "partial_rotary_factor", mixer.head_dim,
                           config.fraction("partial_rotary_factor", 0.5))
    layer = LayerKind("decoder", "nemotron", mixer.hidden, (
        Branch("input_layernorm", "self_attn", replace(mixer, rotated=rotated), layer_norm=True),
        Branch("post_attention_layernorm", "mlp", Mlp(mixer.hidden, config.integer("intermediate_size"), gated=False),
               layer_norm=True)))
    return chain(config, "nemotron", [layer] * config.integer("num_hidden_layers"), rotated,
                 last=FinalNorm(mixer.hidden, layer_norm=True))


def _llama4(config: Config) -> Architecture:
    """Layers of Llama 4; a 1 in `no_rope_layers` rotates, without a list three of four do (`Llama4TextConfig`)."""
    config.choice("hidden_act", ("silu",))
    config.refuse("attention_bias")
    count, step = config.integer("num_hidden_layers"), config.integer("interleave_moe_layer_step", default=1)
    turned = config.fields.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(count)]
    if not isinstance(turned, list) or len(turned) != count:
        raise config.fail("no_rope_layers", f"expected a list of {count} numbers, got {turned!r}")
    experts, width = config.integer("num_local_experts"), config.integer("intermediate_size")
    moe = Moe(config.integer("hidden_size"), experts, top_k(config, experts), width, width, gated=True,
              router="sigmoid", normalised=False, weighs_input=True)
    dense = Mlp(moe.hidden, config.integer("intermediate_size_mlp"))
    chunk, mixer = config.integer("attention_chunk_size", default=8192), attention(config)
    mixers = (replace(mixer, rotary=False, tempered=config.boolean("attn_temperature_tuning", default=True)),
              replace(mixer, unit_norms=config.boolean("use_qk_norm", default=True), chunk=chunk))
    layers = [LayerKind("decoder" if (i + 1) % step else "moe_decoder", "llama4_text", mixer.hidden, (
        Branch("input_layernorm", "self_attn", mixers[bool(turned[i])]),
        Branch("post_attention_layernorm", "feed_forward", dense if (i + 1) % step else moe)),
        tables=0 if turned[i] else mixer.head_dim) for i in range(count)]
    return chain(config, "llama4_text", layers, mixer.head_dim)


def _smollm3(config: Config) -> Architecture:
    """Layers of SmolLM3; a 1 in `no_rope_layers` rotates, without a list all but each last of so many do."""
    config.refuse("attention_bias", "mlp_bias", "use_sliding_window")
    mixer, dense, count = attention(config), mlp(config), config.integer("num_hidden_layers")
    every = config.integer("no_rope_layer_interval", default=4)
    turned = config.fields.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(count)]
    if not isinstance(turned, list) or len(turned) < count:
        raise config.fail("no_rope_layers", f"expected a list of {count} numbers, got {turned!r}")
    kinds = (replace(decoder_layer("smollm3", replace(mixer, rotary=False), dense), tables=mixer.head_dim),
             decoder_layer("smollm3", mixer, dense))
    return chain(config, "smollm3", [kinds[bool(turned[i])] for i in range(count)], mixer.head_dim, tied=True)


_OTHERS = {"smollm3": _smollm3, "llama4_text": _llama4, "seed_oss": _seed_oss, "olmo3": _olmo3, "arcee": _arcee,
           "nemotron": _nemotron}
_SLIDING, _FULL = "sliding_attention", "full_attention"
FAMILY = ModelFamily(architecture, further_fields=("no_rope_layer_interval",))
