"""Parts of a vision tower whose patches are padded to one number for every image, and averaged in squares at its end.

An image keeps the ratio of its sides: the processor makes it as large as `padded` patches allow, and fills them up
(transformers 5.23 `models/gemma4`, image_processing_gemma4.py). All images of a microbatch are one batch, under a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.decoder_stem import DecoderStem

__all__ = ["PooledLayer", "PooledPatches", "PooledProjector", "PooledSound", "PooledSoundEnd", "PooledStem"]


@dataclass(frozen=True, slots=True)
class PooledPatches:
    """Cut of an image into patches, a product without a bias and two learned positions, by column and by row.

    `padded`: patches of an image in the tower; `patch`: length of a patch's side in pixels; `width`: elements of a
    patch; `positions`: learned ones of each side. `rotary_dim`: elements of a head, all of which are rotated.
    """

    padded: int
    patch: int
    channels: int
    width: int
    positions: int
    rotary_dim: int

    @property
    def pixels(self) -> int:
        """Number of values of an image, with those of patches that fill it up."""
        return self.padded * self.channels * self.patch**2


@dataclass(frozen=True, slots=True)
class PooledLayer:
    """Layer of a tower: attention under a mask and a gated GELU MLP, each between two RMSNorms; no biases.

    Each head of query, key and value passes a norm. `patches`: of an image; `width`: elements of a patch; `ffn`: of the
    MLP. `first`: the first layer, whose input the tower holds until it has returned. `clipped`: what each linear is
    given and puts out is kept between two numbers, which are buffers.
    """

    patches: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    first: bool = False
    clipped: bool = False


@dataclass(frozen=True, slots=True)
class PooledProjector:
    """End of a tower: squares of patches are averaged in fp32, normed and projected, and take the place of tokens.

    `patches`, `width`: of an image and of a patch; `merged`: patches of a token; `tokens`: of an image in the sequence,
    without those that fill it up. `standardised`: averages lose a mean and are scaled by numbers in buffers. `layers`:
    of the tower. `precedes`: a `PooledStem` comes behind it, which makes tables and masks for the layers. Other fields:
    see `Projector` and `Merger` (`vision_blocks`).
    """

    patches: int
    width: int
    merged: int
    tokens: int
    hidden: int
    layers: int
    below: int
    decoder: DecoderStem
    patch_rotary_dim: int
    standardised: bool = False
    precedes: bool = False


@dataclass(frozen=True, slots=True)
class PooledStem:
    """Inputs of single layers: looked up for each token, beside a product of the sequence with the images' tokens.

    `vocab`: rows of the table; `layers`, `size`: number of layers, and columns of each one's input. `decoder`: what
    the model makes for its layers behind it.
    """

    vocab: int
    hidden: int
    layers: int
    size: int
    decoder: DecoderStem

    @property
    def columns(self) -> int:
        """Elements of a token's inputs of all layers."""
        return self.layers * self.size


@dataclass(frozen=True, slots=True)
class PooledSound:
    """Conformer that reads sound: two convolutions of `channels`, then `layers` of `width` elements of a frame.

    `kernel`: of a layer's convolution over frames; `out`: elements of a frame that it puts out. `clipped`: see
    `PooledLayer`.
    """

    channels: tuple[int, int]
    width: int
    num_heads: int
    kernel: int
    layers: int
    out: int
    clipped: bool


@dataclass(frozen=True, slots=True)
class PooledSoundEnd:
    """Product of a frame of sound, of `width` elements, to a token of `hidden`."""

    width: int
    hidden: int
