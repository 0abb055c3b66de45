"""Layers of transformers whose attention and MLP stand beside each other, and attention of GPT-NeoX.

Input: a tape, a stream, and the functions of `hf/families.py` for norms, linears and attention.
Output: tensors, recorded on the tape.
Start: `layer.both` (a layer), `gpt_neox.attention`.

Upstream: transformers 5.23 phi, cohere2, gpt_neox.
"""
