"""The machine as data: GPUs, nodes, links, drives, and which share of their peak kernels and collectives reach.

Input: YAML files of `topologies/`, or the user's own. Output: a `Topology` (nodes, links, prices) with its `Device`
(memory, peak FLOP/s by format), its `Efficiency` and its `Curves`. Each number has a unit, a kind and a source.
Start: `topology.load_topology`.

`topology`: cluster, node, fabric, host link, bandwidths. `device`: one GPU. `efficiency`: efficiencies of kernel
classes (GEMM, attention, norm, ...), host time a kernel, contention and exposed communication, from
`topologies/efficiency/`. `collective_curves`: measured times of NCCL collectives, from `topologies/nccl/`.
`node_spread`: how many nodes the groups of a mesh axis span. `nvme`: drives, and which tensors DeepSpeed swaps to
them. How long something takes on this machine is computed in `timing/`.
"""
