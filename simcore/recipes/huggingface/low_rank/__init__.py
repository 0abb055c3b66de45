"""GaLore and APOLLO in recipes around transformers.

Input: the Trainer's `optim`, `optim_target_modules` and `optim_args`, or what a project has in their place. Output:
`training.optimizer` of the scenario. Start: `trainer.py`.
"""
