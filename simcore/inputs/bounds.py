"""The largest values that a file may ask for, each far above what anybody has published, and the work of a scenario.

They keep a slip of a key, or a hostile file, from taking the machine: within them any answer or refusal comes in
seconds and in less than a GiB. What is published, and by how much a limit passes it, stands beside each.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = [
    "ADVISED_LOADS",
    "ADVISED_ROWS",
    "BATCH",
    "BLOCK",
    "CONFIG",
    "DEGREE",
    "FACTOR",
    "GENERATIONS",
    "KINDS",
    "LAYERS",
    "LORA_RANK",
    "MAX_LINE",
    "MAX_RESULTS",
    "PROMPTS",
    "QUANTITIES",
    "RANKS",
    "ROWS",
    "SEQUENCES",
    "SEQ_LEN",
    "SHARED",
    "STAGES",
    "TOKENS",
    "most_of",
]  # fmt: skip

# ---- files -----------------------------------------------------------------------------------------------------------
MAX_LINE: Final = 2**26
"""Bytes of one line where a file is read by lines."""
MAX_RESULTS: Final = 2**32
"""Bytes of a file of results as lines: one has 10 to 20 KB, and a sweep 100,000 of them (`sweep.MAX_MEMBERS`)."""

# ---- a scenario ------------------------------------------------------------------------------------------------------
RANKS: Final = 2**22
"""World size. Clusters of 100,000 to 200,000 GPUs have been announced (xAI Colossus, 2024 and 2025): 20 times that."""
DEGREE: Final = 2**20
"""Of one axis, nodes, GPUs of a node, and engines: the widest groups are data parallel, see `RANKS`."""
STAGES: Final = 2**10
"""Of a pipeline. A model of 1,008 billion parameters was run on 64 (Narayanan et al., 2021)."""
LAYERS: Final = 10_000
"""DeepNet has 1,000 (Wang et al., 2022), the deepest published language model 162 (Llama-3.1-Nemotron-Ultra-253B)."""
SEQ_LEN: Final = 2**22
"""Tokens of a sequence. Trained were up to a million; UltraLong-8B was extended to these four (Xu et al., 2025)."""
TOKENS: Final = 2**26
"""Of one microbatch, or one forward pass of an engine: 16 of the longest sequences."""
BATCH: Final = 2**24
"""Sequences of a step. BERT was trained with 65,536 (You et al., 2019) and with 2 million (Anil et al., 2021)."""
PROMPTS: Final = 2**20
"""Of one step of reinforcement learning: recipes have 64 to 8,192."""
GENERATIONS: Final = 2**16
"""For one prompt: recipes have 8 to 64, studies of sampling up to 10,000 (Brown et al., 2024)."""
SEQUENCES: Final = 2**20
"""That an engine runs at once: vLLM's own limits are 256 to 1,024."""
LORA_RANK: Final = 2**16
"""Recipes have 8 to 256."""
BLOCK: Final = 2**16
"""Values that share a scale: bitsandbytes has 32 to 4,096."""
FACTOR: Final = 2**14
"""Of an expert's load or capacity over the mean: no more than there are experts, see `CONFIG`."""

# ---- a model's configuration ---------------------------------------------------------------------------------------
_WIDTH: Final = 2**18
"""MT-NLG 530B has a hidden size of 20,480 (Smith et al., 2022)."""
_FFN: Final = 2**20
"""MT-NLG 530B: 81,920."""
_HEADS: Final = 2**12
"""MT-NLG 530B and DeepSeek-V3 have 128 of attention, Nemotron-H-56B 256 of Mamba."""
_HEAD_DIM: Final = 2**13
"""Gemma 3 has 256; with latent attention DeepSeek-V3's heads have 192, its ranks 512 and 1,536."""
_EXPERTS: Final = 2**15
"""Switch-C has 2,048 (Fedus et al., 2021)."""
_POSITIONS: Final = 2**27
"""Llama 4 Scout has 10 million."""
_STATE: Final = 2**12
"""Of Mamba: 128, codestral 128, Falcon-H1 256."""
_FEW: Final = 2**7
"""Widths of convolutions and factors of expansion: 4 and 2 in every published Mamba; predicted tokens: 1 to 4."""

_FIELDS: Final[tuple[tuple[int, tuple[str, ...]], ...]] = (
    (LAYERS, ("num_hidden_layers", "n_layer", "n_layers", "first_k_dense_replace", "moe_layer_freq", "num_mem_blocks",
             "decoder_sparse_step", "sliding_window_pattern")),
    (_WIDTH, ("hidden_size", "n_embd", "d_model", "moe_latent_size")),
    (_FFN, ("intermediate_size", "moe_intermediate_size", "shared_intermediate_size", "n_inner",
           "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")),
    (_HEADS, ("num_attention_heads", "num_key_value_heads", "num_query_groups", "n_head", "n_heads", "num_heads",
             "mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "n_groups", "mamba_ngroups", "mamba_n_groups")),
    (_HEAD_DIM, ("head_dim", "attention_head_dim", "v_head_dim", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim",
                "qk_pos_emb_head_dim", "mamba_head_dim", "mamba_d_head", "chunk_size", "mamba_chunk_size")),
    (2**16, ("q_lora_rank", "kv_lora_rank", "adapter_rank")),
    (_EXPERTS, ("num_experts", "n_routed_experts", "num_local_experts", "num_experts_per_tok", "n_shared_experts",
               "n_group", "topk_group")),
    (_STATE, ("state_size", "ssm_state_size", "mamba_d_state")),
    (_FEW, ("conv_kernel", "mamba_d_conv", "expand", "mamba_expand", "expansion_ratio", "mtp_num_layers",
           "num_nextn_predict_layers")),
    (_POSITIONS, ("max_position_embeddings", "n_positions", "max_seq_len", "sliding_window")),
    (2**24, ("vocab_size",)),  # XLM-V has 901,629 (Liang et al., 2023), Gemma 3 262,208
)
CONFIG: Final[Mapping[str, int]] = MappingProxyType(
    {name: most for most, names in _FIELDS for name in names})
"""By the name of a field of a `config.json`."""
OTHERS: Final = 2**16
"""Of a field that no family has yet."""
SHARED: Final = 2**8
"""Layers that use shared ones, with adapters of their own: Zamba2-7B has 13."""
KINDS: Final = 512
"""Layers that differ, each of which is described by itself: Llama-3.1-Nemotron-Ultra-253B has some forty."""

# ---- a topology ----------------------------------------------------------------------------------------------------
QUANTITIES: Final[Mapping[str, tuple[float, float]]] = MappingProxyType({
    "B": (1, 1e18),  # memory: a rack has 40 TB, a drive 100 TB
    "B/s": (1e6, 1e18),  # from a drive to Cerebras' WSE-3, 21 PB/s
    "FLOP/s": (1e6, 1e21),  # WSE-3: 125 PFLOP/s
    "s": (0, 3600),
    "%": (1e-6, 1),
    "GPU": (1, 2**13),  # NVL576 joins 576
    "SM": (1, 2**16),  # MI300X has 304 compute units
    "W": (1e-3, 1e6),  # WSE-3: 23 kW
    "USD/h": (1e-9, 1e6),
})
"""Least and most of a quantity, by its unit."""

# ---- work ----------------------------------------------------------------------------------------------------------
ROWS: Final = 4_000_000
"""Rows of all programs of a step, as they are written out at first: about 200 bytes and two microseconds each.

A step of Llama 3.1 405B on 16 stages of 8 virtual ones has 1.5 million, one of 64 stages of two 6 million.
"""
ADVISED_ROWS: Final = 300_000
"""Of a step for which changes are tried, which takes dozens of simulations."""
ADVISED_LOADS: Final = 2**21
"""Of such a step with routing drawn at random: draws times ranks, a tenth of a microsecond each in every simulation."""


def most_of(field: str) -> int:
    """The largest value of a field of a `config.json`."""
    return CONFIG.get(field, OTHERS)
