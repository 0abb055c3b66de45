"""Scenario files: YAML within bounds, closed blocks with their mistakes, sweeps, `--set`; a `Scenario` comes out."""
