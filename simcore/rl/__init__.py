"""DPO, GRPO and PPO as NeMo RL, verl, TRL and OpenRLHF run them: phases of a step, and the report of all this.

Input: a `Scenario` whose workload is `dpo`, `grpo` or `distillation`.
Output: a `Report` with phases. Start: `workload.in_phases`.

`step/`: what all trainers share, the ledger over phases and their order. `trainers`: which there are, NeMo RL in
`nemo_rl`, verl in `verl/`; `ppo`: NeMo RL's step with a critic, `teacher`: its distillation. `trl_grpo`: TRL's GRPO,
whose parts are in `trl/`; `openrlhf_ppo`: PPO and GRPO of OpenRLHF, with `openrlhf/`. `time`: durations of a step.
`report`: the result, with memory over phases. The engine that generates: `vllm/`, `sglang/` (`engines`).
"""
