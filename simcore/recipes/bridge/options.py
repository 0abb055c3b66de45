"""Options of Bridge's launchers beside a recipe's name: the override that each stands for, or why it has no effect.

Megatron-Bridge 067f987d: scripts/training/run_recipe.py (_build_parser, COMMON_OVERRIDE_FIELDS),
scripts/training/setup_experiment.py (_build_parser), scripts/performance/argument_parser.py:171-943. Names are spelt as
they are there; both `--a b` and `--a=b` are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

__all__ = ["FLAGS", "IDLE", "KEYS", "TEXTS", "Launcher", "launcher_of"]

Launcher = Literal["run_recipe", "experiment", "performance", ""]

_COMMON: Final[Mapping[str, str]] = {
    "-ms": "train.train_iters", "--max_steps": "train.train_iters",
    "-gb": "train.global_batch_size", "--global_batch_size": "train.global_batch_size",
    "-mb": "train.micro_batch_size", "--micro_batch_size": "train.micro_batch_size",
    "-tp": "model.tensor_model_parallel_size", "--tensor_model_parallel_size": "model.tensor_model_parallel_size",
    "-pp": "model.pipeline_model_parallel_size", "--pipeline_model_parallel_size": "model.pipeline_model_parallel_size",
    "-cp": "model.context_parallel_size", "--context_parallel_size": "model.context_parallel_size",
    "-vp": "model.virtual_pipeline_model_parallel_size",
    "--virtual_pipeline_model_parallel_size": "model.virtual_pipeline_model_parallel_size",
    "-ep": "model.expert_model_parallel_size", "--expert_model_parallel_size": "model.expert_model_parallel_size",
    "--expert_tensor_parallel_size": "model.expert_tensor_parallel_size",
    "--lr": "optimizer.lr", "--min_lr": "optimizer.min_lr", "--warmup_iters": "scheduler.lr_warmup_iters",
    "--pretrained_checkpoint": "checkpoint.pretrained_checkpoint", "--save_dir": "checkpoint.save",
    "--load_dir": "checkpoint.load", "--save_interval": "checkpoint.save_interval"}
_RUN: Final = {**_COMMON, "-sl": "dataset.seq_length", "--seq_length": "dataset.seq_length",
               "-etp": "model.expert_tensor_parallel_size"}
_PERFORMANCE: Final = {**_COMMON, "-sl": "model.seq_length", "--seq_length": "model.seq_length",
                       "-et": "model.expert_tensor_parallel_size", "--hidden_size": "model.hidden_size",
                       "--num_layers": "model.num_layers", "--num_moe_experts": "model.num_moe_experts"}
KEYS: Final[Mapping[str, Mapping[str, str]]] = {"": _RUN, "run_recipe": _RUN, "experiment": _RUN,
                                                "performance": _PERFORMANCE}
"""Key that an option sets, by launcher and option; values are whole numbers but for those of `TEXTS`."""
TEXTS: Final = frozenset({"optimizer.lr", "optimizer.min_lr", "checkpoint.pretrained_checkpoint", "checkpoint.save",
                          "checkpoint.load"})
_STARTS: Final = "how the job is started"
_NAMES: Final = "names the recipe"
_OF_RUN: Final[Mapping[str, str]] = {
    "--recipe": _NAMES, "--dry-run": "nothing is trained", "--dry_run": "nothing is trained",
    "--dump-env": "it prints the environment", "--dump_env": "it prints the environment",
    "--step-func": "the recipe's step is taken", "--step_func": "the recipe's step is taken"}
_OF_EXPERIMENT: Final[Mapping[str, str]] = dict.fromkeys((
    "--account", "--partition", "--time", "--gres", "--additional-slurm-params", "--additional_slurm_params",
    "--no-gpu-resource-request", "--container-image", "--container_image", "--mount", "--env", "--srun-arg",
    "-lmc", "--peak-mem-clk", "--peak_mem_clk", "--experiment-name", "--submission-dry-run", "--dry-run", "--wait",
    "--nodes", "--gpus-per-node", "--gpus_per_node"), _STARTS)
_OF_PERFORMANCE: Final[Mapping[str, str]] = {**dict.fromkeys((
    "-m", "--model_family_name", "-mr", "--model_recipe_name", "--use_recipes", "-g", "--gpu", "-c", "--compute_dtype",
    "--task", "-cv", "--config_variant", "--domain", "--recipe", "-ng", "--num_gpus", "-gn", "--gpus_per_node"),
    _NAMES),
    **dict.fromkeys((
        "-nh", "--nemo_home", "--detach", "--max_retries", "-d", "--dryrun", "-hf", "--hf_token", "--offline", "-a",
        "--account", "-p", "--partition", "-t", "--time_limit", "--preempt_time", "-i", "--container_image", "-cm",
        "--custom_mounts", "-cs", "--custom_srun_args", "--gres", "--additional_slurm_params", "--packager",
        "--distributed_timeout_minutes"), _STARTS),
    **dict.fromkeys(("-l", "--log_dir", "--save_config_filepath", "--dump_env", "-wdk", "--wandb_key", "-wdp",
                     "--wandb_project_name", "-wde", "--wandb_entity_name", "-wdj", "--wandb_experiment_name", "-wds",
                     "--wandb_save_dir", "--most_recent_k"), "files and logging")}
IDLE: Final[Mapping[str, Mapping[str, str]]] = {"": _OF_RUN, "run_recipe": _OF_RUN,
                                                "experiment": {**_OF_RUN, **_OF_EXPERIMENT},
                                                "performance": _OF_PERFORMANCE}
"""Reason why nothing depends on an option, by launcher and option."""
FLAGS: Final = frozenset({"--dry-run", "--dry_run", "--dump-env", "--dump_env", "--deterministic", "--wait",
                          "--no-gpu-resource-request", "--submission-dry-run", "--use_recipes", "-d", "--dryrun",
                          "--offline"})
"""Options without a value."""


def launcher_of(script: str) -> Launcher:
    """Launcher of Bridge's that a script is, by its path; "" for another."""
    name = script.rpartition("/")[2]
    if name in ("run_script.py", "bootstrap.py") or "performance/" in script:
        return "performance"
    if name in ("setup_experiment.py", "train.sh", "launch_with_nemo_run.py", "launch_with_sbatch.sh"):
        return "experiment"
    return "run_recipe" if name == "run_recipe.py" else ""
