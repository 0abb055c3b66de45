"""Losses of preferences under FSDP2: the reference model as one unit, and a head that is read where it is not gathered.

Input: a job whose loss is of preferences, the graph of policy and reference.
Output: the reference's unit, the type in which it rests, refusals. Start: `reference.reference_unit`.

`reference`: the unit, which the hooks of `fsdp2/hooks.py` gather for each pass; `rules`: what is refused, and heads
that a trainer reads by itself.
"""
