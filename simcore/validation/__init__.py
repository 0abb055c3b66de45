"""Measured runs next to simulated ones: errors by group, tolerances, memory snapshots, logs and errors of real runs.

Input: measured rows (`tests/truth/measured/`, or the user's), a memory snapshot or trace of PyTorch, a log, or the text
of an out-of-memory error. Output: `Validation` (errors of memory and of step time, verdicts, rows without an
answer), or `SideBySide` (one run). Start: `validate.validate` (command `validate`); `beside_snapshot`, `beside_trace`,
`beside_log` and `beside_failure` (compare one real run; command `read`).

`runs`: measured rows and their scenarios. `layout`: when two jobs have an equal layout. `evidence`: runs and recipes
that are known of a layout. `step_times`: errors of step time. `left_out`: those by fits of constants that had not seen
a row; `noise`: how far runs of one configuration are apart; `tolerance`: how large an error may be. `gaps`: rows that
are not compared; `as_published`: rows that did not run as their configuration says. `side_by_side`: values of a
comparison of one run. Snapshots: `memory_snapshot` (allocations), `stack_frames` (what an allocation is for),
`plain_pickle` (reads a pickle without running code). Traces: `kernel_trace`. `logs`: readers of training logs, one
module a format. `out_of_memory`: readers of errors.
"""
