"""Launch commands of trainings: the number of processes that they start, and keys of the recipe that they override.

Input: a shell script or a text with one launch command, beside a recipe. Output: `Launch`. Start:
`launch_of.launch_of`. Nothing is executed: `simcore.recipes.shell` reads the words.

`launch_of`: finds the command and puts the parts together. `starters`: the launchers in a command, their options, and
what they start. `slurm`: nodes, tasks and GPUs of srun and of `#SBATCH` lines. `count`: processes of nested launchers,
which must agree. `factory`: those of `llamafactory-cli`, which variables say. `axolotl`: the launcher that `axolotl
train` starts. `trl`: accelerate's options in `trl sft`. `commands`: commands of these trainers as records.
`accelerate`: its options as keys of its YAML. `arguments`: those of the training as keys of the recipe. `options`: with
their lines.
"""
