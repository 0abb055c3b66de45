"""Features that a layer needs beyond the plain blocks, in words: an implementation serves some, refuses the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import (
    Attention,
    Branch,
    CompressedAttention,
    Embedding,
    FinalNorm,
    GatedDeltaNet,
    Head,
    LatentAttention,
    LayerKind,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Mtp,
)
from simcore.models.vision_blocks import VisionPart

__all__ = ["CHUNKS", "LATENT", "TEMPERED", "UNIT_NORMS", "WEIGHED_INPUT", "features", "refuse", "refuse_megatrons"]

LATENT: Final = "experts of a latent width"
WEIGHED_INPUT: Final = "experts whose input is weighed"
PREDICTIONS: Final = "multi-token prediction"
UNIT_NORMS: Final = "norms of query and key without weights"
TEMPERED: Final = "queries by a number of their position"
CHUNKS: Final = "attention within chunks"


def refuse(kind: LayerKind, served: frozenset[str], code: str) -> None:
    """Raises NotYet if a layer of `kind` needs a feature that is not in `served`.

    `served`: features (names as `features` gives them) that an implementation records; `code`: name of that
    implementation, for the message.
    """
    missing = [name for name in features(kind) if name not in served]
    if missing:
        raise NotYet(Problem("model", f"not yet: {', '.join(missing)} ({kind.family}, {kind.name}) in the layers of "
                             f"{code}; placement is served"))


def refuse_megatrons(kind: LayerKind, *, ties: bool = True, predicts: bool = False) -> None:
    """Raises NotYet for a Nemotron-H hybrid with features that only Megatron builds.

    The other code bases ignore the fields. transformers 5.23 `models/nemotron_h/modeling_nemotron_h.py`, nemo-automodel
    0.7.0 `components/models/nemotron_v3/model.py`. `ties`: True if a head tied to the embedding is refused here too
    (False: the framework refuses it). `predicts`: the code base builds modules of multi-token prediction too.
    """
    tied = ties and isinstance(kind.block, Head) and kind.block.tied
    rotary = any(isinstance(branch.block, Attention) and branch.block.rotary for branch in kind.branches)
    gated = any(isinstance(branch.block, Mlp) and branch.block.gated for branch in kind.branches)
    own = (name for name in features(kind) if name != LATENT and not (predicts and name == PREDICTIONS))
    found = (*own, *_named(("a tied head", tied), ("rotary positions", rotary), ("a gated MLP", gated)))
    if kind.family == "nemotron_h" and found:
        raise NotYet(Problem("model", f"{', '.join(found)} ({kind.name}): of all hybrids only Megatron's have it"))


def features(kind: LayerKind) -> tuple[str, ...]:
    """Names, in words and each once, of the features that a layer of `kind` needs beyond the plain blocks."""
    found = [name for branch in kind.branches for name in _mixer(branch.block)]
    if any(branch.layer_norm for branch in kind.branches):
        found.append("LayerNorm")
    if isinstance(kind.block, Embedding) and kind.block.positions:
        found.append("learned positions")
    if isinstance(kind.block, FinalNorm) and kind.block.layer_norm:
        found.append("LayerNorm")
    if any(not norm.norm_bias for norm in (kind.block, *kind.branches) if isinstance(norm, FinalNorm | Branch)):
        found.append("LayerNorm without a bias")
    if kind.dropout or any(isinstance(branch.block, Attention | LatentAttention) and branch.block.dropout
                           for branch in kind.branches):
        found.append("dropout")
    found += _named(("norms behind blocks", any(branch.behind for branch in kind.branches)),
                    ("logits below a cap", isinstance(kind.block, Head) and kind.block.capped),
                    ("a bias of the head", isinstance(kind.block, Head) and kind.block.bias),
                    ("attention and MLP beside each other", kind.beside), ("a mixer beside attention", kind.paired),
                    ("residuals in fp32", kind.wide), ("scaled residuals", kind.scaled and not kind.block),
                    ("a transformer that layers share", kind.shared is not None),
                    ("a scaled output of layers", kind.scales_output),
                    ("inputs of single layers", kind.own_input is not None),
                    ("experts beside an MLP", bool(kind.joined)),
                    ("several residual streams", kind.streams is not None),
                    ("a vision tower", isinstance(kind.block, VisionPart)),
                    ("a scaled embedding or scaled logits", kind.scaled and bool(kind.block)))
    if isinstance(kind.block, Mtp):
        found.append(PREDICTIONS + " by several modules" * (kind.block.modules > 1))
    return tuple(dict.fromkeys(found))


def _mixer(block: Mixer) -> Iterator[str]:
    if isinstance(block, LatentAttention):
        yield "latent attention"
        yield from _named(("an indexer of keys", block.indexer is not None),
                          ("biases of attention", block.bias), (TEMPERED, block.tempered),
                          ("latent attention without norms on the way up", not block.inner_norms))
    elif isinstance(block, Attention):
        yield from _named(("norms of query and key", block.qk_norm),
                          ("norms over all heads of query and key", block.whole_norms),
                          ("attention sinks", block.sinks), ("attention within a window", block.window > 0),
                          ("biases of query, key and value", block.bias == "qkv"),
                          ("biases of attention", block.bias == "all"), ("ALiBi", block.alibi),
                          ("scores below a cap", block.capped), ("a gate of attention's output", block.gated),
                          ("gates of heads", block.head_gates), ("a norm of values", block.value_norm),
                          ("values out of keys", block.values_from_keys),
                          ("attention both ways within an image", block.two_way),
                          ("keys and values of another layer", block.borrows or block.lent > 0),
                          (UNIT_NORMS, block.unit_norms), (TEMPERED, block.tempered), (CHUNKS, block.chunk > 0),
                          ("heads of values of another size", block.value not in (0, block.head_dim)),
                          ("rotation of a part of each head", 0 < block.rotated < block.head_dim))
    elif isinstance(block, Mamba2):
        yield from _named(("biases of Mamba's projections", block.bias),
                          ("a convolution without a bias", not block.conv_bias),
                          ("Mamba without its norm", not block.normed))
    elif isinstance(block, GatedDeltaNet | CompressedAttention):
        yield "the gated delta rule" if isinstance(block, GatedDeltaNet) else "attention over compressed keys"
    elif isinstance(block, Mlp):
        yield from _named(("a GELU MLP", block.gelu), ("biases of the MLP", block.bias))
    elif isinstance(block, Moe):
        softmax = block.router == "softmax"
        yield from _named(("gated experts", block.gated), ("a router by softmax", softmax and block.normalised),
                          ("a router by softmax, not normalised", softmax and not block.normalised),
                          ("a router by softmax of the chosen", block.router == "topk_softmax"),
                          ("experts with GELU", block.gelu), ("biases of experts", block.bias),
                          ("gated experts with a shared one", _shares(block)),
                          ("a router with a scale of each expert", block.router == "scaled_softmax"),
                          ("gated experts chosen by sigmoid", block.gated and block.router == "sigmoid"),
                          ("a gate of the shared expert", block.shared_gate),
                          ("a router by roots of softplus", block.router == "sqrtsoftplus"),
                          (WEIGHED_INPUT, block.weighs_input), (LATENT, block.latent > 0))


def _shares(block: Moe) -> bool:
    return block.gated and block.shared_ffn > 0


def _named(*things: tuple[str, bool]) -> tuple[str, ...]:
    return tuple(name for name, there in things if there)
