"""The command of a verl script: its trainer, its keys with lines, and what only a shell would know."""

from __future__ import annotations

import pytest

from simcore.errors import InputError
from simcore.recipes.verl.command import command_of, trainer_in

SCRIPT = """\
set -x
MODEL=some/model
train="['$HOME/a.parquet']"
python3 -m verl.trainer.main_ppo --config-path=config \\
    --config-name='ppo_megatron_trainer.yaml' \\
    algorithm.adv_estimator=grpo \\
    data.train_files="$train" \\
    +data.fresh=[a,b] \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.rollout.n=5 \\
    trainer.logger='["console","wandb"]' \\
    actor_rollout_ref.rollout.n=6 $@
"""


def test_keys_have_values_lines_and_types() -> None:
    found = command_of(SCRIPT, "run.sh")
    assert found.trainer == "verl.trainer.main_ppo"
    assert found.config == "ppo_megatron_trainer"
    assert found.document.data["actor_rollout_ref"] == {"model": {"path": "some/model"}, "rollout": {"n": 6}}
    assert found.document.data["data"]["fresh"] == ["a", "b"]
    assert found.document.data["trainer"] == {"logger": ["console", "wandb"]}
    assert found.document.where(("actor_rollout_ref", "rollout", "n")) == "run.sh:12"


def test_values_that_only_a_shell_knows_are_told_apart() -> None:
    found = command_of(SCRIPT, "run.sh")
    assert set(found.unknown) == {("data", "train_files")}
    assert "$HOME" in found.unknown["data", "train_files"]


def test_processes_are_those_of_a_launcher_alone() -> None:
    launched = "torchrun --nnodes=2 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.max_length=9\n"
    gpus = command_of(launched, "run.sh").gpus
    assert gpus is not None
    assert gpus.value == 16
    assert command_of(launched.replace("nproc_per_node=8", "nproc_per_node=$1"), "run.sh").gpus is None
    assert command_of(SCRIPT, "run.sh").gpus is None


def test_a_group_is_no_key() -> None:
    found = command_of("python -m verl.trainer.sft_trainer optim=fsdp optim.lr=1e-5\n", "run.sh")
    assert found.document.data["hydra"]["optim"] == "fsdp"
    assert found.document.data["optim"] == {"lr": 1e-5}


@pytest.mark.parametrize(("text", "told"), [
    ("python train.py a=1\n", "starts no trainer of verl"),
    ("python -m verl.trainer.main_ppo a=1\npython -m verl.trainer.main_ppo a=2\n", "2 trainers (lines 1, 2)"),
    ("for n in 1 2; do\npython -m verl.trainer.main_ppo a=$n\ndone\n", "lies in the loop at line 1"),
    ("python -m verl.trainer.main_ppo ~a.b\n", "run.sh:1: the argument '~a.b' sets no key"),
    ("python -m verl.trainer.main_ppo $(rm -rf x)\n", "sets no key"),
])
def test_what_is_no_command_is_told(text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        command_of(text, "run.sh")
    assert told in str(caught.value)


def test_words_of_a_text_tell_a_trainer() -> None:
    assert trainer_in("torchrun -m verl.trainer.fsdp_sft_trainer")
    assert trainer_in("python3 verl/trainer/main_generation.py")
    assert not trainer_in("pip install verl")


def test_variables_that_the_training_sees_are_listed() -> None:
    found = command_of(f"#SBATCH --nodes=1\nexport NCCL_DEBUG=WARN\n{SCRIPT}", "run.sh", {"NOT": "there"})
    assert ("NCCL_DEBUG", "WARN", "run.sh:2") in found.environment
    assert [(one.name, one.value, one.where) for one in found.job] == [("--nodes", "1", "run.sh:1")]
