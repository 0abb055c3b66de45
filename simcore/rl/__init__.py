"""DPO and GRPO as NeMo RL runs them: phases of a step, weights sent to the engine, and the report of all this.

Input: a `Scenario` whose workload is `dpo` or `grpo`.
Output: a `Report` with phases. Start: `workload.in_phases`.

`phases`: the order of a step, phase by phase (`GrpoStep`): generation, log-probabilities, training, refit. `journal`:
the ledger of device and host over phases. `forward`: a forward pass without gradients. `policy`: what a class of ranks
holds, and what moves to the host. `refit`: how weights get to the engine, and its buffers; `quantising`: to 8 bits.
`traffic`: bytes that leave a rank in each phase. `report`: the result, with memory over phases. The engine that
generates: `vllm/`, `sglang/` (`engines`). verl's workers: `verl`, `verl_megatron`; how they send weights: `streams`,
`mbridge`.
"""
