"""Nemotron Omni in Megatron-Bridge's recipes: its towers, which of them are built, and which are frozen.

Megatron-Bridge 067f987d `models/nemotron_omni/nemotron_omni_provider.py`: without `has_sound` no sound is read, and
none of its modules is built; `temporal_patch_dim` over 1 builds a second product, of videos' patches, where
`separate_video_embedder` says so, as published files do, and else one that reads images as videos.

[Note: sound that is left out]
Samples of `NemotronOmniEnergonTaskEncoderConfig` are videos with sound. Pairs of frames are counted as images. Of sound
its tokens count, which are part of a sequence; what Parakeet makes of it is not modelled: it runs before the decoder,
and has at most two tensors of its first convolution at once, 256 channels of half the frames (a hundred a second) and
half of 128 bins in 16 bits: 3.1 MiB a second, as transformers 5.23 `ParakeetEncoder` had on a CPU, frozen. It has
eight times fewer tokens than frames, each of which costs a fifth of a token of the decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.models.graph import architecture_of, model_config
from simcore.models.names import find
from simcore.models.radio_blocks import SoundEncoder
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["FAMILIES", "FAMILY", "ask_tiles", "leave_sound", "read_fields", "read_frozen_parts",
           "read_kept", "read_videos", "reads_tiles"]

FAMILY: Final = "nemotron_h_omni"
"""Family (`model_type`) that reads sound too."""
FAMILIES: Final = (FAMILY, "nemotron_h_vl")
"""Families whose towers these are."""
_PROVIDER: Final = "Bridge 067f987d models/nemotron_omni/nemotron_omni_provider.py"
_FRAMES: Final = 2
"""Frames of a video in a patch, as published files say."""
_PARTS: Final = (("language_model", ("language_model",)), ("vision_model", ("vision_model",)),
                 ("vision_projection", ("vision_projector",)), ("sound_encoder", ("sound_encoder",)),
                 ("sound_projection", ("sound_projection",)))
"""Word of each switch `freeze_*`, and the modules that it freezes."""
_OF_VIDEOS: Final = "NemotronOmniEnergonTaskEncoderConfig"
_CODER: Final = "dataset.task_encoder"
_SECONDS, _SHORT = 30.0, 60.0
"""Sound of a sample by default, and the longest whose tensors are small beside the decoder's."""
_OF_SOUND: Final = ("sound_encoder", "sound_projection")


def read_fields(reader: Reader, draft: Draft, config: Mapping[str, Any]) -> dict[str, Taken[Any]]:
    """Fields of the model's configuration that the recipe changes: sound, and frames of a patch; {} for others."""
    if config.get("model_type") != FAMILY:
        return {}
    hears, frames = reader.flag("model.has_sound"), reader.integer("model.temporal_patch_dim")
    apart = reader.flag("model.separate_video_embedder")
    draft.idle(reader.flag("model.temporal_ckpt_compat"), "how files are read that lack a product of videos' patches")
    found: dict[str, Taken[Any]] = {}
    if hears is not None and not hears.value:
        found["has_sound"] = hears
    else:
        draft.idle(hears, "the model's own")
    if apart is not None and not apart.value and (frames is None or frames.value > 1):
        draft.refuse(apart, "one product for patches of images and of videos")
    else:
        draft.idle(apart, "the model's own")
    if frames is not None and frames.value != _FRAMES:
        found["video_temporal_patch_size"] = frames
    else:
        draft.idle(frames, "the model's own")
    return found


def read_frozen_parts(reader: Reader, draft: Draft, fields: Mapping[str, Any]) -> None:
    """Writes modules without gradients, for the switches of the provider; `fields`: the model's configuration."""
    hears = any(isinstance(kind.block, SoundEncoder) for _, kind in architecture_of(fields).parts)
    frozen, by = list[str](), list[Taken[bool]]()
    for word, modules in _PARTS:
        flag = reader.flag(f"model.freeze_{word}")
        if flag is None or not flag.value:
            draft.idle(flag, "it is trained")
        elif word in _OF_SOUND and not hears:
            draft.idle(flag, "the model is built without sound")
        else:
            frozen += modules
            by.append(flag)
    if frozen:
        draft.infer("training.frozen", frozen, "modules that the switches freeze", *by, source=_PROVIDER)


def leave_sound(reader: Reader, draft: Draft) -> None:
    """Refuses frozen parts of a tower of sound where no model with such a tower is known."""
    for word in _OF_SOUND:
        flag = reader.flag(f"model.freeze_{word}")
        if flag is not None and flag.value:
            draft.refuse(flag, "towers beside text")
        else:
            draft.idle(flag, "the default")


def read_videos(reader: Reader, draft: Draft) -> bool:
    """Asks for the pairs of frames of a sequence where samples are videos with sound, and returns True for those.

    See [Note: sound that is left out].
    """
    coder = reader.text(f"{_CODER}._target_")
    if coder is None or coder.value != _OF_VIDEOS:
        draft.idle(coder, "how samples are read, whose images are asked")
        return False
    seconds, frames = reader.number(f"{_CODER}.max_audio_duration"), reader.integer(f"{_CODER}.video_nframes")
    longest = seconds.value if seconds else _SECONDS
    if longest > _SHORT:
        draft.refuse(coder, f"{longest:g} seconds of sound in a sample, whose tensors are not modelled")
        draft.use(seconds)
    else:
        draft.unmodelled(coder, f"what Parakeet makes of at most {longest:g} s of sound before the decoder runs, "
                         f"{3.1 * longest:.0f} MiB at most at once, and its time; and the pixels of each pair's second "
                         "frame")
        draft.use(seconds, why="the longest sound, which is not modelled")
    draft.ask("training.images", "--set training.images=N", "pairs of frames of the videos of each sequence"
              + (f", which have {frames.value} frames at most each" if frames else ""), frames)
    return True


def ask_tiles(draft: Draft, source: Taken[str] | None) -> None:
    """Asks for the tiles of a sequence's images: the processor cuts an image into more or fewer, by its shape."""
    draft.ask("training.images", "--set training.images=N", "tiles of 512 x 512 pixels that the processor makes of the "
              "images of each sequence, and of each image as a whole", source)


def reads_tiles(reader: Reader) -> bool:
    """True for Nemotron Nano 2 VL, all of whose parts `VLMLoRA` freezes; it knows of no tower of sound."""
    name = reader.look("model.hf_model_id")
    return isinstance(name, str) and find(name) is not None and (
        model_config(name, None, "").get("model_type") in FAMILIES[1:])


def read_kept(reader: Reader, draft: Draft) -> None:
    """Refuses parts that adapters of `VLMLoRA` leave trained."""
    for part in ("vision_model", "vision_projection", "language_model"):
        frozen = reader.flag(f"peft.freeze_{part}")
        if frozen is not None and not frozen.value:
            draft.refuse(frozen, f"adapters beside a {part} that is trained itself")
        else:
            draft.idle(frozen, "frozen, as without it")
