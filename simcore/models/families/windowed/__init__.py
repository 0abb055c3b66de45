"""Families whose layers with a window have other attention than whole layers: sizes, or rotation.

Input: `Config` of a text model.
Output: `Architecture`, with kinds of layers by their attention and by dense or sparse MLP.
Start: `step.FAMILY` (Step 3.5 Flash), `exaone.FAMILY` (EXAONE 4, K-EXAONE), which `models/registry.py` names.

Upstream: nemo-automodel 0.7.0 `components/models/step3p5`; transformers 5.23 exaone4, exaone_moe.
"""
