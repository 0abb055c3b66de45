"""Gradients that ZeRO-1 and 2 keep where autograd has made them.

Input: gradients by parameter, as layers make them.
Output: their frees, when they are reduced.
Start: `uncontiguous.UnbucketedGradients`.

Hooks of stages 1 and 2 ask it where `contiguous_gradients` is off.
"""
