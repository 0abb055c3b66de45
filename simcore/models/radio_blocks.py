"""Parts of the towers of Nemotron Omni: RADIO, which reads images, and Parakeet, which reads sound.

An image keeps its size; positions are interpolated from a square of learned ones, and learned tokens stand before the
patches of each image (NVlabs RADIO 2a1dac6 `radio/vit_patch_generator.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.decoder_stem import DecoderStem
from simcore.models.tower_shapes import TowerLayer

__all__ = ["RadioLayer", "RadioPatches", "RadioProjector", "SoundEncoder", "SoundProjector"]


@dataclass(frozen=True, slots=True)
class RadioPatches:
    """Cut of an image of any size into `rows` x `columns` patches, a product without a bias, and learned positions.

    `patch`: length of a patch's side in pixels; `width`: elements of a patch in the tower; `positions`: of both sides
    of the learned square; `prefix`: learned tokens before the patches of each image. `frames`: of a video in a patch,
    for which there is a product of its own; 1 for a tower without it. `tiles`: images are tiles of one size, whose
    positions are drawn from the learned square in training.
    """

    rows: int
    columns: int
    patch: int
    channels: int
    width: int
    positions: int
    prefix: int
    frames: int
    tiles: bool = False

    @property
    def count(self) -> int:
        """Number of patches of an image."""
        return self.rows * self.columns

    @property
    def pixels(self) -> int:
        """Number of values of an image."""
        return self.count * self.channels * self.patch**2


@dataclass(frozen=True, slots=True)
class RadioLayer(TowerLayer):
    """Layer of a tower: attention of each patch to all of its image, and a GELU MLP, each behind a LayerNorm.

    All linears and norms have biases; query, key and value are one linear. `patches`: of an image, with the learned
    tokens before them; `width`: elements of a patch; `ffn`: of the MLP. `first`: the first layer, whose input the
    tower holds until it has returned.
    """


@dataclass(frozen=True, slots=True)
class RadioProjector:
    """End of the tower: squares of patches become tokens by an RMSNorm and an MLP with a squared ReLU, no biases.

    The tokens are put in the place of the image's. `patches`: of an image, without the `prefix` learned tokens before
    them; `merged`: patches of a token; `ffn`: of the MLP; `depth`: layers of the tower. `collapsed`:
    an image is one token of the text, in whose place its tokens come, in a new sequence. Other fields: see
    `vision_blocks.Projector`.
    """

    patches: int
    prefix: int
    width: int
    merged: int
    ffn: int
    hidden: int
    below: int
    depth: int
    collapsed: bool
    decoder: DecoderStem

    @property
    def tokens(self) -> int:
        """Tokens of an image in the sequence."""
        return self.patches // self.merged


@dataclass(frozen=True, slots=True)
class SoundEncoder:
    """Conformer that reads sound: convolutions that take one of `subsampling` frames, then layers.

    `bins`: of a frame of sound; `channels`: of the convolutions; `width`: elements of a frame behind them; `kernel`: of
    a layer's convolution over frames.
    """

    bins: int
    channels: int
    subsampling: int
    width: int
    num_heads: int
    ffn: int
    kernel: int
    layers: int


@dataclass(frozen=True, slots=True)
class SoundProjector:
    """End of the conformer: frames become tokens by an RMSNorm and an MLP with a squared ReLU, no biases."""

    width: int
    ffn: int
    hidden: int
