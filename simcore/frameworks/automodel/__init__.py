"""NeMo Automodel 0.7.0: FSDP2 over a dense mesh, experts over a separate mesh (ep_shard x ep).

Input: a `Job`. Output: a `Framework` with an `Fsdp2Strategy` and `Unit`s; the hooks are those of `frameworks/fsdp2`.
Start: `table.table`; its [Note: Automodel's two paths] says how wrapping depends on expert parallelism.

`units`: what is wrapped by `fully_shard`, at ep = 1 and ep > 1. `pipeline`: stages, their buffers, returned outputs.
`checks`: refusals, each with its rule. `lora`: modules that its matcher adapts, and the adapters' tensors.
`families`: for which of them it runs its own models (`operators/automodel`), and for which those of transformers
(`operators/hf`).
Upstream: `nemo_automodel/components/distributed/`, `components/moe/parallelizer.py`, `components/_peft/`.
"""
