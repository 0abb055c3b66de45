"""Layers of NeMo Automodel's DeepSeek-V4: attention over compressed keys, residual streams that are mixed, its experts.

Input: a kind of layer of the family `deepseek_v4`, its workload. Output: its parameters and buffers, and what each of
its operators allocates, as nemo-automodel 0.7.0 `components/models/deepseek_v4` runs them.

Start: `layer.compressed_layer`, and `tensors.layer_tensors`. `streams`: the mixing of residual streams; `attention`:
heads that share a key; `compressor`: compressed keys and their choice; `rotation`; `kernels`: TileLang's; `pieces`:
operators that are written into parts of a tensor.
"""
