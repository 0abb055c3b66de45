"""Attention that Automodel writes as torch's operators for families whose layers with a window have other heads.

Input: a tape, a linear by its name, a layer's input, its attention.
Output: what attention puts out, in the input's shape.
Start: `mimo.mimo_attention`, which `implementation` of the package above calls.

Upstream: nemo-automodel 0.7.0 `components/models/mimo_v2_flash/model.py`.
"""
