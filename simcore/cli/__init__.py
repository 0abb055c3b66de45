"""The command line `rankscope`: arguments in, tables and files out, exit codes. It computes nothing itself.

Input: arguments. Output: text on standard output, problems on standard error, files, an exit code.
Start: `app.main`; commands `run`, `place`, `check`, `compare`, `validate`, `schema`, `init` are functions of `app`,
the others have a module: `calibrate`, `convert`, `explain`, `export`, `lint`, `lists` (`models` and its likes), `read`,
`report`, `search`, `solve`, `verify`; `studio` has its own in `simcore/studio/`.

`options`: options that commands share; wrong ones, a line each. `sheets`: tables of a terminal. `session`: one
command's batch. `output`: where results go (JSON, pages, figures, CI). `stdio`: streams that are closed, full, or
without UTF-8. `exit_codes`: how the process ends.
"""
