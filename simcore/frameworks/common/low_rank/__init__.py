"""GaLore and APOLLO: optimizers that keep moments of gradients projected to a low rank.

Input: the scenario's optimizer and the model's tensors. Output: rules for weights that are projected, the assumptions
of such a step, and errors for frameworks that stop at it.

Start: `rules.py`: which weights, with which states; then `refusals.py`. Shapes of projected gradients and the memory of
a step are in `frameworks/common/steps`.
"""
