"""Many scenarios: batches, folders of results that survive a kill, gates for CI, advice.

Input: `Entry`s of `inputs/loading.py`. Output: `Outcome`s (report and exit code), files of results, `Finding`s.
Start: `run.run_batch`.

Comparing: `compared` (files, names, settings), `like` (a scenario with the defaults of another), `measured` (runs).

Searching: `advice` (changes that make a scenario fit; `changes` has what is tried), `solve` (limit of one quantity),
`machines` (smallest GPU of a list), `decides` (what decides a verdict), `sheet` (`docs/sheet.md`). Folder of `run -o`:
`folder` (opened, continued, refused), `unfinished` (results under way), `manifest` (which batches are in it),
`fingerprint` (when two batches are the same), `lock`, `kept` (results that stay on the disk), `rows` (their data set).
Gates: `gate` (`--max-fill`, `--baseline`; output for GitHub and JUnit).
"""
