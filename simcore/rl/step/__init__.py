"""A step of reinforcement learning in phases: the ledger over them, and the parts that all trainers share.

Input: bytes and times of the policy on a class of ranks (`policy.policy_of`), and what a step does (`GrpoStep`).
Output: a `Journal`: memory of device and host, copies and durations. Start: `phases.grpo_step`.

`phases`: their order, generation, log-probabilities, training, refit. `journal`: the ledger. `forward`: a pass without
gradients. `policy`: what a class of ranks holds, and what moves to the host; `critic`: the same of PPO's model of
values. `refit`: how weights get to the engine, and its buffers; `quantising`: to 8 bits. `traffic`: bytes that leave a
rank in each phase. `trainer`: the record of a trainer.
"""
