"""Splits of transformers' layers over ranks beside FSDP2's shards: sequences, and matrices.

Input: a `Job` and its framework options. Output: refusals with upstream's rules, and settings of layers.
Start: `rings.check_context`, `matrices.HF_TRAINER`.

`rings`: sequences that ranks share by torch's ring attention, as accelerate has it (`context_parallel`).
`ulysses`: by verl's exchanges around flash-attn, which `frameworks/fsdp1` uses too. Which of both runs follows
from `attn_implementation`: accelerate's ring takes torch's SDPA alone, verl patches flash-attn.
`matrices`: transformers' own plans of tensor parallelism, `mixtures`: those of experts. `torchtitan` and
`kempnerforge` (one folder up) have splits of their own.
"""
