"""Programs: everything that a class of ranks does in one step, in the order its host issues it, without times.

Input: a `Plan`, a `Workload` (sizes of a microbatch), the pipeline's actions, and the framework's hooks.
Output: a `Program`: rows (allocation, free, kernel, collective) as an array, and the names that they refer to.
Start: `lower.lower`, the walk over microbatches and layers that calls the hooks at each border.

`hooks`: the protocol `MemoryHooks` that every framework implements. `record_layers`: records each kind of layer of a
rank. `layer_passes`: one kind, cut where hooks run inside, shared by all ranks that have it. `tile`: a recorded section
as an array, laid at every layer of the kind (`LayerRows`). `outline`: a step without its layers' rows, shared between
scenarios (`StepTemplate`). `builder`: appends rows for the hooks. `repeated_passes`: copies passes that a step repeats.
`shared_steps`: steps of plans that differ in sizes alone, walked once; `traced`: numbers that note how they are
computed. `offloaded_layers`: saved tensors that wait on the host. `reference_pass`: that of a reference model inside a
loss of preferences. `program`: the result.
Pipeline stages: `stage_borders` (inputs and outputs of a pass), `stage_inputs` (received tensors kept by Megatron),
`stage_buffers` (receive buffers of PyTorch). `row_cache`: the cache by bytes.
"""
