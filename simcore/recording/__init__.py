"""Records one layer on a tape: storages, kernels and collectives in the order in which PyTorch issues them.

Input: a function of `operators/`, written like eager model code over `Tensor`s that have a shape and no values.
Output: a `RecordedLayer`: sections (forward, backward, ...) of integer rows, each an allocation, a free, a kernel, a
collective or a mark; nothing has a time yet.
Start: `tape.Tape`; its docstring explains why reference counts of Python objects are the lifetimes of tensors.

`layer`: input of an implementation (`LayerWorkload`, with `options`) and its output (`RecordedLayer`). `rows`: the
columns of a row, kinds of operations (`Op`), kernel classes (`Kernel`), streams, storages. `checkpoint`: activation
checkpointing (regions that run again in backward). `split_backward`: backward in two halves, for zero-bubble schedules.
`number_formats`: 4-bit and int8 weights of bitsandbytes and torchao; fp8, mxfp8, NVFP4 recipes and their scales.
`kernel_shape`: shapes of matrix products packed into a column. `host_operators`: host time of Python code, counted in
operators of torch, a row a call. `exact_sums`: sums that may pass 64 bits. `undisturbed`: recordings that threads which
look at others' frames have not changed. `host_copies`, `offload_groups`: saved tensors that wait on the host.
"""
