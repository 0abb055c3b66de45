"""Gemma's decoders, one `model_type` after the other: a GELU MLP, a scaled embedding, from Gemma 2 on sliding windows.

Input: `Config` of a text model (`gemma`, `gemma2`, `gemma3_text`, `gemma4_text`), or the text part of one that reads
images (`models/vision`). Output: `Architecture`.
Start: `earlier.FAMILY` (Gemma, Gemma 2 and 3), `gemma4.FAMILY`.

Upstream: transformers 5.23, its models `gemma`, `gemma2`, `gemma3` and `gemma4`.
"""
