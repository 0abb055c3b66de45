"""Rules of single families under Megatron-Core and Megatron-Bridge.

Input: a job. Output: its refusal, or what its layers have of their own.
Start: `exaone.check_exaone`.
"""
