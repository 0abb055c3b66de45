"""Gradients that ZeRO-1 and 2 keep where autograd has made them, and updates that Muon makes of them.

Input: gradients by parameter, as layers make them; groups of parameters.
Output: their frees, when they are reduced; memory events of the updates.
Start: `uncontiguous.UnbucketedGradients`, `orthogonal.OrthogonalUpdates`.

Hooks of stages 1 and 2 ask the first where `contiguous_gradients` is off, the second with Muon.
"""
