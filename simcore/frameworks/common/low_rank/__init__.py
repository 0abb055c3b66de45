"""GaLore and APOLLO: optimizers that keep moments of gradients projected to a low rank.

Input: the scenario's optimizer and the model's tensors. Output: which weights are projected, shapes and bytes of their
states, and which frameworks refuse it. Start: `rules.py`; `projection.py` has the shapes. The step's memory is in
`frameworks/common/steps/low_rank.py`.
"""
