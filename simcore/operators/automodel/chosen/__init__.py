"""Keys that an indexer chooses, and attention that reads them alone: kernels around which NeMo Automodel writes layers.

Input: a tape, the products of an indexer or of attention, sizes. Output: indices, or what attention makes of values.
Start: `kernels.scored_keys`, `kernels.sparse_attention`, which `latent` of the package above calls.

Layers of GLM-5 run them on packed sequences. The dense way, with a mask of all pairs of positions, is in `latent`; what
indexers compute for it is in `operators/shared/indexer.py`.
"""
