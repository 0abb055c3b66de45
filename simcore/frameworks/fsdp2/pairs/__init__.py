"""Losses of preferences under FSDP2: the reference model as one unit, and a head that is read where it is not gathered.

Input: a job whose loss is of preferences. Output: the reference's unit, the hooks of its passes, refusals.
Start: `reference.reference_unit`; `rules.check_pairs`.
"""
