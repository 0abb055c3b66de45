"""The command line `rankscope`: arguments in, tables and files out, exit codes. It computes nothing itself.

Input: arguments. Output: text on standard output, problems on standard error, files, an exit code.
Start: `app.main`; commands `run`, `place`, `check`, `compare`, `validate`, `schema`, `init` are functions of `app`,
the others have a module: `calibrate`, `explain`, `export`, `read`, `report`, `solve`.

Terminal tables: `first_screen` (verdict, one table, why), `summary` (all columns, one line a scenario), `memory`
(bars), `time` (where time goes), `engine` (vLLM), `phases` (RL), `comparison` (results side by side), `tables`
(placement, advice, validation), `columns` (layout of wide tables). `session`: one command's batch. `output`: where
results go (JSON, pages, figures, CI). `stdio`: streams that are closed, full, or without UTF-8. `exit_codes`: how the
process ends.
"""
