"""GRPO as TRL's GRPOTrainer runs it: one process a GPU, in which the policy trains, is scored, and may generate.

Input: the policy's bytes and times on a class of ranks (`Held`), and what a step does beside it (`Turn`). Output: a
journal of phases. Start: `step.trl_step`, which `simcore/rl/trl_grpo.py` calls.

`amounts`: sequences, passes and optimizer steps of one cycle. `checks`: what is refused. `policy`: bytes and times of
the policy on a class of ranks; `reference`: of the reference model beside it. `sync`: how weights get to vLLM. `step`:
the order of phases.
"""
