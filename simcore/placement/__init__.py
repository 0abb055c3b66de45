"""Placement of tensors: mesh, layouts, the record of a framework, the plan of a rank, ranks folded into classes.

Input: a `ModelGraph`, a `Mesh` and a `Framework` (the table that a module of `frameworks/` returns for a `Job`).
Output: a `Plan` a rank (each tensor in elements and bytes: parameters, gradients, optimizer states), `RankClass`es.
Start: `plan.place`, `fold.fold`. The fields of a framework's table: `framework.Framework`.

`capabilities`: settings that a framework serves for all of its jobs. `job`: a scenario with its graph and mesh, the
argument of every table. `mesh`: axes as digits of the rank. `layout`: `TensorLayout` of a tensor (shard, flat,
replicate, partial; dtype; device or host). `framework`: `TensorPolicy`, rules, units. `strategy`: what the engine asks
of a framework's `ParallelStrategy`. `libraries`: those whose kernels run. `checkpoint_files`: how a framework reads and
writes checkpoints (`simulation/hosts.py` counts it); `export_files`: what waits for a whole file. `afterwards`:
evaluation, merges and exports. `stages`: layers of a pipeline stage. `packing`: packed sequences. `token_dispatch`:
rows that experts receive, and copies of a token that cross ranks. `optimizer_step`: the optimizer's step of one
parameter. `moved_modules`: modules whose saved tensors wait on the host.
"""
