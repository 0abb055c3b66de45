"""Reads what a person writes: scenario files, sweeps, `--set` overrides, and the checks on all of them.

Input: paths of YAML or JSON files, overrides as text. Output: `Scenario` values, frozen, in which every value knows
its file and line; a problem with the input is an `InputError` that lists all problems at once.
Start: `loading.read` (many paths, one `Entry` each) and `loading.load` (one path, or an error).

The scenario, each key with its description next to its field: `scenario` (top level, `mesh`, `environment`,
`checkpoint`, `limits`), `training` (batch sizes, sequence lengths, recompute, pipeline, routing, precision, optimizer,
offload, LoRA, quantization), `generation` (the blocks `generation` and `rl`), `evaluation` (the block `evaluation`),
`scenario_keys` (gathers them for a documentation page), `optimizers` (states and step of each optimizer), `bounds`
(largest value of each). Reading: `yaml_parser` (text to plain values with line numbers), `document` (one file; the only
place that opens input files), `block` (base class of closed blocks: unknown keys, nearest key), `sweep` (one document
to many), `quantity` (numbers with a unit, a kind and a source, as topology files have them), `shipped` (the data that
comes with the package), `file_cache` (values read again when a file changes), `named_files` (paths of a scenario in
another folder), `paths` (the file system;
whole-or-nothing writes).
"""
