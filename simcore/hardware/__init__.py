"""Machines as data: GPUs, nodes, links, drives, what kernels and collectives reach; a `Topology` comes out."""
