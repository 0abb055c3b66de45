"""Shapes of Nemotron-3-Nano-30B-A3B."""

PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"

NANO = dict(
    vocab_size=131072,
    hidden_size=2688,
    num_attention_heads=32,
    num_key_value_heads=2,
    head_dim=128,
    intermediate_size=1856,
    moe_intermediate_size=1856,
    moe_shared_expert_intermediate_size=3712,
    n_routed_experts=128,
    n_shared_experts=1,
    num_experts_per_tok=6,
    n_group=1,
    topk_group=1,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    mamba_num_heads=64,
    mamba_head_dim=64,
    ssm_state_size=128,
    n_groups=8,
    conv_kernel=4,
    chunk_size=128,
    tie_word_embeddings=False,
)
