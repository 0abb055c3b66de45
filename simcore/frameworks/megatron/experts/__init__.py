"""Options of Megatron-Core's experts that change how their kernels run and where their tensors wait.

Input: a job and the framework options that its scenario sets.
Output: the options of layers for static buffers and the paged stash, assumptions about them, or the error of the first
rule that is broken.
Start: `stash`, capacity of a rank and pages of activations; what they are is told in `operators/megatron/stash.py`.

`kernels`: TransformerEngine's operation fuser, and a shared expert beside the exchange of tokens.
"""
