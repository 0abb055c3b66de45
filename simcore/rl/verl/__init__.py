"""verl's workers: how they run a step of reinforcement learning over FSDP 1 and 2 and over Megatron.

Input: a policy's bytes and times on a class of ranks (`Policy`), and what a step generates (`GrpoStep`).
Output: a journal of phases. Start: `workers.VERL`, the records that `rl/trainers.py` lists.

`step`: phases over FSDP; `fsdp2`: state dict, reference policy and refusals over FSDP 2; `adapters`: of an actor with
adapters; `megatron`: phases over Megatron, with a critic `megatron_critic`. `streams`: how weights go to the engine;
`mbridge`: how Megatron's are exported. `reward`: a reward model in an engine beside the policy. `workers`: what is
refused and assumed.
"""
