"""Largest values that a file may ask for, each far above any published one, and bounds on the work of a scenario.

They keep a typing error, or a hostile file, from exhausting the machine: within them any answer or refusal takes
seconds and less than a GiB of memory, near `ALL_ROWS` up to a minute and 2 GiB. Each limit is documented with the
published value that it exceeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = [
    "ADVISED_LOADS",
    "ADVISED_RANKS",
    "ADVISED_ROWS",
    "BATCH",
    "BLOCK",
    "CONFIG",
    "DEGREE",
    "EPOCHS",
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
    "STEPS_AHEAD",
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
"""Size of one axis; number of nodes, GPUs of a node, engines: the widest groups are data parallel, see `RANKS`."""
STAGES: Final = 2**10
"""Stages of a pipeline. A model of 1,008 billion parameters was run on 64 (Narayanan et al., 2021)."""
LAYERS: Final = 10_000
"""DeepNet has 1,000 (Wang et al., 2022), the deepest published language model 162 (Llama-3.1-Nemotron-Ultra-253B)."""
SEQ_LEN: Final = 2**24
"""Tokens of a sequence. Llama 8B was trained with 15 million over 32 GPUs (ALST, Bekman et al., 2025, 2506.13996). What
64 bits cannot count, as the FLOPs of a 405B's attention on one GPU, is refused (`program/lower.py`)."""
TOKENS: Final = 2**26
"""Tokens of one microbatch, or of one forward pass of an engine: 4 of the longest sequences."""
BATCH: Final = 2**24
"""Sequences of a step. BERT was trained with 65,536 (You et al., 2019) and with 2 million (Anil et al., 2021)."""
EPOCHS: Final = 2**16
"""Passes over a data set. transformers' Trainer makes 3 by default; DeiT was trained for 1,000 (Touvron, 2021)."""
PROMPTS: Final = 2**20
"""Prompts of one step of reinforcement learning: recipes have 64 to 8,192."""
GENERATIONS: Final = 2**16
"""Generations for one prompt: recipes have 8 to 64, studies of sampling up to 10,000 (Brown et al., 2024)."""
STEPS_AHEAD: Final = 2**10
"""Steps that engines may be ahead of a policy: recipes have 1 to 8."""
SEQUENCES: Final = 2**20
"""Sequences that an engine runs at once: vLLM's limits are 256 to 1,024."""
LORA_RANK: Final = 2**16
"""Rank of LoRA adapters. Recipes have 8 to 256."""
BLOCK: Final = 2**16
"""Quantized values that share a scale: bitsandbytes has 32 to 4,096."""
FACTOR: Final = 2**14
"""Load or capacity of an expert over the mean: at most the number of experts, see `CONFIG`."""

# ---- a model's configuration ---------------------------------------------------------------------------------------
_WIDTH: Final = 2**18
"""Hidden size: MT-NLG 530B has 20,480 (Smith et al., 2022)."""
_FFN: Final = 2**20
"""Width of feed-forward layers: MT-NLG 530B has 81,920."""
_HEADS: Final = 2**12
"""Heads: MT-NLG 530B and DeepSeek-V3 have 128 of attention, Nemotron-H-56B 256 of Mamba."""
_HEAD_DIM: Final = 2**13
"""Size of a head: Gemma 3 has 256; with latent attention DeepSeek-V3's heads have 192, its ranks 512 and 1,536."""
_EXPERTS: Final = 2**15
"""Experts: Switch-C has 2,048 (Fedus et al., 2021)."""
_POSITIONS: Final = 2**27
"""Positions: Llama 4 Scout has 10 million."""
_STATE: Final = 2**12
"""State size of Mamba: 128, codestral 128, Falcon-H1 256."""
IMAGE: Final = 2**13
"""Pixels of an image's side: Gemma 3 has 896, Qwen 2.5 VL up to 12.8 million in all."""
_FEW: Final = 2**7
"""Widths of convolutions and factors of expansion: 4 and 2 in every published Mamba; predicted tokens: 1 to 4."""

_FIELDS: Final[tuple[tuple[int, tuple[str, ...]], ...]] = (
    (LAYERS, ("num_hidden_layers", "n_layer", "n_layers", "first_k_dense_replace", "moe_layer_freq", "num_mem_blocks",
             "decoder_sparse_step", "sliding_window_pattern", "full_attention_interval", "depth",
             "linear_attention_freq", "num_kv_shared_layers", "interleave_moe_layer_step", "no_rope_layer_interval",
             "num_hash_layers", "index_topk_freq", "index_skip_topk_offset", "hc_sinkhorn_iters")),
    (_WIDTH, ("hidden_size", "n_embd", "d_model", "moe_latent_size", "out_hidden_size", "vision_hidden_size",
              "vit_hidden_size", "projection_hidden_size", "projector_hidden_size", "subsampling_conv_channels",
              "hidden_size_per_layer_input", "output_proj_dims", "embed_dim")),
    (_FFN, ("intermediate_size", "intermediate_size_mlp", "moe_intermediate_size", "shared_intermediate_size",
           "n_inner", "mamba_d_ssm", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
           "share_expert_dim", "share_expert_dims")),
    (_HEADS, ("num_attention_heads", "num_key_value_heads", "num_query_groups", "n_head", "n_heads", "num_heads",
             "mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "n_groups", "mamba_ngroups", "mamba_n_groups",
             "linear_num_key_heads", "linear_num_value_heads", "num_global_key_value_heads", "index_n_heads",
             "swa_num_attention_heads", "swa_num_key_value_heads", "num_attention_groups", "o_groups")),
    (_HEAD_DIM, ("head_dim", "attention_head_dim", "v_head_dim", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim",
                "qk_pos_emb_head_dim", "mamba_head_dim", "mamba_d_head", "chunk_size", "mamba_chunk_size",
                "rotary_dim", "linear_key_head_dim", "linear_value_head_dim", "global_head_dim", "index_head_dim",
                "swa_head_dim", "swa_v_head_dim")),
    (2**16, ("q_lora_rank", "kv_lora_rank", "o_lora_rank", "adapter_rank")),
    (_EXPERTS, ("num_experts", "n_routed_experts", "num_local_experts", "num_experts_per_tok", "n_shared_experts",
               "num_shared_experts", "top_k_experts", "moe_num_experts", "moe_top_k", "n_group", "topk_group")),
    (_STATE, ("state_size", "ssm_state_size", "mamba_d_state")),
    (_FEW, ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "expand", "mamba_expand", "expansion_ratio",
           "mtp_num_layers", "num_nextn_predict_layers", "hc_mult")),
    (_POSITIONS, ("max_position_embeddings", "n_positions", "max_seq_len", "sliding_window", "index_topk",
                "attention_chunk_size", "floor_scale")),
    (IMAGE, ("image_size", "patch_size", "spatial_patch_size", "window_size", "max_img_size")),
    (_FEW, ("mlp_ratio", "num_channels", "in_channels", "in_chans", "temporal_patch_size", "spatial_merge_size",
            "video_temporal_patch_size", "pooling_kernel_size", "conv_kernel_size", "subsampling_factor",
            "num_cls_tokens", "num_registers")),
    (2**16, ("mm_tokens_per_image", "num_position_embeddings", "position_embedding_size",
             "vision_soft_tokens_per_image", "num_mel_bins", "init_pos_emb_height", "init_pos_emb_width")),
    (2**24, ("vocab_size", "vocab_size_per_layer_input")),  # XLM-V has 901,629 (Liang et al., 2023), Gemma 3 262,208
)
CONFIG: Final[Mapping[str, int]] = MappingProxyType(
    {name: most for most, names in _FIELDS for name in names})
"""Largest value by the name of a field of a `config.json`."""
OTHERS: Final = 2**16
"""Largest value of a field that no model family has yet."""
SHARED: Final = 2**8
"""Layers that use a shared block, each with its adapters: Zamba2-7B has 13."""
KINDS: Final = 512
"""Kinds of layers, each described separately: Llama-3.1-Nemotron-Ultra-253B has some forty."""

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
"""(smallest, largest) value of a quantity, by its unit."""

# ---- work ----------------------------------------------------------------------------------------------------------
ROWS: Final = 4_500_000
"""Rows of a step's program on one class of ranks, as it is first lowered: about 200 bytes and two microseconds each.

More microbatches are written out, until they take the same time, while all classes together have no more. A step of
Llama 3.1 405B on 16 stages of 8 virtual ones has 1.5 million rows, one of 64 stages of two 6 million.
"""
ALL_ROWS: Final = 16_000_000
"""Rows of all classes of ranks: their programs are made one by one, and are put together from the same parts.

A step of Kimi K2 on 16 stages of two, whose ranks dist_muon gives different parameters, has 10 million on 96 classes in
16 bits, 15 million in 8, which take 10 seconds and a GiB.
"""
ADVISED_ROWS: Final = 300_000
"""Rows of a step for which advice tries changes, which takes dozens of simulations."""
ADVISED_LOADS: Final = 2**23
"""Loads that random routing draws (draws times ranks, microbatches and layers with experts) for which advice tries
changes; each takes about 16 ns in every simulation."""
ADVISED_RANKS: Final = 2**17
"""Ranks of a job for which advice tries changes; folding each takes about 16 microseconds in every simulation."""


def most_of(field: str) -> int:
    """Largest accepted value of an integer field of a `config.json` named `field`; `OTHERS` for an unknown name."""
    return CONFIG.get(field, OTHERS)
