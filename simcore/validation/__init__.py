"""Measured runs beside simulated ones: errors by group, tolerances, memory snapshots and training logs read back."""
