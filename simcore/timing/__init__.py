"""From programs to time: kernels, collectives, host and streams, and where the time of a step goes.

Input: a `Program` a class of ranks, and a `Topology`. Output: `StepLength` and `StepTiming` (nanoseconds), from
them `StepTime` of a report.
Start: `step.time_step`: costs every row, runs the timeline, extrapolates to all microbatches; `step.with_reasons`:
where the time goes.

One operation: `kernel` (duration of a kernel from FLOPs, bytes and efficiencies), `kernel_efficiency` (tiles and waves
of a matrix product, exponentials of small heads), `collective` (duration of a collective: measured table or model),
`host_launch` (host time of a launch). All together: `program_kernels` (all of a program, less what `exchanges` hides),
`dependencies` (what waits for what: `ExecutionGraph`), `streams` (a program as streams with lengths), `routes` (link of
each communicator), `timeline` (all classes on their streams and links, in simpy).
Results: `breakdown` (parts that add up to the step), `waits` (exposed and hidden time of calls), `traffic`
(bytes sent), `least_time` (lower bounds without a timeline), `throughput` (tokens/s, TFLOP/s, MFU, cost), `spans`
(streams for pictures). Efficiencies: `hardware/`.
"""
