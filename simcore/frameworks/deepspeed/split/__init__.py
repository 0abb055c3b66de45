"""Splits of transformers' layers over ranks beside ZeRO's parts: sequences, and matrices.

Input: a `Job` and its framework options. Output: refusals with upstream's rules, axes, and how tensors are cut.
Start: `sequences.check_shared`, `matrices.check_matrices`.

`sequences`: ranks share sequences by DeepSpeed's class (Ulysses, `sp_size` of accelerate).
`matrices`: ranks share linears by DeepSpeed's AutoTP (`tensor_parallel.autotp_size`).
"""
