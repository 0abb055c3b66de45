"""Matrices that ranks share in layers of other frameworks than torch's DTensor.

Input: a `Tape`, a `LayerWorkload` with `tp` ranks, and parameters of which each rank has a part. Output: tensors of the
tape, with the collectives over tp that make them whole, in forward and backward.
Start: `autotp.column`.

`autotp`: linears of DeepSpeed's AutoTP, whose sums are made in place. DTensor's own are in
`operators/shared/dtensor.py`, Megatron's in `operators/megatron`. `plans`: families by transformers' plan.
"""
