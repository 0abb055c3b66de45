"""Parameters of RADIO, Parakeet and their projectors, as NeMo Automodel 0.7.0 registers them.

`models/nemotron_omni/model.py`. RADIO is the published file's own code, over timm's ViT (NVlabs RADIO c0f3701
`radio/vit_patch_generator.py`, `enable_cpe_support.py`), Parakeet transformers 5.23 `models/parakeet`.
"""

from __future__ import annotations

from collections.abc import Iterator

from simcore.models.radio_blocks import RadioLayer, RadioPatches, RadioProjector, SoundEncoder, SoundProjector
from simcore.models.tensor import TensorSpec
from simcore.operators.hf.vision.specs.linears import PROJECTOR, SOUND, TOWER, linear, norm, norm_weight, weight

__all__ = ["radio_tensors", "sound_tensors"]


def radio_tensors(block: RadioPatches | RadioLayer | RadioProjector) -> Iterator[TensorSpec]:
    """Parameters of a part of the tower that reads images, in registration order, with names relative to it."""
    match block:
        case RadioPatches():
            return _patches(block)
        case RadioLayer():
            return _layer(block)
        case RadioProjector():
            return _projector((block.merged * block.width, "square"), block.ffn, block.hidden)


def sound_tensors(block: SoundEncoder | SoundProjector) -> Iterator[TensorSpec]:
    """The same of a part of the tower that reads sound."""
    if isinstance(block, SoundProjector):
        return _projector((block.width, "sound"), block.ffn, block.hidden)
    return _encoder(block)


def _patches(block: RadioPatches) -> Iterator[TensorSpec]:
    """`ViTPatchGenerator`; `video_embedder` is put in by the model."""
    pixels = block.channels * block.patch**2
    yield TensorSpec("pos_embed", (1, block.positions**2, block.width), ("one", "patches", "vision"), TOWER)
    yield weight("embedder", (block.width, "vision"), (pixels, "patch"))
    yield TensorSpec("cls_token.token", (block.prefix, block.width), ("patches", "vision"), TOWER)
    if block.frames > 1:
        yield weight("video_embedder", (block.width, "vision"), (block.frames * pixels, "patch"))


def _layer(block: RadioLayer) -> Iterator[TensorSpec]:
    """`timm.models.vision_transformer.Block`."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    yield from norm("norm1", width)
    yield from linear("attn.qkv", (3 * block.width, "vision_qkv"), width)
    yield from linear("attn.proj", width, width)
    yield from norm("norm2", width)
    yield from linear("mlp.fc1", ffn, width)
    yield from linear("mlp.fc2", width, ffn)


def _projector(given: tuple[int, str], ffn: int, hidden: int) -> Iterator[TensorSpec]:
    """`VisionProjector`, `SoundProjection`."""
    yield norm_weight("norm", given, PROJECTOR)
    yield weight("linear1", (ffn, "projector_ffn"), given, PROJECTOR)
    yield weight("linear2", (hidden, "hidden"), (ffn, "projector_ffn"), PROJECTOR)


def _encoder(block: SoundEncoder) -> Iterator[TensorSpec]:
    """`ParakeetEncoder`: convolutions of bins and frames, a linear, and layers."""
    channels, width, halvings = block.channels, (block.width, "sound"), block.subsampling.bit_length() - 1
    yield from _convolution("subsampling.layers.0", channels, (1, 3))
    for number in range(halvings - 1):  # of each channel, then across them, with a ReLU behind
        yield from _convolution(f"subsampling.layers.{3 * number + 2}", channels, (1, 3))
        yield from _convolution(f"subsampling.layers.{3 * number + 3}", channels, (channels, 1))
    yield from linear("subsampling.linear", width, (channels * (block.bins >> halvings), "square"), SOUND)
    for number in range(block.layers):
        yield from _conformer(f"layers.{number}.", block, width)


def _convolution(at: str, channels: int, given: tuple[int, int]) -> Iterator[TensorSpec]:
    """Weight and bias; `given`: channels that each one reads, and length of a side of what it reads of them."""
    read, side = given
    yield TensorSpec(f"{at}.weight", (channels, read, side, side), ("channels", "one", "one", "one"), SOUND, "conv")
    yield TensorSpec(f"{at}.bias", (channels,), ("channels",), SOUND, "bias")


def _conformer(at: str, block: SoundEncoder, width: tuple[int, str]) -> Iterator[TensorSpec]:
    """`ParakeetEncoderBlock`, without biases."""
    ffn, heads = (block.ffn, "sound_ffn"), (block.num_heads, block.width // block.num_heads)
    for number, between in ((1, _attention_and_convolution(at, block, width, heads)), (2, iter(()))):
        yield weight(f"{at}feed_forward{number}.linear1", ffn, width, SOUND)
        yield weight(f"{at}feed_forward{number}.linear2", width, ffn, SOUND)
        yield from between
    for name in ("feed_forward1", "self_att", "conv", "feed_forward2", "out"):
        yield from norm(f"{at}norm_{name}", width, SOUND)


def _attention_and_convolution(at: str, block: SoundEncoder, width: tuple[int, str],
                               heads: tuple[int, int]) -> Iterator[TensorSpec]:
    for name in ("bias_u", "bias_v"):
        yield TensorSpec(f"{at}self_attn.{name}", heads, ("sound_heads", "sound"), SOUND)
    for name in ("q", "k", "v", "o", "relative_k"):
        yield weight(f"{at}self_attn.{name}_proj", width, width, SOUND)
    for name, shape in (("pointwise_conv1", (2 * block.width, block.width, 1)),
                        ("depthwise_conv", (block.width, 1, block.kernel))):
        yield TensorSpec(f"{at}conv.{name}.weight", shape, ("sound", "one", "one"), SOUND, "conv")
    yield from norm(f"{at}conv.norm", width, SOUND)
    yield TensorSpec(f"{at}conv.pointwise_conv2.weight", (block.width, block.width, 1), ("sound", "one", "one"), SOUND,
                     "conv")
