"""Decoders whose attention and MLP stand beside each other, each behind a norm of its own.

Input: `Config` of such a model.
Output: `Architecture`, with a kind of layer that has both.
Start: `gpt_neox.FAMILY` (GPT-NeoX, Pythia), which `models/registry.py` names.

Upstream: transformers 5.23 gpt_neox.
"""
