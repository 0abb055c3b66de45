"""Mixers of transformers' Qwen3-Next and Qwen3.5: the gated delta net, and attention with a gate.

Input: a tape, a layer's workload and branch, its input. Output: the mixer's output, in the input's shape; as a side
effect rows on the tape. Start: `delta_net.delta_net`.

Three of four layers have the delta net (linear attention over chunks of tokens), the fourth has attention; what stands
around them is that of other families.
"""
