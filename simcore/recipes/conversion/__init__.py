"""A scenario on its way into a recipe, whatever the format: written, read back, compared; or patched into a user's.

Input: a scenario, the name of a format, and perhaps a recipe of the user's. Output: `Converted`.
Start: `converting.convert`.

`writing`: writes by the format, reads back, and refuses what differs. `patching`: the least change of a user's recipe;
`script_patching`: of a launch script, whose arguments `script_text` finds and changes.
"""
