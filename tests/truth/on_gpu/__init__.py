"""Real training steps on one GPU, stored as measured rows: what `tests/truth/on_gpu.sh` runs.

Input: a case of `cases`, whose scenario says what is run. Output: files of `step.main` in one folder, NAME.jsonl
(the row), NAME.json (every reading of every step), NAME.yaml (the scenario), NAME.pickle (memory snapshot),
NAME.trace.json.gz (kineto). Start: `step.main`.

`cases`: the steps, in the order of their value. `makers`: models, wrappers and optimizers of a scenario; `tuners`:
those of adapters over 4 bits; `megatron_core`: those of Megatron-Core. `watch`: counters of the allocator and clocks,
of a GPU or of a CPU. `row`: a row of what was read. `found`: what a machine has.
"""
