"""GaLore and APOLLO in recipes around transformers.

Input: the Trainer's `optim`, `optim_target_modules` and `optim_args`, or what a project has in their place. Output:
`training.optimizer` of the scenario, with its block `low_rank`, and what became of those keys.

Start: `trainer.py`, which TRL and axolotl share; LLaMA-Factory's own switches are in its folder.
"""
