"""Parameters of the parts of vision towers, as transformers 5.23 and NeMo Automodel 0.7.0 register them.

Input: a part of a tower (`models/vision_blocks.py`). Output: its tensors in registration order, with names relative to
the part; no operator and no parallelism.

Start: `towers.tower_tensors`, which knows every part. `towers` has those of SigLIP, Qwen and Pixtral themselves,
`class_token` those of CLIP and InternVL, `pooled` Gemma 4's, `radio` RADIO's and Parakeet's; `linears` what all of them
are made of: weights, linears and norms.
"""
