"""Places where work is computed: this process, worker processes of this machine, a cluster of Dask or Ray.

Input: tasks, and a function that answers one; both can be pickled. Output: (index, answer) of each task as they come.
Start: `driver.answers`.

`executor`: the protocol (submit a chunk, take results, cancel) and what a chunk can come to. `driver` cuts chunks of
about a second, holds few of them at a time, and gives tasks of a lost worker out again. `processes`, `dask_cluster`,
`ray_cluster`: executors; `places`: the executor that a user names. `shard`: the part of a job array. `interrupts`:
Ctrl-C and SIGTERM. `engine`: digest of the code, the same in every worker.

Answers do not depend on the place: no task depends on where it runs, and the caller orders answers by index.
"""
