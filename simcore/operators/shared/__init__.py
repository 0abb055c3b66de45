"""Operators and kernels that more than one implementation calls: ATen, DTensor, ring attention, layer borders."""
