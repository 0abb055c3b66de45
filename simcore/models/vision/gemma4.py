"""Gemma 4 with its vision tower, as transformers 5.23 `Gemma4ForConditionalGeneration`.

The processor makes an image as large as `vision_soft_tokens_per_image` (280; its own `max_soft_tokens`) allows, in
multiples of the pixels of a token, keeps the ratio of its sides and fills it up to that many patches. Patches are
averaged in squares of `pooling_kernel_size` each way (`models/gemma4`). The decoder is that of `gemma4_text`, one
module deeper (`model.language_model`). With `use_bidirectional_attention: vision` tokens of an image see each other in
layers with a window, so that these always have a mask. The tower of audio of E2B and E4B is placed, and no sound given.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.decoder_stem import DecoderStem
from simcore.models.families.gemma import gemma4
from simcore.models.pooled_blocks import (
    PooledLayer,
    PooledPatches,
    PooledProjector,
    PooledSound,
    PooledSoundEnd,
    PooledStem,
)
from simcore.models.vision.around import decoder_of, image_sides, part_of, with_layers, with_tower

__all__ = ["FAMILY"]

_TOWER = "model.vision_tower"


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Gemma4Config`; InputError for values that are not modelled."""
    text = part_of(config, "text_config", "gemma4_text")
    vision = part_of(config, "vision_config", "gemma4_vision")
    made, sees = gemma4.architecture(with_layers(config, text, tied=True)), _is_two_way(text)
    made = replace(made, parts=tuple((path, _two_way(kind) if sees else kind) for path, kind in made.parts))
    kernel, most = _kernel(vision), config.integer("vision_soft_tokens_per_image", default=280)
    count = vision.integer("num_hidden_layers", default=16)
    patches, stem = _patches(vision, most * kernel**2), decoder_of(made, made.decoder)
    rows, columns = image_sides(config, kernel * patches.patch)
    if rows * columns > most:
        raise config.fail("image_sides", f"expected at most {most} tokens, got {rows * columns}: the model's "
                          "processor would have made the image smaller")
    sound, stem = _sound(config, made.hidden), replace(stem, window=1) if sees else stem
    inputs = _inputs_of_layers(text, made, stem)
    end = PooledProjector(
        patches.padded, patches.width, kernel**2, rows * columns, made.hidden, count, count + 2 + len(sound),
        stem, patches.rotary_dim, vision.boolean("standardize", default=False), precedes=bool(inputs))
    rotary = 2 * 4 * (patches.rotary_dim // 4)
    statistics = [(f"{_TOWER}.{name}", 4 * patches.width) for name in ("std_bias", "std_scale")] * end.standardised
    return with_tower(made, "gemma4", (*sound, *_tower(vision, patches, end), *inputs),
                      [*statistics, (f"{_TOWER}.encoder.rotary_emb.inv_freq", rotary), *_buffers_of_sound(sound)])


_Parts = tuple[tuple[str, LayerKind], ...]


def _inputs_of_layers(text: Config, made: Architecture, stem: DecoderStem) -> _Parts:
    """The part that makes inputs of single layers, if they have such; `stem`: see `PooledStem`."""
    own = next((kind.own_input for _, kind in made.parts if kind.own_input), None)
    if own is None:
        return ()
    block = PooledStem(text.integer("vocab_size_per_layer_input", default=262144), made.hidden, own.layers, own.size,
                       stem)
    return (("model.language_model", LayerKind("inputs_of_layers", "gemma4", made.hidden, block=block)),)


def _sound(config: Config, hidden: int) -> _Parts:
    """The tower of audio and the product behind it; () without. Other fields of its configuration change no size."""
    fields = config.fields.get("audio_config")
    if fields is None:
        return ()
    sound = part_of(config, "audio_config", "gemma4_audio")
    channels = sound.fields.get("subsampling_conv_channels", [128, 32])
    if not (isinstance(channels, list) and len(channels) == 2 and all(isinstance(one, int) for one in channels)):
        raise sound.fail("subsampling_conv_channels", f"expected two integers, got {channels!r}")
    width, heads = sound.integer("hidden_size", default=1024), sound.integer("num_attention_heads", default=8)
    tower = PooledSound((channels[0], channels[1]), width, heads, sound.integer("conv_kernel_size", default=5),
                        sound.integer("num_hidden_layers", default=12), sound.integer("output_proj_dims", default=1536),
                        sound.boolean("use_clipped_linears", default=True))
    return (("model.audio_tower", LayerKind("sound_tower", "gemma4", width, block=tower)),
            ("model.embed_audio", LayerKind("sound_projector", "gemma4", hidden, block=PooledSoundEnd(
                tower.out, hidden))))


def _buffers_of_sound(sound: _Parts) -> list[tuple[str, int]]:
    """Timescales of positions, in fp32."""
    return [buffer for path, kind in sound if isinstance(block := kind.block, PooledSound) for buffer in (
        (f"{path}.rel_pos_enc.inv_timescales", 4 * (block.width // 2)),)]


def _is_two_way(text: Config) -> bool:
    return text.fields.get("use_bidirectional_attention") == "vision"


def _two_way(kind: LayerKind) -> LayerKind:
    """The layer with attention both ways within an image if it has a window."""
    branches = tuple(replace(branch, block=replace(branch.block, two_way=True)) if isinstance(
        branch.block, Attention) and branch.block.window else branch for branch in kind.branches)
    return replace(kind, branches=branches)


def _kernel(vision: Config) -> int:
    kernel = vision.integer("pooling_kernel_size", default=3)
    vision.choice("hidden_activation", ("gelu_pytorch_tanh",))
    vision.refuse("attention_bias")
    if vision.fraction("attention_dropout", 0):
        raise vision.fail("attention_dropout", "not modelled yet")
    return kernel


def _patches(vision: Config, padded: int) -> PooledPatches:
    dim = vision.integer("head_dim", default=64)
    if dim % 4:
        raise vision.fail("head_dim", f"expected a multiple of 4, half of it for each side, got {dim}")
    return PooledPatches(padded, vision.integer("patch_size", default=16), 3,
                         vision.integer("hidden_size", default=768),
                         vision.integer("position_embedding_size", default=10240), dim)


def _tower(vision: Config, patches: PooledPatches, end: PooledProjector) -> tuple[tuple[str, LayerKind], ...]:
    heads = vision.integer("num_attention_heads", default=12)
    few = vision.integer("num_key_value_heads", default=12)
    if heads % few:
        raise vision.fail("num_key_value_heads", f"expected a divisor of {heads} heads, got {few}")
    layer = PooledLayer(patches.padded, patches.width, heads, few, patches.rotary_dim,
                        vision.integer("intermediate_size", default=3072),
                        clipped=vision.boolean("use_clipped_linears", default=False))
    kind = LayerKind("vision_layer", "gemma4", patches.width, block=layer)
    return (
        (f"{_TOWER}.patch_embedder", LayerKind("vision_patches", "gemma4", patches.width, block=patches)),
        *((f"{_TOWER}.encoder.layers.{i}", replace(kind, block=replace(layer, first=not i)))
          for i in range(end.layers)),
        ("model.embed_vision", LayerKind("vision_projector", "gemma4", end.hidden, block=end)),
    )


FAMILY = ModelFamily(architecture, further_fields=("vision_soft_tokens_per_image",))
