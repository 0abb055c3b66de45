"""Recordings of one layer: storages, kernels and collectives in the order in which an implementation issues them."""
