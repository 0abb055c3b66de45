"""Blocks of DeepSeek-V4: indexers of keys, attention over compressed keys, and residual streams that are mixed.

DeepSeek-V3.2's and GLM-5's attention has an indexer too.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CompressedAttention", "Indexer", "Streams"]


@dataclass(frozen=True, slots=True)
class Indexer:
    """Scores of every query and key by `num_heads` small heads of size `head_dim`; attention sees the `top_k` best.

    `shared`: later layers take the choice of an earlier one; `borrows`: so does this, and has no scores. `hadamard`: a
    Hadamard matrix turns them, and the mask is one of truth values (DeepSeek-V3.2). `interleaves`: neighbouring
    dimensions are rotated together, not those of two halves. `listed`: the configuration says of each layer whether it
    borrows, other than a number of layers between those that do not.
    """

    num_heads: int
    head_dim: int
    top_k: int
    shared: bool = False
    borrows: bool = False
    hadamard: bool = False
    interleaves: bool = False
    listed: bool = False


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention whose heads share one key, which is the value too, of the last `window` tokens and of older ones.

    The query passes a rank `q_rank`. `rope`: dimensions of a head that are rotated. `every`: tokens of which one
    compressed key is made, 0 for none; `overlaps`: it is made of those of two such windows. `indexer`: chooses
    compressed keys. The output is projected in `groups` of heads to `group_rank` columns each, and all together then.
    """

    hidden: int
    num_heads: int
    head_dim: int
    rope: int
    q_rank: int
    window: int
    groups: int
    group_rank: int
    every: int = 0
    overlaps: bool = False
    indexer: Indexer | None = None

    @property
    def q_size(self) -> int:
        """Elements of all query heads of a token."""
        return self.num_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Elements of a token that a group of heads projects."""
        return self.q_size // self.groups


@dataclass(frozen=True, slots=True)
class Streams:
    """Residual streams of a layer: `count` of them, mixed by weights that each token's streams give.

    Before a block they are summed to one by weights, behind it the output is added to each, and they are mixed by a
    matrix whose rows and columns are made to add up to one in `rounds` (manifold-constrained hyper-connections).
    """

    count: int
    rounds: int
