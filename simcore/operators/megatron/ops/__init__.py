"""Operators that the layers of Megatron-Core share: linears in 16, 8 and 4 bits, norms, activations, recomputation.

Input: a `Context` (tape, workload, parameters of a layer) and `Tensor`s. Output: `Tensor`s; as a side effect rows on
the tape.
Start: `context.Context`, `linear`.

`linear`: fused norm and linear, column, row and whole linears; `grouped_linear`: those of experts; `adapter`: LoRA
around them; `parts`: their pieces that do not depend on the format; `fp8`: the same linears in 8 and 4 bits. `norm`,
`elementwise`: norms, activations, sums, dropout. `recompute`: outputs that are discarded and computed again.
`options`: those of its layers.
"""
