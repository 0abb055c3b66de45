"""Rules that several frameworks share: trainers, precision, LoRA, QLoRA, optimizers, checkpoint files.

Input: a `Job` and checked options, or a `Plan`. Output: parts of a framework's table, or rows written for its hooks.
Start: `torch` (defaults, how `torch.optim` places the states of `inputs/optimizers.py`, checkpointing of whole layers),
`trainer.Trainer` (what the trainer around an implementation sets, refuses and cuts).

`transformers`, `llmfoundry`: those of these layers, and what is served of them. `autocast`: mixed precision by
autocast. `kernels`: attention backend and compilation. `compiled_layers`: layers compiled one by one. `liger`: Liger's
kernels. `lora`: adapters by module name. `qlora`: which weights bitsandbytes 0.50.2 or torchao packs. `pipeline`:
stages and schedules of `torch.distributed.pipelining`. `checkpoint_files`: how each reads and writes checkpoints.
`optimizer_memory`: tensors at rest, temporaries of the optimizer's step. `cpu_optimizer`: optimizer steps on the host.
`te_offload`: activations there.
"""
