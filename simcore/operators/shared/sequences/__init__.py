"""Attention over sequences that ranks share by exchanges of heads for tokens (Ulysses), as its users have written it.

Input: query, key and value of a rank's tokens, [b, s / ranks, heads, d], and a function of attention over all tokens of
a part of the heads. Output: attention of the rank's tokens, in query's shape; exchanges and copies on the tape.
Start: `verl.over_ranks` (verl's patch of flash-attention), `deepspeed.over_shared` (DeepSpeed's class for transformers,
which accelerate registers).
Ring attention, which sends keys and values around, is `simcore/operators/shared/ring_attention.py`.
"""
