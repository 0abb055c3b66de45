"""Vision towers under Megatron-Core: Megatron-Bridge's Qwen3VLVisionModel, with TransformerEngine's layers.

Input: a part of a tower (`models/placed_blocks.py`) and the workload of a microbatch, with its number of images.
Output: tensors of the part, or its recording, trained or frozen.

Start: `parts.record_part`. The tower lies on the first pipeline stage (and chunk), cut over tp like the decoder's
layers, but without sequence parallelism, in 16 bits whatever the decoder computes in, and whole on every cp rank.

`tensors`: parameters in registration order. `tower`: patches, layers, mergers. `end`: the last merger, and its tokens
in the embedded sequence. `features`: what is added behind layers of the decoder.
Sources: Megatron-Bridge 067f987d models/qwen_vl/modelling_qwen3_vl, Megatron-LM d98e8a64 core/models/vision.
"""
