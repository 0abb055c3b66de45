"""Rules by subject; each module has its rules as `RULES`, and a rule is one function.

Input: a subject, that is a recipe or a scenario with what the engine says of it. Output: what is wrong, where, and
what to write instead. Start: `files`.

`files`: keys that are written twice, misspelt, gone, or text instead of a number. `layout`: processes, degrees and
batches. `adapters`: modules that get adapters, by the layers of the model. `methods`: settings of adapters and packed
bases. `options`: settings without effect, by a table (`without_effect`). `training`: packing, lengths, formats,
recomputing.
"""
