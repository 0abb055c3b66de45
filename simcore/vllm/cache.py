"""The KV cache of a rank: pages of one size for attention and Mamba layers, blocks, how many sequences they hold.

[Note: pages]
vLLM 0.12.0. A page holds one layer's keys and values of `block_size` tokens, or one sequence's whole Mamba state
(`v1/kv_cache_interface.py` FullAttentionSpec, MambaSpec). All pages have one size, so of a hybrid the block grows until
a page of attention holds a state, in steps of 16 tokens, and the state is padded to that page
(`model_executor/models/config.py` HybridAttentionMambaModelConfig, without prefix caching, its default for hybrids).
Layers form groups of equal number, the least of any kind (or the most, where that is less than 1.25 times as many);
layers of a group share a block table, groups share memory, and a block is a page of each layer of a group
(`v1/core/kv_cache_utils.py` _get_kv_cache_groups_uniform_page_size, get_kv_cache_config_from_groups). The state of a
sequence is one block in each of Mamba's groups, whatever its length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.models.architecture import Architecture
from simcore.models.blocks import Attention, Mamba2
from simcore.units import dtype_bytes
from simcore.vllm.weights import kv_heads, layers_of

__all__ = ["Cache", "Formats", "Pages", "pages"]

_ALIGNED: Final = 16
"""Tokens of a block where nobody asks for more: FlashAttention takes multiples of it."""


@dataclass(frozen=True, slots=True)
class Formats:
    """Dtypes of keys and values, of the convolution's state, and of the recurrent state."""

    kv: str
    conv: str
    ssm: str


@dataclass(frozen=True, slots=True)
class Pages:
    """Bytes of a rank. `token_bytes`: keys and values of one token in one layer; `state_bytes`: of one Mamba layer.

    `group_size`: layers that a block has a page for. A sequence needs blocks in `attention_groups` by its length, and
    one in each of `mamba_groups`.
    """

    token_bytes: int
    state_bytes: int
    attention_layers: int
    mamba_layers: int
    block_size: int
    page_bytes: int
    group_size: int
    attention_groups: int
    mamba_groups: int

    @property
    def block_bytes(self) -> int:
        """Of one block: a page for each layer of a group."""
        return self.page_bytes * self.group_size

    def blocks_of(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens takes."""
        return self.attention_groups * -(-tokens // self.block_size) + self.mamba_groups

    def needed(self, tokens: int) -> int:
        """Bytes that one sequence of so many tokens asks for (`check_enough_kv_cache_memory`: no groups)."""
        return self.page_bytes * (self.attention_layers * -(-tokens // self.block_size) + self.mamba_layers)

    def longest(self, num_bytes: int) -> int:
        """Tokens of the longest single sequence that is let in (`estimate_max_model_len`)."""
        left = num_bytes // self.page_bytes - self.mamba_layers
        return max(0, left) // self.attention_layers * self.block_size

    def fill(self, num_bytes: int) -> Cache:
        """The cache that fits into `num_bytes`."""
        return Cache(self, max(0, num_bytes // self.page_bytes // self.group_size))


@dataclass(frozen=True, slots=True)
class Cache:
    """Blocks of these pages."""

    pages: Pages
    num_blocks: int

    @property
    def num_bytes(self) -> int:
        """What is allocated."""
        return self.num_blocks * self.pages.block_bytes

    @property
    def tokens(self) -> int:
        """"GPU KV cache size", as the engine logs it: blocks by groups, by the tokens of a block."""
        return self.num_blocks // (self.pages.attention_groups + self.pages.mamba_groups) * self.pages.block_size

    def concurrency(self, tokens: int) -> float:
        """Sequences of so many tokens that the cache holds ("Maximum concurrency")."""
        return self.num_blocks / self.pages.blocks_of(tokens)


def pages(architecture: Architecture, tp: int, formats: Formats) -> Pages:
    """Pages of a model on a rank; the model has attention layers that are alike."""
    blocks = [branch.block for _, kind in layers_of(architecture) for branch in kind.branches]
    attention = [block for block in blocks if isinstance(block, Attention)]
    mamba = [block for block in blocks if isinstance(block, Mamba2)]
    token = 2 * kv_heads(attention[0], tp) * attention[0].head_dim * dtype_bytes(formats.kv)
    state = _state(mamba[0], tp, formats) if mamba else 0
    block_size = _ALIGNED * max(1, -(-state // (_ALIGNED * token)))
    size = _group_size([len(layers) for layers in (attention, mamba) if layers])
    return Pages(token, state, len(attention), len(mamba), block_size, block_size * token, size,
                 -(-len(attention) // size), -(-len(mamba) // size))


def _state(block: Mamba2, tp: int, formats: Formats) -> int:
    """Of one sequence in one layer: the last inputs of the convolution, and a matrix a head.

    `mamba/mamba_utils.py` mamba2_state_shape; one group that tp does not divide is given to every rank.
    """
    groups = block.num_groups if block.num_groups % tp == 0 else tp
    conv = (block.conv_kernel - 1) * (block.inner + 2 * groups * block.state) // tp
    recurrent = block.num_heads // tp * block.head_dim * block.state
    return conv * dtype_bytes(formats.conv) + recurrent * dtype_bytes(formats.ssm)


def _group_size(counts: list[int]) -> int:
    """Layers of a group; [Note: pages]."""
    fewest, most = min(counts), max(counts)
    return most if most < fewest * 1.25 else fewest
