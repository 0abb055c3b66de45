"""Nemotron Nano 2 VL, Nemotron 3 Omni: RADIO, which reads images, and Parakeet, which reads sound, before Nemotron-H.

Fields are those of the published files, or of transformers 5.23 `models/nemotron_h_omni`, which renamed some
(`_legacy_field_names`). Published files name the towers' versions and leave out their sizes, whose defaults are those
of `RadioConfig` and `ParakeetEncoderConfig`; neither attention nor convolutions of sound have biases
(`configuration_nemotron_h_omni.py`). Module paths are those of NeMo Automodel 0.7.0 `models/nemotron_omni/model.py`,
which are the published files' but for the projectors. Sizes add up to the 33,015,546,816 parameters that
Megatron-Bridge counts (067f987d `examples/model_verification_cards/nemotron-3-nano-omni-30b-a3b-reasoning/card.yaml`).

`has_sound` (Bridge's word) false leaves Parakeet out, `video_temporal_patch_size` 1 the product of videos' patches.

Nemotron Nano 2 VL (`nemotron_h_vl`; published as NemotronH_Nano_VL_V2) has no sound and no such product, and reads
tiles of 512 pixels. Its learned tokens are padded to 16 (Bridge 067f987d `models/nemotron_vl/nemotron_vl_provider.py`,
use_vision_backbone_fp8_arch). Its file was not found: the preset has Bridge's sizes and its decoder's vocabulary of
131,072, of which the published one has a few more rows (`data/collate_fn.py` there has tokens up to 131,074). Its card
tells 12.6B parameters.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families import nemotron_h
from simcore.models.radio_blocks import RadioLayer, RadioPatches, RadioProjector, SoundEncoder, SoundProjector
from simcore.models.vision.around import decoder_of, image_sides, part_of, stem_of, with_layers

__all__ = ["FAMILY"]

_FAMILY, _OF_TILES = "nemotron_h_omni", "nemotron_h_vl"
_TILE, _PADDED = 512, 16
_TOWER = "vision_model.radio_model.model"
_Parts = tuple[tuple[str, LayerKind], ...]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `NemotronH_Omni_Reasoning_V3_Config`; InputError for what is not modelled."""
    text = with_layers(config, part_of(config, _name(config, "text_config", "llm_config"), "nemotron_h"), tied=False)
    vision = part_of(config, "vision_config", "radio")
    tiles = config.fields["model_type"] in (_OF_TILES, "NemotronH_Nano_VL_V2")
    made, patches = nemotron_h.architecture(text), _patches(config, vision)
    family, sound = _OF_TILES if tiles else _FAMILY, () if tiles else _sound(config, made.hidden)
    patches = _of_tiles(patches) if tiles else patches
    layer = _layer(vision, patches)
    count = vision.integer("num_hidden_layers", default=32)
    end = RadioProjector(patches.count, patches.prefix, patches.width, _merged(config),
                         config.integer("projector_hidden_size", default=4096), made.hidden,
                         len(sound) + count + 2, count, tiles, decoder_of(made))
    kind = LayerKind("vision_patches", family, patches.width, block=patches)
    tower: _Parts = (
        *sound,
        (f"{_TOWER}.patch_generator", kind),
        *((f"{_TOWER}.blocks.{i}", replace(kind, name="vision_layer", block=replace(layer, first=not i)))
          for i in range(count)),
        ("vision_projector", LayerKind("vision_projector", family, made.hidden, block=end)))
    return _with_towers(made, family, tower, _buffers(sound))


def _of_tiles(patches: RadioPatches) -> RadioPatches:
    """Patches of a tile, with padded tokens before them."""
    side = _TILE // patches.patch
    return replace(patches, rows=side, columns=side, prefix=_PADDED, frames=1, tiles=True)


def _name(config: Config, *names: str) -> str:
    """The first of the fields `names` that the configuration has; the first of all if it has none."""
    return next((name for name in names if config.fields.get(name) is not None), names[0])


def _merged(config: Config) -> int:
    """Patches of a token: squares of two by two."""
    if config.fields.get("downsample_ratio", 0.5) != 0.5:
        raise config.fail("downsample_ratio", "expected 0.5, squares of two by two patches: others are not modelled "
                          "yet")
    return 4


def _patches(config: Config, vision: Config) -> RadioPatches:
    version = vision.fields.get("version", "-h")
    if not str(version).endswith("-h"):
        raise vision.fail("version", f"expected a RADIO whose name ends in -h, of which the sizes are known, got "
                          f"{version!r}")
    width, patch = vision.integer("hidden_size", default=1280), vision.integer("patch_size", default=16)
    if config.integer("vision_hidden_size", "vit_hidden_size", default=1280) != width:
        raise config.fail("vit_hidden_size", f"expected the hidden_size {width} of vision_config")
    rows, columns = image_sides(config, 2 * patch)
    frames = config.integer("video_temporal_patch_size", default=vision.integer("video_temporal_patch_size", default=2))
    return RadioPatches(2 * rows, 2 * columns, patch, vision.integer("num_channels", default=3), width,
                        vision.integer("max_img_size", default=2048) // patch,
                        vision.integer("num_cls_tokens", default=3) + vision.integer("num_registers", default=7,
                                                                                     least=0), frames)


def _layer(vision: Config, patches: RadioPatches) -> RadioLayer:
    vision.choice("hidden_act", ("gelu",))
    vision.refuse("use_swiglu_ffn")
    heads = vision.integer("num_attention_heads", default=16)
    if patches.width % heads:
        raise vision.fail("num_attention_heads", f"expected a divisor of hidden_size {patches.width}, got {heads}")
    if vision.fields.get("mlp_ratio", 4) != 4:
        raise vision.fail("mlp_ratio", "expected 4: others are not modelled yet")
    return RadioLayer(patches.count + patches.prefix, patches.width, heads, 4 * patches.width)


def _sound(config: Config, hidden: int) -> _Parts:
    """The conformer and its projector; () without sound."""
    name = _name(config, "audio_config", "sound_config")
    if not config.boolean("has_sound", default=config.fields.get(name) is not None):
        return ()
    sound = part_of(config, name, "parakeet_encoder", "parakeet")
    for bias in ("attention_bias", "convolution_bias", "projection_bias"):
        sound.refuse(bias)
    width = sound.integer("hidden_size", default=1024)
    encoder = SoundEncoder(
        sound.integer("num_mel_bins", default=128), sound.integer("subsampling_conv_channels", default=256),
        sound.integer("subsampling_factor", default=8), width, sound.integer("num_attention_heads", default=8),
        sound.integer("intermediate_size", default=4096), sound.integer("conv_kernel_size", default=9),
        sound.integer("num_hidden_layers", default=24))
    end = SoundProjector(width, sound.integer("projection_hidden_size", default=4096), hidden)
    return (("sound_encoder", LayerKind("sound_encoder", _FAMILY, width, block=encoder)),
            ("sound_projection", LayerKind("sound_projection", _FAMILY, hidden, block=end)))


def _buffers(sound: _Parts) -> list[tuple[str, int]]:
    """Means and variances of the conformer's norms of batches and its frequencies, cast to 16 bits with the model."""
    return [("sound_encoder.running", 2 * (2 * block.layers * block.width + block.width // 2) + 8 * block.layers)
            for _, kind in sound if isinstance(block := kind.block, SoundEncoder)]


def _with_towers(made: Architecture, family: str, tower: _Parts, buffers: list[tuple[str, int]]) -> Architecture:
    """The decoder `made`, a module of its own, with the towers between its embedding and its first layer."""
    (path, stem), *others = made.parts
    first = (path, replace(stem, block=replace(stem_of(made), tower=len(tower))))
    parts = tuple((at if at == "loss" else f"language_model.{at}", kind) for at, kind in (first, *others))
    return replace(made, family=family, parts=(parts[0], *tower, *parts[1:]), buffers=(*buffers, *made.buffers))


FAMILY = ModelFamily(architecture, further_fields=("has_sound", "video_temporal_patch_size"),
                     untied=nemotron_h.FAMILY.untied)
