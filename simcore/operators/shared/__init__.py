"""Operators that several implementations call: ATen, DTensor, layer borders, context parallel attention.

Input: a `Tape` and `Tensor`s. Output: `Tensor`s; as a side effect rows on the tape, with FLOPs, bytes and what
autograd saves. Upstream: PyTorch 2.13.
Start: `aten` (each eager operator: output, saved tensors, backward), `layer_borders` (hidden state in, gradient out,
how backward of a layer is run).

`rms_norm`: RMSNorm as transformers writes it. `dtensor`: collectives of tensor parallel plans. `ring_attention`:
PyTorch's context parallelism. `eager_attention`: transformers' un-fused attention; `math_attention`: torch's, where no
kernel takes grouped heads. `compiled_block`: a dense block under torch.compile, of `compiled_kernels`. `mamba_scan`:
mamba_ssm's fused Mamba-2. `features`: what a layer needs beyond plain blocks; what is not served is refused.
`pairs`: losses of preferences. `plain_tensors`, `mpt_tensors`: parameters that implementations register alike.
"""
