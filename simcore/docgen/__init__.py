"""Documentation pages that are generated from the code and the data, so that they cannot go out of date.

Input: tables of the engine, presets, topology files. Output: Markdown text; tests compare it with the files in
`docs/`.
Start: `glossary.glossary`. Each module is run as `python -m simcore.docgen.<module>`.

`glossary`: `docs/glossary.md`, and the tables of keys inside `docs/scenario.md`. `machines`: `docs/machines.md`.
`models`: `docs/models.md`. `options`: `docs/options.md`.
`support`: `docs/support.md`, by small scenarios (`asking`); `served`: its matrix of models.
`first_scenario`: the file that `init` writes. `editor_schema`: the schema. `listing`: what `rankscope models` and its
likes print. (`docs/columns.md` comes from `tables/tabulate.py`, `docs/sheet.md` from `batch/sheet.py`.)
"""
