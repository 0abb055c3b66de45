"""Measures a machine: times kernels, copies and collectives, fits efficiencies, writes topology files.

The only package that imports PyTorch, and only when a machine is asked for.
Input: `Bench` (machine, stopwatch, sizes of a model's kernels). Output: `Calibration`, and text of an efficiency file,
a topology file and a file of collective curves. Start: `calibrate.calibrate` (command `rankscope calibrate`).

Measured: `products` (GEMM, grouped, fp8), `attention`, `mamba` and `scan` (Mamba-2), `passes` (norm, elementwise,
loss, embedding, optimizer, copy), `copies` (GPU to host), `ranks` (collectives), `host` (time of a launch), `memory`
(CUDA context, allocator). Tools: `machine` (the one door to PyTorch), `sizes`, `stopwatch`, `bench`, `reading`,
`kernels` (readings to values of a file), `fit` (least squares), `write` (files).
"""
