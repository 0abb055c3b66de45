"""Measuring a machine's kernels into an efficiency file: the only part that runs PyTorch."""
