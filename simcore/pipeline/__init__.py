"""Pipeline schedules: the order in which a pipeline stage runs forward and backward passes of microbatches.

Input: a `Schedule` (name, number of stages, of chunks a rank), a stage, a number of microbatches.
Output: a tuple of `Action` (forward or backward of a microbatch through a chunk). No layers, bytes or times.
Start: `schedule.actions`; `schedule.SCHEDULES` maps a name to the module that orders it.

One schedule a module, each with a function `order`: `gpipe`, `one_f_one_b` (1F1B), `interleaved` (Megatron's virtual
stages), `looped` (PyTorch's interleaved 1F1B), `zero_bubble` (backward split into input and weight gradients), `zbv`
(ZB-V). `schedule.lowered_microbatches` says how many microbatches are simulated one by one, and
`schedule.steady_microbatches` which of them stand for the others. Which layers a stage holds is not decided here: see
`placement/stages.py` and each framework's own rule.
"""
