"""Calls of transformers' modules, in order, as the hooks see them that ZeRO puts on every module.

Input: a `Plan`. Output: of each layer the calls in forward and in backward, with what each gathers and releases.
Start: `order` (a layer's calls, its replay, the order of gradients). `units`: linears with adapters, containers,
leaves, blocks. `block_order`: what families call in another order. `models`: what is around the layers. `tower_order`:
towers.
"""
