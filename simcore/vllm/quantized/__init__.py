"""Quantised weights of vLLM: which tensors a linear layer has, as created and as held after repacking.

Input: a `Linear` of a rank, the scenario's `generation.quantization`, the model's `quantization_config`. Output:
`Tensor`s. Start: `recipe.of_checkpoint`, `recipe.online`.

`linears`: linear layers of a block as tensor parallelism cuts them. `tensor`: name, shape and format of one tensor, and
what a method of quantisation answers. `fp8`, `integers`, `nvfp4`, `four_bit`: methods. `skipped`: layers that stay in
16 bits. `recipe`: from a configuration to a method. `loading`: the peak while weights are quantised on the device.
"""
