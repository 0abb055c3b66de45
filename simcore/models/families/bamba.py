"""Bamba and Falcon-H1: Mamba-2 and attention, then SwiGLU, as transformers 5.23 `models/bamba`, `models/falcon_h1`.

Bamba has one of the two in a layer: those of `attn_layer_indices` have attention, half of each head rotated
(`BambaConfig`: partial_rotary_factor 0.5). Every layer of Falcon-H1 has both beside each other behind one norm, and
multiplies their inputs and outputs, keys, what SwiGLU makes and the logits by numbers, also where they are one.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Branch, LayerKind, Mamba2, Mixer
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, mlp, rotated_dims

__all__ = ["FAMILY", "mamba"]

_INNER = 1024
"""Default of `FalconH1Config.mamba_d_ssm`, which comes before `mamba_expand`."""


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `BambaConfig` or `FalconH1Config`; InputError for values not modelled."""
    config.refuse("attention_bias", "mlp_bias")
    if config.fields["model_type"] == "falcon_h1":
        return _falcon(config)
    if config.fields.get("z_loss_coefficient"):
        raise config.fail("z_loss_coefficient", "not modelled yet")
    mixer, count = attention(config), config.integer("num_hidden_layers")
    rotated, attending = rotated_dims(config, "head_dim", mixer.head_dim, 0.5), _attending(config, count)
    kinds = {True: _layer(config, "attention", "self_attn", replace(mixer, rotated=rotated)),
             False: replace(_layer(config, "mamba", "mamba", mamba(config)), tables=rotated)}
    return chain(config, "bamba", [kinds[i in attending] for i in range(count)], rotated, norm="model.final_layernorm")


def _falcon(config: Config) -> Architecture:
    config.refuse("projectors_bias")
    mixer, hidden = attention(config), config.integer("hidden_size")
    wide = hidden * config.integer("mamba_expand", default=2)
    inner = config.integer("mamba_d_ssm", default=wide) if "mamba_d_ssm" in config.fields else _INNER
    scan = replace(_mamba2(config, inner), normed=config.boolean("mamba_rms_norm", default=False))
    layer = LayerKind("hybrid", "falcon_h1", hidden, (
        Branch("input_layernorm", "mamba", scan), Branch("", "self_attn", mixer),
        Branch("pre_ff_layernorm", "feed_forward", mlp(config))), paired=True)
    return chain(config, "falcon_h1", [layer] * config.integer("num_hidden_layers"), mixer.head_dim,
                 norm="model.final_layernorm", scaled=True)


def _attending(config: Config, count: int) -> frozenset[int]:
    """Numbers of the layers with attention; those behind the last layer are no error (`BambaConfig`)."""
    listed = config.fields.get("attn_layer_indices") or []
    if not isinstance(listed, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in listed):
        raise config.fail("attn_layer_indices", f"expected a list of layer numbers, got {listed!r}")
    return frozenset(i for i in listed if 0 <= i < count)


def _layer(config: Config, name: str, module: str, mixer: Mixer) -> LayerKind:
    return LayerKind(name, "bamba", config.integer("hidden_size"), (
        Branch("input_layernorm", module, mixer), Branch("pre_ff_layernorm", "feed_forward", mlp(config))))


def mamba(config: Config) -> Mamba2:
    """Mamba-2 mixer by Bamba's field names, which GraniteMoeHybrid has too.

    InputError for sizes that do not fit.
    """
    return _mamba2(config, config.integer("hidden_size") * config.integer("mamba_expand", default=2))


def _mamba2(config: Config, inner: int) -> Mamba2:
    """`inner`: elements of all heads of a token, which the fields of heads have to make."""
    hidden, heads = config.integer("hidden_size"), config.integer("mamba_n_heads", default=128)
    groups = config.integer("mamba_n_groups", default=1)
    given = config.fields.get("mamba_d_head", "auto")
    head_dim = inner // heads if given == "auto" else config.integer("mamba_d_head")
    if heads * head_dim != inner:
        raise config.fail("mamba_n_heads", f"expected mamba_n_heads x mamba_d_head = mamba_expand x hidden_size = "
                          f"{inner}, or mamba_d_ssm, got {heads * head_dim}")
    if heads % groups:
        raise config.fail("mamba_n_groups", f"expected a divisor of {heads} heads, got {groups}")
    return Mamba2(hidden, heads, head_dim, groups, config.integer("mamba_d_state", default=256),
                  config.integer("mamba_d_conv", default=4), config.integer("mamba_chunk_size", default=256),
                  config.boolean("mamba_proj_bias", default=False), config.boolean("mamba_conv_bias", default=True))


FAMILY = ModelFamily(architecture)
