"""Linear layers of a block on a rank of vLLM: how tensor parallelism cuts them, and which matrices are merged.

vLLM 0.12.0: `model_executor/layers/linear.py` (column and row parallel, QKVParallelLinear with KV heads replicated),
`layers/fused_moe/layer.py`, `layers/mamba/mamba_mixer2.py`. `parts` are what `create_weights` gets as
output_partition_sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from simcore.models.blocks import Attention, Branch, GatedDeltaNet, LatentAttention, Mamba2, Mlp, Moe

__all__ = ["Linear", "conv_rows", "kv_heads", "linears"]


@dataclass(frozen=True, slots=True)
class Linear:
    """Shard of one linear layer on a rank: `inputs` x the sum of `parts` elements, `copies` times (one an expert).

    `name`: vLLM's, such as "qkv_proj". `parts`: columns of each matrix that is merged in it; `full`: inputs before tp
    splits them; `ranks`: number of ranks that share it, 1 for one that is whole on each. `slices`: matrices that share
    the input where adapters are made, 3 for a qkv projection.
    """

    name: str
    inputs: int
    parts: tuple[int, ...]
    full: int
    ranks: int = 1
    slices: int = 1
    copies: int = 1

    @property
    def outputs(self) -> int:
        """Columns of all merged matrices."""
        return sum(self.parts)

    @property
    def numel(self) -> int:
        """Elements of all copies."""
        return self.copies * self.inputs * self.outputs

    @property
    def is_experts(self) -> bool:
        """True for a matrix of routed experts, whose copies are one tensor."""
        return self.name in ("w13", "w2")

    @property
    def is_ungated(self) -> bool:
        """True for the first matrix of routed experts that have no gate (Nemotron-H)."""
        return self.name == "w13" and len(self.parts) == 1


def kv_heads(block: Attention, tp: int) -> int:
    """Number of key and value heads on each rank; at least one: heads fewer than `tp` are replicated.

    As `get_num_kv_heads`.
    """
    return max(1, block.num_kv_heads // tp)


def linears(branch: Branch, tp: int) -> list[Linear]:
    """Shards of a block's linear layers on one rank, Mamba's convolution included, without the router."""
    return list(_LINEARS[type(branch.block)](branch.block, tp))


def _of_attention(block: Attention, tp: int) -> Iterator[Linear]:
    kv = kv_heads(block, tp) * block.head_dim
    query = block.q_size // tp * (1 + block.gated)  # with the output's gate (0.25.1 `models/qwen3_next.py`:260)
    yield Linear("qkv_proj", block.hidden, (query, kv, kv), block.hidden, tp, slices=3)
    yield Linear("o_proj", block.q_size // tp, (block.hidden,), block.q_size, tp)


def _of_latent_attention(block: LatentAttention, tp: int) -> Iterator[Linear]:
    """Projections down are whole on each rank (0.25.1 `models/deepseek_v2.py` DeepseekV2MLAAttention)."""
    down = block.kv_rank + block.rope
    if block.q_rank:
        yield Linear("fused_qkv_a_proj", block.hidden, (block.q_rank, down), block.hidden)
        yield Linear("q_b_proj", block.q_rank, (block.q_size // tp,), block.q_rank, tp)
    else:
        yield Linear("kv_a_proj_with_mqa", block.hidden, (down,), block.hidden)
        yield Linear("q_proj", block.hidden, (block.q_size // tp,), block.hidden, tp)
    yield Linear("kv_b_proj", block.kv_rank, (block.kv_size // tp,), block.kv_rank, tp)
    yield Linear("o_proj", block.out_size // tp, (block.hidden,), block.out_size, tp)


def _groups(block: Mamba2, tp: int) -> int:
    """Groups of all ranks: a single group that tp does not divide is replicated on every rank."""
    return block.num_groups if block.num_groups % tp == 0 else tp


def conv_rows(block: Mamba2, tp: int) -> int:
    """Channels of a rank's convolution."""
    return (block.inner + 2 * _groups(block, tp) * block.state) // tp


def _of_mamba(block: Mamba2, tp: int) -> Iterator[Linear]:
    inner, heads, rows = block.inner // tp, block.num_heads // tp, conv_rows(block, tp)
    states = (rows - inner) // 2
    yield Linear("conv1d", block.conv_kernel, (rows,), block.conv_kernel, tp)
    merged = (inner, inner, states, states, heads) if block.num_groups % tp == 0 else (inner + rows + heads,)
    yield Linear("in_proj", block.hidden, merged, block.hidden, tp)
    yield Linear("out_proj", inner, (block.hidden,), block.inner, tp)


def _of_delta(block: GatedDeltaNet, tp: int) -> Iterator[Linear]:
    """0.25.1 `layers/mamba/gdn/qwen_gdn_linear_attn.py`: query, key, value and gate; learning rate and decay."""
    keys, values, heads = block.keys // tp, block.values // tp, block.num_value_heads // tp
    yield Linear("conv1d", block.conv_kernel, (block.conv_dim // tp,), block.conv_kernel, tp)
    yield Linear("in_proj_qkvz", block.hidden, (keys, keys, values, values), block.hidden, tp)
    yield Linear("in_proj_ba", block.hidden, (heads, heads), block.hidden, tp)
    yield Linear("out_proj", values, (block.hidden,), block.values, tp)


def _of_mlp(block: Mlp, tp: int) -> Iterator[Linear]:
    yield from _feed_forward(block.hidden, block.ffn, tp, gated=block.gated)


def _of_moe(block: Moe, tp: int) -> Iterator[Linear]:
    """Experts behind a latent projection have two linears more, whole on each rank (0.25.1 `models/nemotron_h.py`)."""
    ffn, width = block.expert_ffn // tp, block.expert_hidden
    first = (ffn,) * (1 + block.gated)
    yield Linear("w13", width, first, width, tp, slices=len(first), copies=block.num_experts)
    yield Linear("w2", ffn, (width,), block.expert_ffn, tp, copies=block.num_experts)
    if block.latent:
        yield Linear("fc1_latent_proj", block.hidden, (width,), block.hidden)
        yield Linear("fc2_latent_proj", width, (block.hidden,), width)
    if block.shared_ffn:
        yield from _feed_forward(block.hidden, block.shared_ffn, tp, gated=block.gated)


def _feed_forward(hidden: int, ffn: int, tp: int, *, gated: bool) -> Iterator[Linear]:
    first = (ffn // tp,) * (1 + gated)
    yield Linear("gate_up_proj" if gated else "up_proj", hidden, first, hidden, tp, slices=len(first))
    yield Linear("down_proj", ffn // tp, (hidden,), ffn, tp)


_LINEARS: Final[dict[type, Callable[[Any, int], Iterator[Linear]]]] = {
    Attention: _of_attention, LatentAttention: _of_latent_attention, Mamba2: _of_mamba,
    GatedDeltaNet: _of_delta, Mlp: _of_mlp, Moe: _of_moe}
