"""Experts that ranks share in transformers 5.23: by their width (`moe_tp_experts`), or whole ones.

Input: rows, weights and numbers of the chosen experts, and the products of a rank's own part. Output: the experts'
rows. Start: `width.by_width`, `exchange.by_exchange`.

`exchange`: rows are sent to the ranks of their experts (`distributed/expert_parallel.py`, AllToAllEP). `width`:
every rank has a part of every expert's columns (`distributed/tensor_parallel.py`, MoeExpertsParallel).
"""
