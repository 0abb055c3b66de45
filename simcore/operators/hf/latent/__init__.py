"""Latent attention in transformers 5.23 (`modeling_{deepseek_v2,deepseek_v3,mistral4,glm4_moe_lite}.py`).

Input: a block, its input, rotary tables, and functions for its linears, norms and kernel. Output: records on the tape.
Start: `attention.latent_attention`, which `families` calls.

Queries, and keys with values, pass a low rank; the rotated part of a key is one for all heads, and is copied into each.
"""
