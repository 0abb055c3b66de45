"""Parts of a step of OpenRLHF's PPO: models of DeepSpeed in processes of their own, beside vLLM.

Input: scenarios of each model's training and passes, and an engine. Output: a `Journal`. Start: `step.openrlhf_step`.

`checks`: refusals. `models`: policy, reference model, critic and reward model on a class of ranks. `sleep`: what
DeepSpeed's sleep takes off the device. `step`: the order of phases, and `sync`: weights on their way to vLLM.

Facts are those of OpenRLHF 0.11.0 over DeepSpeed 0.19.6.
"""
