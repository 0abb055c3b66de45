"""Recipes of OpenRLHF: a script that starts one of its trainers, `openrlhf.cli.train_sft` and its like, with arguments.

Input: the script. Output: a scenario of the supervised trainer, or of PPO. Start: `recipe.FORMAT`.

`command`: the command in a script, its trainer and its arguments as keys. `older`: names of arguments before 0.10.2.
`strategy`: the configuration that OpenRLHF makes for DeepSpeed, which is read as a file of DeepSpeed would be. `sft`:
the supervised trainer. `ppo`: PPO, GRPO and REINFORCE++, with the models and the engine `beside` the policy.
`recipe`: recognises scripts, and refuses the other trainers by name.

Facts about arguments are those of OpenRLHF 0.11.0 and 0.8.9.
"""
