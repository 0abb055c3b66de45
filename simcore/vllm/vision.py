"""Vision towers that vLLM holds beside the language model: weights on a rank, and the encoder in its profile run.

vLLM 0.25.1, `mm_encoder_tp_mode: weights` (`config/multimodal.py`:145, the default): linears of a tower's layers are
cut by tp, patches, positions and norms are whole on every rank. `models/siglip.py` and `models/gemma3_mm.py` (its
projector is whole), `models/qwen2_5_vl.py` (its merger is cut), which 0.12.0 has alike, `models/qwen3_vl.py`
Qwen3_VisionTransformer (also cut), `models/nano_nemotron_vl.py`.

[Note: profile run of the encoder]
`v1/worker/gpu_model_runner.py`:6290 profile_run encodes as many of the largest item as a pass holds tokens of
(`multimodal/encoder_budget.py` _get_max_items: any number in a prompt), in eager mode, before the language model runs;
pixels and features then stay until the run is over. Gemma 3: images of one size. Qwen 2.5 VL: images, or frames of a
video, of 12,845,056 pixels (max_pixels of the published preprocessor_config.json; `models/qwen2_vl.py`:948). Counted is
what a layer after the first holds in its MLP: what Python's frames still name, and outputs of linear and activation;
or in its norm that adds, written in fp32 where no kernel does it (`layers/layernorm.py` forward_native).
0.12.0 encodes the same items (`v1/worker/utils.py` MultiModalBudget; `models/qwen2_vl.py`:961). Its activation is two
operators and its norm casts the sum alone (`layers/activation.py` SiluAndMul.forward_native, `layers/layernorm.py`
forward_static) beside a compiled language model; in an eager engine both are kernels, of which the norm's writes in
place, and attention may hold more: its input, the norm, query, key and value, both rotated, and two outputs.
Qwen 3.5's largest item is an image of 16,777,216 pixels (size.longest_edge; `models/qwen3_vl.py`): a layer's attention
or MLP, beside positions of patches, angles and the layer's input; tests/truth/vllm/towers-0.25.1.json has each tensor.
Nemotron Omni's largest item is a video as long as the longest sequence, of frames of 512 x 512 pixels, two of which are
256 tokens (`models/nano_nemotron_vl.py`:321, :349). Videos are encoded one by one, at most 128 frames at once (:1062);
the highest moment is a layer's MLP, or the squared ReLU behind the tower, which is two operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from simcore.models.blocks import LayerKind
from simcore.models.config import Architecture
from simcore.models.placed_blocks import PlacedLayer, PlacedMerger, PlacedPatches
from simcore.models.radio_blocks import RadioLayer, RadioPatches, RadioProjector, SoundEncoder, SoundProjector
from simcore.models.vision_blocks import (
    GridLayer,
    GridPatches,
    Merger,
    Patches,
    Projector,
    TowerLayer,
    TowerNorm,
    VisionPart,
)
from simcore.units import dtype_bytes
from simcore.vllm.release import Release
from simcore.vllm.weights import MODEL_DTYPE, TOWER, Weight

__all__ = ["Encoder", "encoder", "tower_buffers", "tower_refusals", "tower_weights"]

_TOWER, _PROJECTOR, _SOUND = TOWER
_INT64: Final = 8
_MOST_PIXELS: Final = 12_845_056
"""Most pixels of an image: 16,384 squares of 28 x 28, `max_pixels` of Qwen 2.5 VL's preprocessor_config.json."""
_MOST_PLACED: Final = 16_777_216
"""The same of Qwen 3.5: `size.longest_edge`, 16,384 squares of 32 x 32."""
_FRAMES: Final = 14
"""Most frames of a dummy video (`models/qwen2_vl.py` _MAX_FRAMES_PER_VIDEO)."""
_POSITIONS: Final = 8192
"""Rows and columns of patches in the tower's rotary table (`models/qwen2_5_vl.py` get_rope)."""
_PLACED: Final = 2
"""Patches on a side of a square that becomes a token of Qwen 3.5 (spatial_merge_size of the published ones)."""
_FRAME: Final = 512
"""Length of a side of a video's frames for Nemotron Omni (`force_image_size` of its configuration)."""
_AT_ONCE: Final = 128
"""Most frames that its tower encodes at once."""
_ITEMS: Final = 999
"""Images of a prompt where nothing limits them (`config/multimodal.py`:331)."""
_WIDE: Final = 2
"""Elements of the model's dtype that one in fp32 takes."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """Elements of a tower in the profile run on a rank: at its highest moment, and what stays for the run behind it."""

    highest: int = 0
    stays: int = 0


def tower_refusals(architecture: Architecture, tp: int, *, multiple: int = 1) -> Iterator[tuple[str, str]]:
    """Pairs (message, vLLM's rule) for what `tp` ranks cannot cut of a tower; `multiple`: see `tower_weights`."""
    parts = [kind.block for _, kind in architecture.parts]
    layers = {block for block in parts if isinstance(block, TowerLayer | GridLayer | PlacedLayer | RadioLayer)}
    cut = {("heads", layer.num_heads) for layer in layers if not isinstance(layer, RadioLayer)}
    for name, size in sorted(cut | {("ffn", _padded(each.ffn, multiple)) for each in layers}):
        if size % tp:
            what = "attention heads" if name == "heads" else "elements of an MLP"
            yield (f"{size} {what} of the vision tower are not divisible by tp {tp}",
                   "vLLM 0.25.1 distributed/utils.py divide: not divisible")


def tower_weights(architecture: Architecture, tp: int, *, multiple: int = 1) -> Iterator[Weight]:
    """Weights of a tower on a rank; none for a model without one.

    `multiple`: of it are elements of an MLP of images of any size, those that are missing are padded (SGLang).
    """
    for _, kind in architecture.parts:
        if isinstance(kind.block, GridLayer):
            yield from _of_part(replace(kind, block=replace(kind.block, ffn=_padded(kind.block.ffn, multiple))), tp)
        elif isinstance(kind.block, VisionPart):
            yield from _of_part(kind, tp)


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _of_part(kind: LayerKind, tp: int) -> Iterator[Weight]:
    block = kind.block
    if isinstance(block, RadioPatches | RadioLayer | RadioProjector | SoundEncoder | SoundProjector):
        yield from _of_omni(block, tp)
    elif isinstance(block, Patches):
        yield Weight(_TOWER, (block.channels * block.patch**2 + 1 + block.count) * block.width)
    elif isinstance(block, GridPatches):
        yield Weight(_TOWER, block.channels * block.frames * block.patch**2 * block.width)
    elif isinstance(block, PlacedPatches):
        yield Weight(_TOWER, (block.channels * block.frames * block.patch**2 + 1 + block.positions) * block.width)
    elif isinstance(block, TowerLayer | PlacedLayer):
        yield Weight(_TOWER, (_attention(block.width) + 2 * block.ffn * block.width + block.ffn) // tp)
        yield Weight(_TOWER, 2 * block.width + 4 * block.width)  # biases behind sums, and norms
    elif isinstance(block, GridLayer):
        yield Weight(_TOWER, (_attention(block.width) + 3 * block.ffn * block.width + 2 * block.ffn) // tp)
        yield Weight(_TOWER, 2 * block.width + 2 * block.width)
    elif isinstance(block, TowerNorm):
        yield Weight(_TOWER, 2 * block.width)
    elif isinstance(block, Projector):
        yield Weight(_PROJECTOR, block.width * block.hidden + block.width)
    elif isinstance(block, Merger | PlacedMerger):
        wide, norms = block.merged * block.width, 1 + isinstance(block, PlacedMerger)  # a LayerNorm has a bias
        yield Weight(_PROJECTOR, (wide * wide + wide + wide * block.hidden) // tp + block.hidden + norms * block.width)


def _of_omni(block: RadioPatches | RadioLayer | RadioProjector | SoundEncoder | SoundProjector,
             tp: int) -> Iterator[Weight]:
    """RADIO (`models/radio.py`, its layers those of `intern_vit.py`), Parakeet (`parakeet.py`): the latter is whole.

    Layers scale both sums by learned elements. Heads that tp does not divide are on every rank (`intern_vit.py`:113).
    """
    if isinstance(block, RadioPatches):
        frames = 1 + block.frames * (block.frames > 1)
        pixels = block.channels * block.patch**2
        yield Weight(_TOWER, (frames * pixels + block.positions**2 + block.prefix) * block.width)
    elif isinstance(block, RadioLayer):
        heads = tp if block.num_heads % tp == 0 else 1
        yield Weight(_TOWER, _attention(block.width) // heads + (2 * block.ffn * block.width + block.ffn) // tp)
        yield Weight(_TOWER, 2 * block.width + 4 * block.width + 2 * block.width)  # as above, and scales
    elif isinstance(block, RadioProjector):
        yield Weight(_PROJECTOR, _projection(block.merged * block.width, block.ffn, block.hidden))
    elif isinstance(block, SoundProjector):
        yield Weight(_PROJECTOR, _projection(block.width, block.ffn, block.hidden))
    else:
        yield Weight(_SOUND, _conformer(block))


def _projection(width: int, ffn: int, hidden: int) -> int:
    """Elements of an RMSNorm and two linears without biases."""
    return width + width * ffn + ffn * hidden


def _conformer(block: SoundEncoder) -> int:
    """Elements of transformers' `ParakeetEncoder`, without biases of attention and convolutions in layers."""
    width, channels, halvings = block.width, block.channels, block.subsampling.bit_length() - 1
    convolutions = 10 * channels + (halvings - 1) * (10 * channels + channels * channels + channels)
    front = convolutions + (channels * (block.bins >> halvings) + 1) * width
    attention = 5 * width * width + 2 * width
    convolution = 3 * width * width + width * block.kernel + 2 * width
    return front + block.layers * (4 * width * block.ffn + attention + convolution + 5 * 2 * width)


def _attention(width: int) -> int:
    """Elements that tp cuts of query, key and value with biases, and of the output without."""
    return 3 * width * (width + 1) + width * width


def tower_buffers(architecture: Architecture) -> int:
    """Bytes of a tower's tables of positions on every rank."""
    fronts = [kind.block for _, kind in architecture.parts
              if isinstance(kind.block, Patches | GridPatches | PlacedPatches)]
    sound = sum(size for path, size in architecture.buffers if path.startswith("sound"))
    return sound + sum(_INT64 * front.count if isinstance(front, Patches) else
               dtype_bytes(MODEL_DTYPE) * _POSITIONS * front.rotary_dim // 2 for front in fronts)


def encoder(architecture: Architecture, tp: int, limits: tuple[int, int, int], release: Release, *,
            is_eager: bool = False) -> Encoder:
    """Encoder in the profile run, see [Note: profile run of the encoder]; nothing for a model without a tower.

    `limits`: most tokens and sequences of a pass, tokens of the longest sequence. `is_eager`: nothing is compiled.
    """
    blocks = [kind.block for _, kind in architecture.parts]
    end = next((block for block in blocks if isinstance(block, Projector | Merger | PlacedMerger)), None)
    layer = next((block for block in blocks if isinstance(block, TowerLayer | GridLayer | PlacedLayer)), None)
    front = next((block for block in blocks if isinstance(block, Patches | GridPatches | PlacedPatches)), None)
    if any(isinstance(block, RadioPatches) for block in blocks):
        return _of_videos(architecture, tp, limits)
    if end is None or layer is None or front is None:
        return Encoder()
    tokens, seqs, longest = limits
    each = _largest(front, end.tokens, longest)
    items = max(1, min(max(tokens, each) // each, seqs * max(1, min(_ITEMS, longest // each))))
    patches = items * each * (end.patches // end.tokens)
    pixels = patches * (front.pixels // front.count)
    if isinstance(layer, PlacedLayer):
        found = _of_placed(layer, 2 * end.hidden * end.tokens // end.patches, tp)
    else:
        found = _of_older_layer(layer, tp, is_eager=is_eager) if release.plain_towers else _of_layer(layer, tp)
    return Encoder(pixels + patches * found, pixels + items * each * end.hidden)


def _of_videos(architecture: Architecture, tp: int, limits: tuple[int, int, int]) -> Encoder:
    """The same of RADIO: videos as long as the longest sequence."""
    blocks, (tokens, seqs, longest) = [kind.block for _, kind in architecture.parts], limits
    front = next(block for block in blocks if isinstance(block, RadioPatches))
    layer = next(block for block in blocks if isinstance(block, RadioLayer))
    end = next(block for block in blocks if isinstance(block, RadioProjector))
    patches = (_FRAME // front.patch)**2
    pairs = max(1, longest // (patches // end.merged))
    items, at_once = max(1, min(max(tokens, longest) // longest, seqs)), min(pairs, _AT_ONCE // front.frames)
    pixels = items * pairs * front.frames * front.channels * _FRAME**2
    features = pairs * patches // end.merged * end.hidden
    inside = at_once * (patches + front.prefix) * max(3 * layer.width + 2 * layer.ffn // tp, 4 * layer.width)
    behind = at_once * patches * (layer.width + 3 * end.ffn // end.merged)
    return Encoder(pixels + (items - 1) * features + max(inside, behind), pixels + items * features)


def _largest(front: Patches | GridPatches | PlacedPatches, tokens: int, longest: int) -> int:
    """Tokens of the largest item: an image, or a video where that of Qwen 2.5 VL is larger."""
    if isinstance(front, Patches):
        return tokens
    if isinstance(front, PlacedPatches):
        return _MOST_PLACED // (_PLACED * front.patch)**2
    image = _MOST_PIXELS // (front.merged * front.patch**2)
    return image * max(1, min(_FRAMES // front.frames, longest // image))


def _of_layer(layer: TowerLayer | GridLayer, tp: int) -> int:
    """Elements of a patch at the highest moment of a layer behind the first."""
    if isinstance(layer, TowerLayer):  # the encoder's input, the layer's, the sum, its norm; then fc1 and GELU
        return 4 * layer.width + 2 * layer.ffn // tp
    # the layer's input, attention's output, the sum, its norm; gate and up beside each other, and their product
    mlp = 4 * layer.width + 3 * layer.ffn // tp
    norm = 3 * layer.width + 3 * _WIDE * layer.width  # in fp32 the input, the sum, and its square or norm
    return max(mlp, norm)


def _of_placed(layer: PlacedLayer, features: int, tp: int) -> int:
    """Elements of a patch at the highest moment of Qwen 3.5's tower; `features`: of tokens, beside their copy.

    A layer's input, positions, the sum, its norm; then fc1 and GELU, or GELU and output. In attention the sum is not
    there yet, but an output, query, key and value, two copies of query and key, and what is attended to. Behind the
    layers features are copied, and positions are still there. Angles have an element of each of a head's.
    """
    width, made = layer.width, layer.ffn // tp
    attention, mlp = 4 * width + 8 * width // tp, max(4 * width + 2 * made, 5 * width + made)
    return max(attention, mlp, width + features) + layer.head_dim


def _of_older_layer(layer: TowerLayer | GridLayer, tp: int, *, is_eager: bool) -> int:
    """The same in 0.12.0."""
    width, made = layer.width, layer.ffn // tp
    attention = 3 * width + 6 * width // tp
    if is_eager:
        return max(2 * width + 3 * made, attention)
    # what 0.25.1 holds, and the activation by itself; or the input in 16 bits, the sum, and its square or norm
    return max(4 * width + 4 * made, 3 * width + 2 * _WIDE * width, attention)
