"""Numbers of a launch of Megatron's: what they are, and that they must agree."""

from __future__ import annotations

import pytest

from simcore.errors import InputError
from simcore.recipes.answers import Answer
from simcore.recipes.megatron.launch import agreed, gpus_of
from simcore.recipes.shell.script import read_script


def count(text: str) -> int | None:
    script = read_script(text, "run.sh")
    found = gpus_of(script.commands[-1], script, "run.sh")
    return None if found is None else int(found.value)


@pytest.mark.parametrize(("text", "gpus"), [
    ("#SBATCH --nodes=4\nsrun --nodes 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py",
     16),
    ("#SBATCH -N 2\n#SBATCH --gpus-per-node=8\nsrun -l torchrun --nnodes=2 --nproc_per_node=8 pretrain_gpt.py", 16),
    ("#SBATCH -N2\n#SBATCH --ntasks-per-node=8\nsrun numactl -N 0 python pretrain_gpt.py", 16),
    ("mpirun -np 2 torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py", 16),
    ("#SBATCH --gpus-per-node=8\nCUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 pretrain_gpt.py", 2),
    ("mpirun -np 16 python pretrain_gpt.py", 16), ("torchrun --nproc-per-node $N pretrain_gpt.py", None),
    ("#SBATCH --ntasks-per-node=8\ntorchrun --nproc-per-node 8 pretrain_gpt.py", 8)])
def test_numbers_that_agree_are_counted(text: str, gpus: int | None) -> None:
    assert count(text) == gpus


@pytest.mark.parametrize(("text", "told"), [
    ("#SBATCH --nodes=4\nsrun --nodes 2 --ntasks-per-node 8 torchrun --nnodes 3 --nproc-per-node 4 pretrain_gpt.py",
     r"run.sh:2: torchrun is of 3 nodes, the job has 2 \(run.sh:2 srun\)"),
    ("#SBATCH --nodes=4\ntorchrun --nnodes 3 --nproc-per-node 4 pretrain_gpt.py",
     r"torchrun is of 3 nodes, the job has 4 \(run.sh:1 #SBATCH\)"),
    ("#SBATCH --nodes=4\nsrun torchrun --nproc-per-node 8 pretrain_gpt.py",
     r"torchrun is of 1 nodes, as it has no --nnodes, the job has 4 \(run.sh:1 #SBATCH\)"),
    ("#SBATCH --nodes=2\nsrun --ntasks-per-node 8 torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py",
     r"torchrun starts the processes of a node, and srun 8 of it on each \(run.sh:2 srun\)"),
    ("#SBATCH --gpus-per-node=8\ntorchrun --nproc-per-node 4 pretrain_gpt.py",
     r"4 processes a node, which has 8 GPUs \(run.sh:1 #SBATCH\)"),
    ("mpirun -np 16 torchrun --nproc-per-node 8 pretrain_gpt.py",
     r"torchrun is of 1 nodes, and mpirun starts it 16 times \(run.sh:1 mpirun\)"),
    ("#SBATCH --gres=gpu:4\nsrun -N 2 --ntasks-per-node 8 python pretrain_gpt.py",
     r"starts 16 processes, the job has 2 x 4 GPUs \(run.sh:1 #SBATCH\)"),
    ("srun -N 2 -n 8 --ntasks-per-node 8 python pretrain_gpt.py", r"8 tasks \(run.sh:1 srun\), and 2 x 8 of")])
def test_numbers_that_contradict_each_other_are_an_error_with_both_places(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        count(text)


def test_an_answer_and_the_launch_say_one_number() -> None:
    told = Answer(8, "run.sh:1 torchrun")
    with pytest.raises(InputError, match=r"run.sh:1 torchrun: starts 8 processes, which contradicts --gpus 64"):
        agreed(Answer(64, "--gpus 64"), told)
    assert agreed(None, told) is told
