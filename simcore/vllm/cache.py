"""The KV cache of a rank: pages of one size for attention and Mamba layers, blocks, and the sequences that fit.

[Note: pages]
vLLM 0.12.0 and 0.25.1. A page holds one layer's keys and values of `block_size` tokens, or one Mamba state
(`v1/kv_cache_interface.py` FullAttentionSpec, MambaSpec). All pages have one size, so the block of a hybrid grows
until a page of attention holds a state, in steps of 16 tokens, and the state is padded to that page (0.12.0
`model_executor/models/config.py` HybridAttentionMambaModelConfig, 0.25.1 `platforms/interface.py`). Layers form groups
of equal number, the least of any kind (or the most, where that is not many more); layers of a group share a block
table, groups share memory, and a block is a page of each layer of a group (`v1/core/kv_cache_utils.py`
_get_kv_cache_groups_uniform_page_size, get_kv_cache_config_from_groups). A sequence has one state in each of Mamba's
groups, whatever its length. With prefix caching, which is off for hybrids unless asked for, it has two, or one for
every block; then blocks are also whole chunks of Mamba's scan. Layers with a sliding window (0.25.1
`v1/kv_cache_interface.py` SlidingWindowSpec) are of a kind of their own: a sequence has blocks there for the window
before a pass and the tokens of the longest pass, and one more, where it does not begin with a block.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Final

from simcore.models.blocks import Attention, GatedDeltaNet, LatentAttention, Mamba2
from simcore.models.config import Architecture
from simcore.units import dtype_bytes
from simcore.vllm.drafter import Drafter
from simcore.vllm.quantized.linears import kv_heads
from simcore.vllm.release import Release, States
from simcore.vllm.weights import layers_of

__all__ = ["Cache", "Formats", "Pages", "pages"]

_MOST: Final = 2**24
"""Tokens beyond those of any sequence."""
_ALIGNED: Final = 16
"""Tokens of a block by default: FlashAttention takes multiples of it."""


@dataclass(frozen=True, slots=True)
class Formats:
    """Dtypes of the cache, such as "bf16": of keys and values, of Mamba's convolution and recurrent state."""

    kv: str
    conv: str
    ssm: str


@dataclass(frozen=True, slots=True)
class Pages:
    """Layout of a rank's KV cache: sizes of pages and blocks, and how many a sequence takes.

    See [Note: pages]. `token_bytes`: bytes of keys and values of one token in one attention layer; `state_bytes`: of
    one state of a sequence in one Mamba layer; `attention_layers`, `mamba_layers`: their numbers. `block_size`: tokens
    of a block; `page_bytes`: bytes of one layer's page; `group_size`: layers that a block has a page for. In each of
    `attention_groups` a sequence takes a block for every `block_size` tokens; in each of `mamba_groups` 1 ("one"), 2
    ("last") or as many as of attention ("every"), as `states` says. `by_group`: True if vLLM counts the need of a
    sequence in blocks, False if in pages of layers. `drafted`: tokens of speculative decoding, each with a state more.
    `windows`: layers that see `window` tokens alone, in `window_groups`; `longest_pass`: tokens of one pass.
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
    states: States = "one"
    by_group: bool = False
    drafted: int = 0
    windows: int = 0
    window_groups: int = 0
    window: int = 0
    longest_pass: int = 0

    @property
    def groups(self) -> int:
        """Number of groups of layers."""
        return self.attention_groups + self.mamba_groups + self.window_groups

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: one page for each of the `group_size` layers."""
        return self.page_bytes * self.group_size

    def blocks_of(self, tokens: int) -> int:
        """Number of blocks that a sequence of `tokens` tokens takes; one of 0 tokens as many as one of 1."""
        each, fixed = self._pages(self.attention_groups, self.mamba_groups)
        seen = self.window_groups * self._seen(max(1, tokens))
        return each * -(-max(1, tokens) // self.block_size) + fixed + seen

    def _seen(self, tokens: int) -> int:
        """Blocks of a sequence of `tokens` tokens in a group of layers with a window."""
        return -(-min(self.window - 1 + self.longest_pass, tokens) // self.block_size) + 1

    def read(self, context: int, layers: int) -> int:
        """Bytes of keys and values that one token reads: in `layers` of the context, in those with a window of that."""
        return self.token_bytes * (layers * context + self.windows * min(context, self.window))

    def _pages(self, attention: int, mamba: int) -> tuple[int, int]:
        """(pages for each block of tokens, pages for each sequence) of these numbers of layers or groups."""
        more = self.drafted * mamba
        return {"one": (attention, mamba + more), "last": (attention, 2 * mamba + more),
                "every": (attention + mamba, more)}[self.states]

    def _counted(self) -> tuple[int, int]:
        """(pages for each block of tokens, pages for each sequence), as the engine counts them."""
        if not self.by_group:
            return self._pages(self.attention_layers, self.mamba_layers)
        each, fixed = self._pages(self.attention_groups, self.mamba_groups)
        return each * self.group_size, fixed * self.group_size

    def needed(self, tokens: int) -> int:
        """Bytes that vLLM demands at start for a sequence of `tokens` tokens (`check_enough_kv_cache_memory`)."""
        each, fixed = self._counted()
        seen = self.window_groups * self.group_size * self._seen(tokens) if self.windows else 0
        return self.page_bytes * (each * -(-tokens // self.block_size) + fixed + seen)

    def longest(self, num_bytes: int) -> int:
        """Tokens of the longest sequence that vLLM admits with `num_bytes` of cache; 0 if none.

        As `estimate_max_model_len`.
        """
        if self.windows:
            return max(0, bisect.bisect_right(range(1, _MOST + 1), num_bytes, key=self.needed))
        each, fixed = self._counted()
        return max(0, num_bytes // self.page_bytes - fixed) // each * self.block_size

    def fill(self, num_bytes: int) -> Cache:
        """Cache of as many whole blocks as fit into `num_bytes`."""
        return Cache(self, max(0, num_bytes // self.page_bytes // self.group_size))


@dataclass(frozen=True, slots=True)
class Cache:
    """KV cache of one rank: `num_blocks` blocks of the layout `pages`."""

    pages: Pages
    num_blocks: int

    @property
    def num_bytes(self) -> int:
        """Bytes that all blocks take."""
        return self.num_blocks * self.pages.block_bytes

    def tokens(self, longest: int) -> int:
        """Tokens that the cache holds, as the engine logs them ("GPU KV cache size").

        `longest`: tokens of the longest sequence, by which newer versions count.
        """
        if self.pages.by_group:
            return int(self.concurrency(longest) * longest)
        return self.num_blocks // self.pages.groups * self.pages.block_size

    def concurrency(self, tokens: int) -> float:
        """Number of sequences of `tokens` tokens that the cache holds ("Maximum concurrency")."""
        return self.num_blocks / self.pages.blocks_of(tokens)


def pages(architecture: Architecture, tp: int, formats: Formats, release: Release, *, cached: bool = False,
          mode: str = "auto", drafter: Drafter | None = None, longest_pass: int = 0,
          block: int = _ALIGNED) -> Pages:
    """Layout of the KV cache of a model on one of `tp` ranks; the model needs attention layers, all of equal widths.

    `formats`: dtypes of the cache; `release`: vLLM's version; `cached`: with prefix caching, whose states of Mamba are
    those of `mode` (`Release.states`). `drafter`: that of speculative decoding, whose layers are like the model's.
    `longest_pass`: tokens of one pass, which layers with a window make room for. `block`: tokens
    of a block of attention, where no state makes it larger.
    """
    blocks = [branch.block for _, kind in layers_of(architecture) for branch in kind.branches]
    attention = [block for block in blocks if isinstance(block, Attention | LatentAttention)]
    mamba = [block for block in blocks if isinstance(block, GatedDeltaNet | Mamba2)]
    token = _elements(attention[0], tp) * dtype_bytes(formats.kv)
    drafted, layers = (drafter.tokens, drafter.attention_layers) if drafter else (0, 0)
    chunk = mamba[0].chunk if mamba and isinstance(mamba[0], Mamba2) else 1
    state = _state(mamba[0], tp, formats, drafted) if mamba else 0
    states = release.states(architecture.family, mode, cached=cached)
    step = math.lcm(block, chunk) if states == "every" else block
    block_size = step * max(1, -(-state // (step * token)))
    seen = [block.window for block in attention if isinstance(block, Attention) and block.window]
    attending = len(attention) - len(seen) + layers
    size = _group_size([count for count in (attending, len(mamba), len(seen)) if count], release.padded_below)
    return Pages(token, state, attending, len(mamba), block_size, block_size * token, size,
                 -(-attending // size), -(-len(mamba) // size), states, release.by_group, drafted, len(seen),
                 -(-len(seen) // size), max(seen, default=0), longest_pass)


def _elements(block: Attention | LatentAttention, tp: int) -> int:
    """Elements of a token in one layer: keys and values, or what latent attention makes them of, on every rank.

    0.25.1 `v1/kv_cache_interface.py` MLAAttentionSpec: one head, without a second tensor.
    """
    if isinstance(block, LatentAttention):
        return block.kv_rank + block.rope
    return 2 * kv_heads(block, tp) * block.head_dim


def _state(block: GatedDeltaNet | Mamba2, tp: int, formats: Formats, drafted: int) -> int:
    """Bytes of one sequence in one Mamba layer: the last inputs of the convolution, and a matrix a head.

    `drafted`: tokens of speculative decoding, as many inputs more. `mamba/mamba_utils.py` mamba2_state_shape, where a
    single group is replicated on every rank, and gated_delta_net_state_shape.
    """
    if isinstance(block, GatedDeltaNet):
        conv = (block.conv_kernel - 1 + drafted) * block.conv_dim // tp
        recurrent = block.num_value_heads // tp * block.value_dim * block.key_dim
        return conv * dtype_bytes(formats.conv) + recurrent * dtype_bytes(formats.ssm)
    groups = block.num_groups if block.num_groups % tp == 0 else tp
    conv = (block.conv_kernel - 1 + drafted) * (block.inner + 2 * groups * block.state) // tp
    recurrent = block.num_heads // tp * block.head_dim * block.state
    return conv * dtype_bytes(formats.conv) + recurrent * dtype_bytes(formats.ssm)


def _group_size(counts: list[int], padded_below: float) -> int:
    """Number of layers of a group; [Note: pages]."""
    fewest, most = min(counts), max(counts)
    return most if most < fewest * padded_below else fewest
