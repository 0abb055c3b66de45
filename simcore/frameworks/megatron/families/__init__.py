"""Rules of single families under Megatron-Core and Megatron-Bridge.

Input: a job, the framework options that its scenario sets, and the chunks of the model that a rank has.
Output: its refusal by upstream's rule, or what the family's layers have of their own: attention, defaults.
Start: `exaone.check_exaone` (EXAONE 4, K-EXAONE) and `glm5.check_chosen` (GLM-5), which the table of Megatron calls.

A family has a module here where Bridge builds its layers by code of its own.
"""
