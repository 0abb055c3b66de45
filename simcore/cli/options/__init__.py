"""Options that several commands share: which results are shown, and where the work is done.

Input: what the user typed. Output: a `Choice`, or an `Elsewhere`. Start: `choose.asked_choice`, `elsewhere.elsewhere`.

`choose`: `--sort`, `--fits`, `--columns`.
`elsewhere`: `--on`, `--shard`, `--from`.
"""
