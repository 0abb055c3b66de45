"""Options that several commands share: which results are shown, where the work is done; wrong options.

Input: what the user typed. Output: a `Choice`, or an `Elsewhere`. Start: `choose.asked_choice`, `elsewhere.elsewhere`.

`choose`: `--sort`, `--fits`, `--columns`.
`elsewhere`: `--on`, `--shard`, `--from`.
`usage`: a wrong option is one line, what was expected and what came.
"""
