"""Search of the best layouts of a scenario: all degrees of the mesh, micro batches, recomputation, memory options.

Input: a scenario, a `Space` (free keys with their values) and `Objective`s. Output: a `SearchResult`
(`results/found.py`): the best layouts, the Pareto set, and a count of each reason for which others are in neither.
Start: `search.search`.

`space`: every combination of the free keys, `meshes`: degrees whose product is a number of GPUs, `condition`: what
users write over keys and results. `judge`: one candidate, without time and with it; `known`: answers on layouts that
were met before; `objective`: what to rank by.
`scenarios`: the best layouts as scenario files; `answers`: earlier searches, read again; `watch`: what runs, shown.

A layout is left out only by a proof: the framework refuses it; what rests on a rank is beyond the limit of its memory;
it does not fit; or the compute stream, the host or a link alone takes longer than the answer needs
(`simulation/bounds.py`).
"""
