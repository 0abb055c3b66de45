"""The Nemotron-H family: Mamba-2, MoE, attention and MLP layers in a pattern, as transformers 5.23 `models/nemotron_h`.

Both spellings of the pattern are read: `hybrid_override_pattern` ("MEM*-") and `layers_block_type` / `layer_types`.
Further features of Megatron's hybrids (megatron-core 0.16.1 `models/mamba/mamba_model.py`, `mamba_layer_specs.py`) have
Megatron's names; Mamba's own projections never have biases (`ssm/mamba_mixer.py:301`).

[Note: predicted tokens] A published configuration gives the number of tokens that are predicted after the next
(`num_nextn_predict_layers`); Bridge's main takes it for mtp_num_layers and by default runs one module for all of them
(`models/nemotronh/nemotron_h_bridge.py:_hf_mtp_config`). Recipes choose another number than the file, so the
presets of Super and Ultra leave it out: `mtp_num_layers` adds the module.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import (
    Attention,
    Branch,
    Embedding,
    FinalNorm,
    Head,
    LayerKind,
    Loss,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Mtp,
)
from simcore.models.config import Architecture, Config, ModelFamily

__all__ = ["FAMILY"]


_LETTER_OF_TYPE = {
    "mamba": "M", "linear_attention": "M", "moe": "E", "attention": "*", "full_attention": "*", "mlp": "-",
}
_ACTIVATIONS = ("relu2", "gelu", "swiglu")
_KIND_OF_LETTER = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `NemotronHConfig`; InputError for values that are not modelled."""
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    pattern = _pattern(config)
    kinds = {letter: _layer_kind(config, letter, hidden) for letter in sorted(set(pattern))}
    tied = config.boolean("tie_word_embeddings", default=False)
    further = _predictions(config, vocab, hidden)
    parts = (
        ("model.embeddings", _stem(config, vocab, hidden, shared=bool(further))),
        *((f"model.layers.{i}", kinds[letter]) for i, letter in enumerate(pattern)),
        ("model.norm_f",
         LayerKind("final_norm", "nemotron_h", hidden, block=FinalNorm(hidden, _has_layer_norm(config)))),
        *further,
        ("lm_head", LayerKind("head", "nemotron_h", hidden, block=Head(vocab, hidden, tied, _num_further(config)))),
        ("loss", LayerKind("loss", "nemotron_h", hidden, block=Loss(vocab, upcast=True, further=bool(further)))),
    )
    return Architecture("nemotron_h", parts, vocab, hidden, tied, pattern)


def _predictions(config: Config, vocab: int, hidden: int) -> tuple[tuple[str, LayerKind], ...]:
    """Modules of multi-token prediction: a pattern of layers each, or one that is run for every further token.

    Megatron-LM main of 2026-08-22 `models/hybrid/hybrid_model.py`, `transformer/multi_token_prediction.py`.
    """
    count = _num_further(config)
    if not count:
        return ()
    letters = _letters(config, "mtp_hybrid_override_pattern", config.fields.get("mtp_hybrid_override_pattern"))
    if len(set(letters)) < len(letters) or _has_layer_norm(config):
        raise config.fail("mtp_hybrid_override_pattern", "two layers of a kind, or LayerNorm, are not modelled yet")
    branches = tuple(branch for letter in letters for branch in _layer_kind(config, letter, hidden).branches)
    repeated = config.boolean("mtp_use_repeated_layer", default="num_nextn_predict_layers" in config.fields)
    modules, depths = (1, count) if repeated else (count, 1)
    kind = LayerKind("mtp", "nemotron_h", hidden, branches, Mtp(hidden, vocab, modules, depths),
                     dropout=config.fraction("hidden_dropout", 0) > 0)
    return tuple((f"mtp.layers.{i}", kind) for i in range(modules))


def _num_further(config: Config) -> int:
    """Tokens that are predicted besides the next."""
    return config.integer("mtp_num_layers", "num_nextn_predict_layers", default=0, least=0)


def _stem(config: Config, vocab: int, hidden: int, *, shared: bool) -> LayerKind:
    """Published hybrids know no positions."""
    learned = _positions(config) == "learned_absolute"
    positions = config.integer("max_position_embeddings") if learned else 0
    rotary = _head_dim(config, hidden) if _positions(config) == "rope" else 0
    return LayerKind("embedding", "nemotron_h", hidden, block=Embedding(vocab, hidden, rotary, positions, shared),
                     dropout=config.fraction("hidden_dropout", 0) > 0)


def _positions(config: Config) -> str:
    return config.choice("position_embedding_type", ("none", "learned_absolute", "rope"))


def _has_layer_norm(config: Config) -> bool:
    return config.choice("normalization", ("RMSNorm", "LayerNorm")) == "LayerNorm"


def _pattern(config: Config) -> str:
    text = config.fields.get("hybrid_override_pattern")
    names = config.fields.get("layers_block_type") or config.fields.get("layer_types")
    if text is None and names is None:
        raise config.fail("hybrid_override_pattern", "expected a pattern such as 'MEM*E' or layers_block_type")
    pattern = _letters(config, "hybrid_override_pattern", text) if text is not None else _from_names(config, names)
    num_layers = config.integer("num_hidden_layers", default=len(pattern))
    if num_layers > len(pattern):
        raise config.fail("num_hidden_layers",
                          f"expected at most the pattern's {len(pattern)} layers, got {num_layers}")
    return pattern[:num_layers]


def _letters(config: Config, field: str, text: object) -> str:
    if not isinstance(text, str) or not text:
        raise config.fail(field, f"expected letters of M, E, * and -, got {text!r}")
    for place, letter in enumerate(text):
        if letter not in _KIND_OF_LETTER:
            raise config.fail(field, f"expected letters of M, E, * and -, got {letter!r} at layer {place}")
    return text


def _from_names(config: Config, names: object) -> str:
    if not isinstance(names, list) or not names:
        raise config.fail("layers_block_type", f"expected a list of layer types, got {names!r}")
    for place, name in enumerate(names):
        if name not in _LETTER_OF_TYPE:
            known = ", ".join(sorted(_LETTER_OF_TYPE))
            raise config.fail("layers_block_type", f"expected one of {known}, got {name!r} at layer {place}")
    return "".join(_LETTER_OF_TYPE[name] for name in names)


def _layer_kind(config: Config, letter: str, hidden: int) -> LayerKind:
    branch = Branch("norm", "mixer", _MIXERS[letter](config, hidden), layer_norm=_has_layer_norm(config))
    return LayerKind(_KIND_OF_LETTER[letter], "nemotron_h", hidden, (branch,),
                     dropout=config.fraction("hidden_dropout", 0) > 0)


def _mamba(config: Config, hidden: int) -> Mixer:
    groups, heads = config.integer("n_groups"), config.integer("mamba_num_heads")
    if heads % groups:
        raise config.fail("n_groups", f"expected a divisor of {heads} Mamba heads, got {groups}")
    return Mamba2(hidden, heads, config.integer("mamba_head_dim"), groups, config.integer("ssm_state_size"),
                  config.integer("conv_kernel", default=4), config.integer("chunk_size", default=128))


def _moe(config: Config, hidden: int) -> Mixer:
    if _has_biases(config):
        raise config.fail("add_bias_linear", "experts with biases are not modelled yet")
    if config.choice("mlp_hidden_act", _ACTIVATIONS) != "relu2":
        raise config.fail("mlp_hidden_act", "experts other than relu2's are not modelled yet")
    experts, top_k = config.integer("n_routed_experts"), config.integer("num_experts_per_tok")
    if top_k > experts:
        raise config.fail("num_experts_per_tok", f"expected at most {experts} experts, got {top_k}")
    return Moe(hidden, experts, top_k, config.integer("moe_intermediate_size"),
               config.integer("moe_shared_expert_intermediate_size"),
               latent=config.integer("moe_latent_size", default=0))


def _attention(config: Config, hidden: int) -> Mixer:
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.fail("num_key_value_heads", f"expected a divisor of {heads} heads, got {kv_heads}")
    return Attention(hidden, heads, kv_heads, _head_dim(config, hidden), rotary=_positions(config) == "rope",
                     bias="all" if _has_biases(config) else "", dropout=config.fraction("attention_dropout", 0) > 0)


def _head_dim(config: Config, hidden: int) -> int:
    fair = max(1, hidden // config.integer("num_attention_heads"))
    return config.integer("head_dim", "attention_head_dim", default=fair)


def _has_biases(config: Config) -> bool:
    return config.boolean("add_bias_linear", default=False)


def _mlp(config: Config, hidden: int) -> Mixer:
    activation = config.choice("mlp_hidden_act", _ACTIVATIONS)
    return Mlp(hidden, config.integer("intermediate_size"), gated=activation == "swiglu", gelu=activation == "gelu",
               bias=_has_biases(config))


_MIXERS: dict[str, Callable[[Config, int], Mixer]] = {"M": _mamba, "E": _moe, "*": _attention, "-": _mlp}


# Fields in Megatron's words.
FAMILY = ModelFamily(architecture, further_fields=(
    "normalization", "add_bias_linear", "position_embedding_type", "hidden_dropout", "attention_dropout",
    "mtp_hybrid_override_pattern", "mtp_use_repeated_layer"), untied={
        "hf": "transformers 5.23 models/nemotron_h/modeling_nemotron_h.py:1158: _tied_weights_keys = {}"})
