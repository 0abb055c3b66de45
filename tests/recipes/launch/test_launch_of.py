"""Launch commands: the number of processes, keys that they set, and what is refused by name and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples_of_recipes import SAMPLES
from simcore.errors import InputError
from simcore.inputs.scenario import parse_scenario
from simcore.inputs.yaml_parser import dotted
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported, read_known
from simcore.recipes.importing import import_recipe
from simcore.recipes.launch.arguments import unknown_of
from simcore.recipes.launch.launch_of import Launch, launch_of
from simcore.recipes.launch.options import Number

HEADERS = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
SCRIPT = """\
#!/bin/bash
#SBATCH -N 2
#SBATCH --gres=gpu:h100:8
GPUS=8
export PYTORCH_ALLOC_CONF=expandable_segments:True,max_split_size_mb:64
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node=$GPUS \\
    --rdzv_endpoint "$HEAD:29500" -m torchtitan.train --job.config_file ./mine.toml \\
    --training.local_batch_size 1 "$@"
"""


def read(text: str, recipe: str = "mine.yaml") -> Launch:
    return launch_of(text, "run.sh", recipe)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        read_known(lambda: Imported("", "", {}, {}), unknown_of(read(text).overrides))
    return "\n".join(f"{one.where}: {one.message}" for one in caught.value.problems)


@pytest.mark.parametrize(("text", "gpus"), [
    ("torchrun train.py", 1),
    ("torchrun --nproc-per-node 8 train.py", 8),
    ("python -m torch.distributed.run --standalone --nproc_per_node=4 train.py --config mine.yaml", 4),
    ("torchrun --nnodes=2:2 --nproc-per-node 8 train.py", 16),
    ("N=3; torchrun --nnodes ${N} --nproc-per-node ${M:-8} train.py", 24),
    ("uv run torchrun --nproc-per-node 8 train.py", 8),
    (f"{HEADERS}srun torchrun --nnodes $SLURM_NNODES --nproc-per-node $SLURM_GPUS_ON_NODE -m mine", 16),
    (f"{HEADERS}srun --ntasks-per-node=8 python train.py", 16),
    (f"{HEADERS}srun --nodes=1 --ntasks=1 hostname\nsrun -n 16 --label python -u train.py", 16),
    ("srun -N2 --ntasks-per-node 4 --gres=gpu:4 python train.py", 8),
    ("srun -n 8 -G 8 python train.py", 8),
    ("#SBATCH --nodes=4\n#SBATCH --ntasks=4\n#SBATCH --gpus-per-task=8\n"
     "srun torchrun --nnodes 4 --nproc_per_node 8 a.py", 32),
    ("srun -N 2 -n 16 --gpus-per-task=1 python train.py", 16),
    ("srun -N 2 bash -c 'torchrun --nnodes 2 --nproc-per-node 8 train.py'", 16),
    ("mpirun -np 16 --allow-run-as-root -mca btl tcp -x PATH python train.py", 16),
    ("torchrun preprocess_data.py\ntorchrun --nproc-per-node 8 train.py", 8),
    ("torchrun --nproc-per-node 8 preprocess_and_train.py", 8),
    ("#SBATCH --gpus-per-node=8\nexport CUDA_VISIBLE_DEVICES=0,1,2,3\ntorchrun --nproc-per-node 4 train.py", 4),
    ("mpirun -n 2 python train.py", 2),
    ("mpirun -np 2 torchrun --nnodes 2 --nproc-per-node 8 train.py", 16),
    ("mpirun -np 2 accelerate launch --num_machines 2 --num_processes 16 train.py", 16),
    ("accelerate launch --multi_gpu --num_machines 2 --num_processes 16 --machine_rank $R train.py", 16),
    ("deepspeed --num_gpus 4 --num_nodes=2 train.py", 8),
    ("pip install deepspeed\ndeepspeed --num_gpus 4 train.py", 4),
    ("automodel mine.yaml --nproc-per-node 8", 8),
    ("trl sft --config mine.yaml --num_processes 4 --learning_rate 1e-5", 4),
    ("automodel finetune llm -c mine.yaml --nproc_per_node=2", 2),
    ("axolotl train mine.yaml --launcher torchrun -- --nproc_per_node 8 --nnodes 2", 16),
    ("axolotl train mine.yaml --num-processes 4 --main-process-port=29500", 4),
    ("axolotl train mine.yaml --launcher python", 1),
    ("python -m axolotl.cli.train mine.yaml", 1),
    ("torchrun --nproc-per-node 2 -m axolotl.cli.train mine.yaml", 2),
    ("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8 NODE_RANK=$R llamafactory-cli train mine.yaml", 16),
    (f"{HEADERS}export FORCE_TORCHRUN=1 NNODES=$SLURM_NNODES\nsrun llamafactory-cli train mine.yaml", 16),
    ("CUDA_VISIBLE_DEVICES=0,3 llamafactory-cli train mine.yaml", 2),
    ("export NPROC_PER_NODE=4\nlmf train mine.yaml lora_rank=4", 4),
    ("CUDA_VISIBLE_DEVICES=1 NNODES=2 llamafactory-cli train mine.yaml", 1),
    ("CUDA_VISIBLE_DEVICES=0,1,-1,2 llamafactory-cli train mine.yaml", 2),
    ("CUDA_VISIBLE_DEVICES=GPU-8932f937,MIG-1/2 llamafactory-cli train mine.yaml", 2),
    ("axolotl preprocess mine.yaml\naxolotl train mine.yaml -- --num_processes 8", 8),
])
def test_the_number_of_processes(text: str, gpus: int) -> None:
    found = read(text).gpus
    assert found is not None
    assert found.value == gpus


@pytest.mark.parametrize("text", ["automodel mine.yaml", "axolotl train mine.yaml", "accelerate launch train.py",
                                  "deepspeed train.py", "FORCE_TORCHRUN=1 llamafactory-cli train mine.yaml"])
def test_what_is_left_to_the_machine_is_not_said(text: str) -> None:
    assert read(text).gpus is None


@pytest.mark.parametrize(("text", "message"), [
    ("torchrun --nnodes 1:4 --nproc-per-node 8 a.py", "run.sh:1: torchrun: not yet: --nnodes 1:4: a number of nodes"),
    ("\ntorchrun --nproc-per-node gpu a.py", "run.sh:2: torchrun: --nproc-per-node gpu leaves the number"),
    ("torchrun --nproc-per-node $N a.py", "run.sh:1: torchrun: --nproc-per-node $N: not known from the script alone"),
    ("torchrun --nproc-per-node $(nvidia-smi -L | wc -l) a.py", "the output of a command"),
    ("torchrun --nproc-per-node -8 a.py", "expected a number of processes or nodes, got '-8'"),
    ("torchrun --nproc-per-node 0 a.py", "expected a number of processes or nodes, got '0'"),
    ("torchrun --nnodes 0 a.py", "--nnodes: expected a number of nodes, got '0'"),
    ("srun -G 0 python a.py", "--gpus: expected a number of GPUs, got '0'"),
    ("for i in 1 2; do\ntorchrun --nproc-per-node $i a.py\ndone", "run.sh:2: the launch command lies in the loop"),
    ("torchrun a.py\ntorchrun b.py", "run.sh: has 2 launch commands (lines 1, 2): give one"),
    ("echo torchrun a.py\npython a.py", "run.sh: has no launch command that is read (torchrun, srun,"),
    ("$(rm -rf a)", "run.sh:1: starts $(rm -rf a), which is not known"),
    ("mpirun python a.py", "-np is missing"),
    ("deepspeed --include worker-1:0,1 a.py", "run.sh:1: deepspeed: not yet: --include"),
    ("torchrun --nproc-per-node 8 launch.sh", "torchrun starts launch.sh, which is not read"),
    ("automodel other.yaml --nproc-per-node 8", "run.sh:1: starts a training with other.yaml, not with mine.yaml"),
    ("srun -n 8 -G 4 python a.py", "starts 8 processes, the job has 4 GPUs (run.sh:1)"),
    (f"{HEADERS}srun torchrun --nproc-per-node 8 a.py", "torchrun is of 1 nodes, the job has 2 (run.sh:2)"),
    (f"{HEADERS}srun torchrun --nnodes 2 --nproc-per-node 4 a.py", "run.sh:4: 4 processes a node, which has 8 GPUs "
                                                                   "(run.sh:3)"),
    (f"{HEADERS}srun --ntasks-per-node=8 torchrun --nnodes 2 --nproc-per-node 8 a.py", "srun 8 tasks on each (run.sh"),
    ("srun -n 16 torchrun --nnodes 2 --nproc-per-node 8 a.py", "torchrun is of 2 nodes, and srun starts it 16 times"),
    ("mpirun -np 2 torchrun --nproc-per-node 8 a.py", "is of 1 nodes, and mpirun starts it 2 times (run.sh:1)"),
    ("srun -n 16 accelerate launch --num_machines 2 --num_processes 16 a.py", "and srun starts it 16 times (run.sh:1)"),
    (f"{HEADERS}accelerate launch --num_processes 8 a.py", "run.sh:4: --num_processes 8, the job has 2 x 8 GPUs"),
    ("export CUBLAS_WORKSPACE_CONFIG=$X\ntorchrun a.py", "run.sh:1: CUBLAS_WORKSPACE_CONFIG is $X: not known"),
    ("torchrun a.py --lr $LR", "run.sh:1: the argument '$LR' is the value of lr, and not known"),
    ("MIN_NNODES=1 MAX_NNODES=3 llamafactory-cli train mine.yaml", "run.sh:1: not yet: MIN_NNODES: a number of nodes"),
    ("NPROC_PER_NODE=$N llamafactory-cli train mine.yaml", "$N, which the script does not set (--set env.N=VALUE"),
    ("axolotl train mine.yaml --sweep s.yaml", "run.sh:1: axolotl: not yet: --sweep: several recipes"),
    ("axolotl train mine.yaml --launcher slurm", "--launcher: expected one of accelerate, torchrun, python"),
    (f"{HEADERS}FORCE_TORCHRUN=1 srun llamafactory-cli train mine.yaml", "is of 1 nodes (NNODES), the job has 2"),
    ("llamafactory-cli export mine.yaml", "has no launch command that is read"),
    ("cd x\ntorchrun --nproc-per-node 8 tools/preprocess_data.py --workers 8", "run.sh:2: not yet: starts tools/prep"),
    ("srun -n 8 python -m scripts.tokenize_corpus", "run.sh:1: not yet: starts scripts.tokenize_corpus: by its name"),
    ("torchrun convert_checkpoint.py", "run.sh:1: not yet: starts convert_checkpoint.py"),
    ("torchrun a.py extra", "run.sh:1: the argument 'extra' sets no key of a recipe"),
])
def test_what_is_not_known_or_contradicts_is_refused_by_name(text: str, message: str) -> None:
    assert message in refusal(text)


def test_an_option_may_have_several_values() -> None:
    """argparse `nargs="+"`, as transformers' HfArgumentParser has for lists: of TRL docs/source/peft_integration.md."""
    found = read("trl sft --config mine.yaml --lora_target_modules q_proj v_proj --bf16 --n 1 2\n").overrides
    assert [(one.path, one.value) for one in found] == [
        (("lora_target_modules",), ["q_proj", "v_proj"]), (("bf16",), True), (("n",), [1, 2])]
    unknown = read("trl sft --config mine.yaml --lora_target_modules q_proj $OTHER\n").overrides[0]
    assert "OTHER" in unknown.unknown


def test_arguments_are_keys_of_the_recipe() -> None:
    found = read("torchrun a.py --config mine.yaml --a.b=3 \\\n --c.d 1e-5 +e=x --flag --name 'some text'").overrides
    assert [(one.path, one.value, one.where) for one in found] == [
        (("a", "b"), 3, "run.sh:1"), (("c", "d"), 1e-5, "run.sh:2"), (("e",), "x", "run.sh:2"),
        (("flag",), True, "run.sh:2"), (("name",), "some text", "run.sh:2")]


def test_switches_of_axolotls_command_are_on_or_off() -> None:
    line = "axolotl train mine.yaml --micro-batch-size 2 --no-sample-packing --use-kernels --num-processes 4"
    assert [(dotted(one.path), one.value) for one in read(line).overrides] == [
        ("micro_batch_size", 2), ("sample_packing", False), ("use_kernels", True)]


def test_axolotls_program_takes_dashes_under_another_launcher_too() -> None:
    found = read("torchrun --nproc-per-node 8 -m axolotl.cli.train mine.yaml --micro-batch-size 1 --lora-r 4").overrides
    assert [(dotted(one.path), one.value) for one in found] == [("micro_batch_size", 1), ("lora_r", 4)]


def test_the_command_that_ray_on_slurm_runs_is_the_launch() -> None:
    found = read('COMMAND="uv run examples/run_sft.py --config mine.yaml cluster.num_nodes=2 ~logger.swanlab" \\\n'
                 "CONTAINER=image sbatch --nodes=2 --account=me ray.sub")
    assert [(one.path, one.value, one.sign) for one in found.overrides] == [
        (("cluster", "num_nodes"), 2, ""), (("logger", "swanlab"), None, "~")]
    assert [(one.name, one.value) for one in found.job] == [("--nodes", "2"), ("--account", "me")]


@pytest.mark.parametrize("text", [
    "sbatch --nodes=2 <<EOF\n#SBATCH --gpus-per-node=8\nsrun torchrun --nnodes 2 --nproc-per-node 8 a.py\nEOF",
    "sbatch --nodes=2 --gpus-per-node 8 --wrap 'srun torchrun --nnodes 2 --nproc-per-node 8 a.py'"])
def test_a_script_that_is_submitted_has_the_sizes_of_its_options(text: str) -> None:
    found = read(text)
    assert found.gpus is not None
    assert found.gpus.value == 16
    assert "the job has 3 (run.sh:1)" in refusal(text.replace("--nodes=2", "--nodes=3"))
    again = read(text.replace("#SBATCH --gpus", "#SBATCH --nodes=5\n#SBATCH --gpus"))
    assert again.gpus is not None
    assert again.gpus.value == 16
    assert [one.name for one in found.job if not one.launcher] == (
        ["--gpus-per-node", "--nodes"] if "<<" in text else ["--nodes", "--gpus-per-node"])


def test_switches_of_torchtitan_are_on_or_off() -> None:
    line = "torchrun --nproc-per-node 8 -m torchtitan.train --job.config_file mine.yaml"
    found = read(f"{line} --debug.no-deterministic --training.seq-len 64 --compile.enable").overrides
    assert [(dotted(one.path), one.value) for one in found] == [
        ("debug.deterministic", False), ("training.seq_len", 64), ("compile.enable", True)]


def test_axolotls_command_is_told_from_its_module() -> None:
    lines = ("axolotl train mine.yaml --launcher torchrun", "torchrun -m axolotl.cli.train mine.yaml",
             "python -m axolotl.cli.train mine.yaml")
    assert [read(line).kind for line in lines] == ["axolotl", "torchrun", "python"]


def test_options_of_trls_command_are_accelerates_or_the_trainings() -> None:
    found = read("trl sft --config mine.yaml --accelerate_config zero3 \\\n --num_processes 4 --max_length 9 --packing")
    assert (found.further, found.kind) == (("zero3.yaml", "run.sh:1"), "accelerate")
    assert [one.path for one in found.overrides] == [("max_length",), ("packing",)]
    assert "has no launch command" in refusal("trl env")


def test_variables_of_the_environment_are_answers() -> None:
    text = "torchrun --nproc-per-node ${GPUS:-8} --nnodes $NODES a.py"
    assert "--set env.NODES=VALUE gives it" in refusal(text)
    given = launch_of(text, "run.sh", "mine.yaml", {"NODES": "3", "GPUS": "4"})
    assert given.gpus is not None
    assert given.gpus.value == 12
    assert launch_of(f"NODES=2; {text}", "run.sh", "mine.yaml", {"NODES": "3"}).gpus.value == 16  # type: ignore[union-attr]


def test_llamafactorys_own_launcher_is_told_from_torchrun() -> None:
    line = "NPROC_PER_NODE=8 llamafactory-cli train mine.yaml"
    assert [read(text).kind for text in (line, f"OPTIM_TORCH=0 {line}", "torchrun a.py", "srun -n 8 python a.py")] == [
        "llamafactory", "torchrun", "torchrun", "srun"]


def test_programs_of_nemo_rl_set_keys_and_start_no_processes() -> None:
    launch = read("cd here\nuv run python examples/run_grpo.py --config mine.yaml \\\n    a.num_nodes=2 ++a.b=3\n")
    assert launch.gpus is None
    assert [(one.path, one.value, one.where) for one in launch.overrides] == [
        (("a", "num_nodes"), 2, "run.sh:3"), (("a", "b"), 3, "run.sh:3")]


# ---- beside a recipe ------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    SAMPLES["torchtitan"].write(Path())
    Path("run.sh").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_recipe_and_its_launch_script_are_one_scenario() -> None:
    found = import_recipe(["mine.toml", "run.sh"], Answers.of_options(topology="dgx-h100"))
    found.expect_complete()
    scenario = parse_scenario(found.document())
    assert (scenario.mesh.dp_shard, scenario.training.micro_batch_size) == (8, 1)
    assert scenario.environment.expandable_segments
    origins = {".".join(map(str, path)): str(origin) for path, origin in found.origins.items()}
    assert origins["mesh.dp_shard"].startswith("run.sh:6 torchrun: GPUs over the other degrees: 16 /")
    assert origins["training.micro_batch_size"] == "run.sh:8 training.local_batch_size"
    assert [one.where for one in found.left if one.key == "PYTORCH_ALLOC_CONF"] == ["run.sh:5"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("old", "new", "gpus", "message"), [
    ("", "", 8, "run.sh:6 torchrun: starts 16 processes, which contradicts --gpus 8"),
    ("local_batch_size 1", "local_size 1", None, "run.sh:8: unknown key 'training.local_size'"),
    ("srun torchrun", "torchrun", None, ""),
    ("srun torchrun", "accelerate launch --config_file acc.yaml --num_processes 16 mine.py\necho", None,
     "run.sh:6: names a further file, acc.yaml: name it beside the recipe"),
])
def test_a_contradiction_names_both_places(old: str, new: str, gpus: int | None, message: str) -> None:
    Path("run.sh").write_text(SCRIPT.replace(old, new) if old else SCRIPT, encoding="utf-8")
    told = ""
    try:
        import_recipe(["mine.toml", "run.sh"], Answers.of_options(gpus, topology="dgx-h100")).expect_complete()
    except InputError as error:
        told = "\n".join(f"{one.where}: {one.message}" for one in error.problems)
    assert message in told
    assert bool(message) == bool(told)


@pytest.mark.usefixtures("folder")
def test_what_the_script_exports_and_what_it_sets_anew_is_listed() -> None:
    text = "export NCCL_DEBUG=INFO OWN=1\nexport TP=2; echo $TP\nLATER=3\n" + SCRIPT
    Path("run.sh").write_text(text.replace("srun torch", "SOME=4 srun torch"), encoding="utf-8")
    found = import_recipe(["mine.toml", "run.sh"], Answers.of_options(topology="dgx-h100"))
    left = {one.key: (one.where, one.value, one.why) for one in found.left}
    assert left["NCCL_DEBUG"][:2] == ("run.sh:1", "INFO")
    assert left["OWN"] == ("run.sh:1", "1", "nothing that is simulated reads it")
    assert left["SOME"][:2] == ("run.sh:9", "4")
    assert left["training.local_batch_size"] == ("mine.toml:15", "3", "run.sh:11 sets it")
    assert not left.keys() & {"TP", "LATER", "GPUS"}
    assert [(one.where, one.key, one.value) for one in found.decides if one.key.startswith("-")] == [
        ("run.sh:5", "-N", "2"), ("run.sh:6", "--gres", "gpu:h100:8"), ("run.sh:9", "--nnodes", "2"),
        ("run.sh:9", "--nproc_per_node", "8")]
    assert left["--rdzv_endpoint"][2] == "how torchrun starts ranks, and they meet"


@pytest.mark.usefixtures("folder")
def test_settings_of_accelerates_by_a_variable_are_refused() -> None:
    Path("run.sh").write_text(f"export ACCELERATE_USE_FSDP=true\n{SCRIPT}", encoding="utf-8")
    found = import_recipe(["mine.toml", "run.sh"], Answers.of_options(topology="dgx-h100"))
    assert [one.message for one in found.refused] == [
        "not yet: ACCELERATE_USE_FSDP: settings of accelerate by a variable"]


@pytest.mark.usefixtures("folder")
def test_a_recipe_that_says_another_number_contradicts_the_launch() -> None:
    text = SAMPLES["torchtitan"].text.replace("shard_degree = -1", "shard_degree = 4")
    Path("mine.toml").write_text(text, encoding="utf-8")
    found = import_recipe(["mine.toml", "run.sh"], Answers.of_options(topology="dgx-h100"))
    assert [(one.where, one.message) for one in found.wrong] == [
        ("run.sh:6 torchrun", "the recipe is for 8 GPUs: parallelism.data_parallel_shard_degree is 4 (mine.toml:29)")]


@pytest.mark.parametrize("line", ["torchrun --nproc-per-node=4 -m axolotl.cli.train mine.yaml",
                                  "automodel mine.yaml --nproc-per-node 4"])
def test_each_process_has_a_gpu_that_it_sees(line: str) -> None:
    told = refusal(f"export CUDA_VISIBLE_DEVICES=0,1\n{line}")
    assert "starts 4 processes a node, to which run.sh:1 CUDA_VISIBLE_DEVICES leaves 2 GPUs" in told
    assert read(f"export CUDA_VISIBLE_DEVICES=0,1,2,3\n{line}").gpus is not None


@pytest.mark.parametrize(("line", "message"), [
    ("CUDA_VISIBLE_DEVICES=-1 llamafactory-cli train mine.yaml", "run.sh:1: not yet: CUDA_VISIBLE_DEVICES leaves no"),
    ("CUDA_VISIBLE_DEVICES= llamafactory-cli train mine.yaml", "CUDA_VISIBLE_DEVICES leaves no GPU: a run on the CPU"),
    ("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=4 llamafactory-cli train mine.yaml",
     "4 processes a node (NPROC_PER_NODE), to which CUDA_VISIBLE_DEVICES leaves 2 GPUs"),
    ("export CUDA_VISIBLE_DEVICES=-1\ntorchrun --nproc-per-node=4 -m axolotl.cli.train mine.yaml",
     "starts 4 processes a node, to which run.sh:1 CUDA_VISIBLE_DEVICES leaves 0 GPUs")])
def test_gpus_that_are_hidden_are_none(line: str, message: str) -> None:
    assert message in refusal(line)


def test_an_allocator_that_is_as_without_it_is_told(tmp_path: Path) -> None:
    found = started(tmp_path, "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False\n"
                              "accelerate launch --num_processes 4 sft.py --config sft.yaml")
    assert [one.why for one in found.decides if one.key == "PYTORCH_CUDA_ALLOC_CONF"] == [
        "segments do not expand, as without it"]


# ---- options of accelerate ------------------------------------------------------------------------------------------
SFT = """\
model_name_or_path: llama-3.2-3b
dataset_name: some/answers
max_length: 256
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
"""
SHARDS = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_reshard_after_forward: true}
num_processes: 8
"""


def started(folder: Path, line: str, *beside: str) -> Imported:
    (folder / "sft.yaml").write_text(SFT, encoding="utf-8")
    (folder / "run.sh").write_text(line, encoding="utf-8")
    names = [f"beside{number}.yaml" for number, _ in enumerate(beside)]
    for name, text in zip(names, beside, strict=True):
        (folder / name).write_text(text, encoding="utf-8")
    files = [str(folder / name) for name in ("sft.yaml", *names, "run.sh")]
    return import_recipe(files, Answers.of_options(topology="dgx-h100"))


@pytest.mark.parametrize(("options", "framework"), [
    ("--use_deepspeed --zero_stage 3", "zero3"), ("--use-fsdp --fsdp-version=2 --fsdp_auto_wrap_policy "
                                                  "TRANSFORMER_BASED_WRAP", "fsdp2"), ("--multi_gpu", "ddp")])
def test_the_command_line_of_accelerate_says_who_shards(tmp_path: Path, options: str, framework: str) -> None:
    """accelerate 1.15.0 `commands/launch.py`: options without a file make the plugin."""
    found = started(tmp_path, f"accelerate launch --num_processes 4 {options} trl/scripts/sft.py --config sft.yaml")
    found.expect_complete()
    assert found.values["framework"] == framework
    assert sum(found.values["mesh"].values()) == 4


def test_how_ranks_of_accelerate_find_each_other_need_not_be_known(tmp_path: Path) -> None:
    head = "srun bash -c \"accelerate launch --num_machines 1 --num_processes 4 --machine_rank \\$SLURM_PROCID"
    found = started(tmp_path, f"{head} --main_process_ip $(hostname) trl/scripts/sft.py --config sft.yaml\"")
    assert not found.wrong
    with pytest.raises(InputError, match=r"--zero_stage \$STAGE: not known from the script alone"):
        started(tmp_path, f"{head} --use_deepspeed --zero_stage \\$STAGE sft.py --config sft.yaml\"")


def test_options_of_accelerate_go_before_its_yaml(tmp_path: Path) -> None:
    line = "accelerate launch --config_file beside0.yaml --num_processes 16 --fsdp_reshard_after_forward false sft.py"
    found = started(tmp_path, line, SHARDS)
    found.expect_complete()
    assert found.values["mesh"] == {"dp_shard": 16}
    assert found.values["framework_options"]["reshard_after_forward"] is False
    assert str(found.origins["framework_options", "reshard_after_forward"]).startswith(f"{tmp_path}/run.sh:1 fsdp_")


def beside_axolotl(folder: Path, options: str) -> Imported:
    SAMPLES["axolotl"].write(folder)
    name = SAMPLES["axolotl"].name
    (folder / "run.sh").write_text(f"accelerate launch {options} -m axolotl.cli.train {name}", encoding="utf-8")
    return import_recipe([str(folder / name), str(folder / "run.sh")], Answers.of_options(topology="dgx-h100"))


def test_what_asks_accelerate_for_shards_beside_another_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        beside_axolotl(tmp_path, "--num_processes 8 --mixed_precision bf16 --use_fsdp --dynamo_backend inductor")
    assert [one.message for one in caught.value.problems] == [
        "not yet: an option of accelerate beside a recipe of axolotl YAML: distributed_type",
        "not yet: an option of accelerate beside a recipe of axolotl YAML: dynamo_config.dynamo_backend"]


def test_axolotl_sets_the_precision_that_accelerates_launcher_gave(tmp_path: Path) -> None:
    """axolotl 067b021c `utils/trainer.py` prepare_optim_env: ACCELERATE_MIXED_PRECISION, whatever the recipe says."""
    found = beside_axolotl(tmp_path, "--num_processes 8 --mixed_precision fp16 --dynamo_backend no")
    assert sum(found.values["mesh"].values()) == 8
    told = {one.key: (one.kind, one.value, one.why) for one in found.left if one.where.endswith("run.sh:1")}
    assert told["mixed_precision"][:2] == ("no effect", "'fp16'")
    assert "prepare_optim_env" in told["mixed_precision"][2]
    assert told["dynamo_config.dynamo_backend"][0] == "no effect"
    with pytest.raises(InputError, match="mixed_precision: expected no, fp16, bf16 or fp8, got 'bf61'"):
        beside_axolotl(tmp_path, "--num_processes 8 --mixed_precision bf61")


def test_an_unknown_option_of_accelerate_is_an_error(tmp_path: Path) -> None:
    found = started(tmp_path, "accelerate launch --num_processes 4 --use_fsdp --fsdp_versoin 2 sft.py")
    assert any("fsdp_versoin" in one.message for one in found.unknown)


def test_a_variable_that_is_set_to_nothing_is_told() -> None:
    found = read("\nexport NCCL_DEBUG= OWN=\ntorchrun --nproc-per-node 2 -m axolotl.cli.train mine.yaml").environment
    assert [(name, value, where.rpartition(":")[2]) for name, value, where in found] == [("NCCL_DEBUG", "", "2")]


def test_gpus_that_deepspeed_includes_of_its_own_host_are_its_processes() -> None:
    assert read("deepspeed --include localhost:1,2,5 a.py").gpus == Number(3, "run.sh:1 deepspeed")


def test_a_program_of_the_trainer_without_a_launcher_is_one_process() -> None:
    alone = read("CUDA_VISIBLE_DEVICES=3 python src/train.py --model_name_or_path qwen3-8b --bf16")
    assert (alone.kind, alone.gpus) == ("python", Number(1, "run.sh:1 python"))
    assert [one.path for one in alone.overrides] == [("model_name_or_path",), ("bf16",)]
    with pytest.raises(InputError, match=r"one process over 2 GPUs .*DataParallel"):
        read("CUDA_VISIBLE_DEVICES=0,1 python src/train.py --model_name_or_path qwen3-8b")
    with pytest.raises(InputError, match="has no launch command"):
        read("python src/tokens.py --tokenizer qwen3-8b")
