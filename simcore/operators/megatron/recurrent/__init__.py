"""Mixers of Megatron-Core with a recurrent state: Mamba-2 and the gated delta net.

Input: a `Context` (tape, workload, parameters of a layer), the block of the mixer, the residual stream. Output: the
mixer's output, local to the rank; as a side effect rows on the tape.
Start: `mamba`, `delta_net`.

`mamba`: Mamba-2 with its context parallelism; `delta_net`: the gated delta net of core 0.16.1 and of main, whose rule
is that of `operators/shared/delta_rule.py`; `convolutions`: the causal convolutions that it calls.
"""
