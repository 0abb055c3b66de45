"""Puts the parts of a simulation together: the report, and what random draws, hosts and details add to it.

Input: `Simulation` (job, framework, classes, plans, programs, timing), filled in step by step.
Output: a `Report`.
Start: `step.training_step` (a `Request` to a report), `simulation.placed_simulation` (everything up to plans),
`report.report` (each number gets its published name, the verdict is made: fits or out of memory), `report.guarded` (a
refusal becomes a report), `assumptions`.

`random_routing`: peaks of all draws of expert loads; `expert_loads` draws them; `interpolate` (`PiecewiseLinearStep`)
gives a step's bytes at any number of rows without simulating it again. `random_lengths`: padded lengths drawn from a
distribution. `hosts`: counts host memory while a model is read, trained and written. `afterwards`: phases that a
scenario asks for: `evaluation`, and `conversion` (merges and exports); `moved_bytes`: least durations of what moves the
model. `paging`: optimizer states in unified memory. `device_memory`: what a rank needs at its peak; `step_memory`: the
verdict without a report, for a search; `bounds`: least memory and time. `step_length`: refuses steps that are too long
to write out. `detail`: what pictures need. `explanation`: from a number to its formula and rule.
"""
