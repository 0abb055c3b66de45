"""Searches the layouts of a scenario: all degrees of the mesh, micro batches, recomputation, memory options.

In: a scenario, a `Space` (the keys that are free, with their values) and an `Objective`. Out: a `SearchResult`
(`results/found.py`): the best layouts in order, the Pareto set, and a count of each reason for which others are not in
it. Start at `search.search`.

    space       candidates: every combination of the free keys, as mappings of dotted keys to values
    meshes      degrees of parallelism whose product is a number of GPUs
    condition   conditions that a user writes, over keys and results
    objective   the quantities to rank by, smaller first, each with its lower bound
    judge       one candidate: refused, too large at rest, or simulated without time; then with time
    search      all candidates on several processes: memory first, then time in the order of proven bounds
    scenarios   the best layouts as scenario files

[Note: pruning is exact]
A candidate is left out only by a proof: the framework refuses it; what rests on a rank is beyond the limit of its
memory; it does not fit; or the kernels of its step alone take longer than the worst layout that is in the answer. So
the answer is that of simulating everything, which a test does (tests/search/test_search.py).
"""
