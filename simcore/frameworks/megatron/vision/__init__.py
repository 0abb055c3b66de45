"""Models with a vision tower under Megatron-Core: what is refused, and what is assumed.

Input: a job whose model has a tower, and its framework options. Output: the error of the first rule that it breaks, and
lines about what the simulation leaves out.

Start: `rules.check_tower`, called by the framework's table before it places tensors. The tower is Megatron-Bridge's
Qwen3VLVisionModel, of the main branch of 2026-08-22; its layers are recorded by `operators/megatron/vision`.
"""
