"""Measured runs next to simulated ones: errors by group, tolerances, memory snapshots and logs of real runs.

Input: measured rows (`tests/truth/measured/`, or the user's), a PyTorch memory snapshot, or a training log.
Output: `Validation` (errors of memory and of step time, verdicts, rows without an answer), or `SideBySide` (one run).
Start: `validate.validate` (command `validate`), `side_by_side` (compares one real run; command `read`).

`runs`: measured rows and their scenarios. `layout`: when two jobs have an equal layout. `evidence`: runs and recipes
that are known of a layout. `step_times`: errors of step time. `tolerance`: how large an error may be, and errors on
rows that a fit of constants did not see. Snapshots: `memory_snapshot` (allocations of a PyTorch snapshot),
`stack_frames` (what an allocation is for), `plain_pickle` (reads a pickle without running code). `training_log`: logs
of torchtitan, Megatron-LM and Megatron-Bridge.
"""
