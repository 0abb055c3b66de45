"""Results: frozen values that every view reads, written as JSON and read back.

Input: numbers of a simulation, or JSON of an earlier run. Output: `Report` (one scenario), `Comparison`, `Frame`.
Start: `report.Report`. Nothing here computes memory or time.

`report`: status, ranks with peak, parts and traffic, host memory, assumptions, advice. `time`: step time, its parts,
communication, kernels, roofline, cost. `phases`: phases of a DPO or GRPO step. `engine`: memory and decoding of a vLLM
engine. `quantiles`: results over random draws. `detail`: what pictures need in addition (memory series, spans,
tensors, lifetimes). `compare`: reports side by side. `settings`: values that a scenario sets or a framework chose, and
how results differ in them. `frame`: results as typed columns. `evidence`: known runs and recipes of a layout.
`verdict`: fits, unsure or out of memory. `limit`: limit of one quantity, such as the fewest GPUs. `lora_coverage`:
which modules LoRA reaches, which targets match nothing, which adapters get no gradient.
"""
