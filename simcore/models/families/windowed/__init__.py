"""Families whose layers with a window have attention of other sizes than whole layers.

Input: `Config` of a text model.
Output: `Architecture`, with kinds of layers by their attention and by dense or sparse MLP.
Start: `step.FAMILY` (Step 3.5 Flash), which `models/registry.py` names.

Upstream: nemo-automodel 0.7.0 `components/models/step3p5`.
"""
