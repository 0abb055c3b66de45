"""Frameworks: one package each, with its table of rules, its refusals, and its memory hooks around the layers.

Input: a `Scenario`, from which `setup.prepare` makes a `Job`. Output: a `Framework` (how each tensor is cut, stored
and updated; units; options with their defaults) and `MemoryHooks` (what is gathered, reduced and freed at each
border).
Start: `setup.prepare` (scenario to job and table), `registry.framework_adapter` (a framework's `FrameworkAdapter`: its
table, hooks, versions, options, what it serves). In a package: `ADAPTERS` of `<package>/adapter.py`.

`fsdp2`: PyTorch `fully_shard` and HSDP. `fsdp1`: FullyShardedDataParallel. `ddp`: DistributedDataParallel.
`deepspeed`: ZeRO-1, 2, 3. `megatron`: Megatron-Core and Bridge. `megatron_fsdp`: Megatron-FSDP. `automodel`: NeMo
Automodel. `common`: what several of them share. `trl_releases`: what releases of TRL do otherwise in GRPO. What layers
themselves allocate is in `operators/`; the vocabulary of a table is in `placement/framework.py`.
"""
