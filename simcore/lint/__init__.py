"""Faults of recipes and scenarios that can be told before they run: rules, each with its source and two examples.

Input: the files of recipes or scenarios, and answers as for `recipes`. Output: `Linted` for each, with its findings
and with what could not be judged. Start: `linting.lint`.

`linting`: asks every rule. `opening`: files to subjects, with assumed answers where a recipe leaves something open.
`subject`: a recipe or scenario as rules see it, and what the engine says of it. `rule`: the seam: a code, a severity,
the source, two examples (lines of `examples`), and a function. `finding`: what a rule says. `registry`: all rules, in
the order of `page`, which makes `docs/lint.md`.

Rules, each a function: `keys` (twice, misspelt, gone, text instead of a number), `layout` (processes, degrees,
batches), `adapters` (modules that get them), `methods` (settings of adapters and packed bases), `options` (settings
without effect, by the table `without_effect`), `training` (packing, lengths, formats, recomputing). `upstream`: names
of upstream's keys. `all_problems`: every problem of a file at once, for `run` and `check`.
"""
