"""Layers of transformers' DeepSeek-V4: attention over compressed keys, residual streams that are mixed, its experts.

Input: a kind of layer of the family `deepseek_v4`. Output: its parameters and buffers, in the order in which
transformers 5.23 registers them (its modeling_deepseek_v4.py).

Start: `tensors.layer_tensors`, and `tensors.end_tensors` for the norm behind the layers. The names are those of the
checkpoints that transformers writes.
"""
