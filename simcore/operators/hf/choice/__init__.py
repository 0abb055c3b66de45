"""The choice of experts out of their scores, operator for operator as transformers' routers make it.

Input: a tape, the block, scores or logits of rows [tokens, experts].
Output: weights and indices of the chosen experts, each [tokens, top_k].
Start: `grouped.chosen_in_groups` (DeepSeek-V3's and its kin), `at_once.chosen_at_once` (MiniMax-M2's).

Logits are made in `operators/hf/moe.py`.
"""
