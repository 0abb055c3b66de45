"""The YAML of `accelerate launch`: how many ranks there are, and which library cuts the model over them.

[Note: processes] `num_processes` counts the ranks of all machines: each starts `num_processes // num_machines`
(accelerate 1.15.0 `utils/launch.py`). With `distributed_type: NO` there is one rank, whatever `num_processes` says
(`commands/launch.py` simple_launcher).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

from simcore.inputs.block import shorten
from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.attention import attend_by_ring
from simcore.recipes.huggingface.deepspeed import check_named, read_deepspeed, shard_over_ranks
from simcore.recipes.huggingface.fsdp import Plugin, read_plugin, share_ranks
from simcore.recipes.huggingface.optimizers import CLIP
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.zero import Zero
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Row, Says, Unmodelled, read_rows
from simcore.recipes.world import share_out

__all__ = ["Launch", "copy_to_ranks", "read_launch", "read_processes"]

_ALONE: Final = ("NO",)
_COPIES: Final = ("NO", "MULTI_GPU")
_PLUGIN: Final = Plugin("fsdp_config.", "NO_WRAP", True, "accelerate 1.15.0",  # noqa: FBT003 - a value, not a switch
                        "commands/launch.py, utils/dataclasses.py FullyShardedDataParallelPlugin",
                        ("cpu_offload", "limit_all_gathers"),
                        "accelerate 1.15.0 utils/launch.py")
_STOPS: Final = (" (a model that transformers 5.23.0 splits by tp_size as it loads takes all ranks: "
                 "distributed/utils.py initialize_distributed_mesh; and accelerate 1.15.0 accelerator.py:1618 imports "
                 "ReplicateParallel, which it has no more)")
_STAGE: Final = "accelerate 1.15.0 utils/dataclasses.py DeepSpeedPlugin: stage 2 where nothing is said"
_ROWS: Final[tuple[Row, ...]] = (
    Off("use_cpu", "training on the CPU"),
    Off("tpu_use_cluster", "TPUs"),
    Says("compute_environment", "", "text", {None: None}, {"LOCAL_MACHINE": "the default"}, "another launcher:"),
    Says("dynamo_config.dynamo_backend", "", "text", {None: None}, {"no": "off", "NO": "off"}, "layers compiled by"),
    Idle(("machine_rank", "main_process_ip", "main_process_port", "main_training_function", "rdzv_backend",
          "same_network", "enable_cpu_affinity", "mpirun_config.*", "command_file", "commands",
          "enable_numa_affinity"), "how ranks are started and find each other"),
    Unmodelled(("debug",), "ranks compare the shapes of what accelerate's own collectives move, the Trainer's few "
               "numbers of a step: not timed"),
    Says("dynamo_backend", "", "text", {None: None}, {"no": "off", "NO": "off"}, "layers compiled by"),
    Idle(("downcast_bf16", "tpu_*", "ipex_config.*", "dynamo_config.*", "fp8_config.*", "main_process_*"),
         "about other devices, or of what is off"),
)
_OF_ZERO: Final[tuple[Row, ...]] = (
    Idle(("deepspeed_config.zero3_init_flag", "deepspeed_config.zero3_save_16bit_model"),
         "start of the run, and files"),
    Idle(("deepspeed_config.deepspeed_multinode_launcher", "deepspeed_config.deepspeed_hostfile",
          "deepspeed_config.deepspeed_exclusion_filter", "deepspeed_config.deepspeed_inclusion_filter"),
         "how ranks are started"),
    Idle(("deepspeed_config.gradient_clipping",), CLIP),
    Idle(("deepspeed_config.seq_parallel_communication_data_type",), "accelerate 1.15.0 hands it on to no one "
         "(utils/launch.py prepare_deepspeed_cmd_env)"),
    Idle(("deepspeed_config.deepspeed_moe_layer_cls_names",), "experts are fetched layer by layer in any case"),
)


@dataclass(frozen=True, slots=True)
class Launch:
    """Decisions of the launcher.

    `attention`: that of ranks that share sequences, which must be the model's, None without them. `mixed`: the key
    `mixed_precision`; `zero`: DeepSpeed's configuration, if there is one; `steps`: microbatches
    of a step in the launcher's file; `checkpoints`: what asks FSDP to checkpoint layers. `is_refused`: what the
    file asks for is not served, and nothing else is worth reading.
    """

    shards: Shards
    mixed: Taken[Any] | None = None
    zero: Zero | None = None
    steps: Taken[int] | None = None
    checkpoints: list[Taken[bool]] = field(default_factory=list)
    is_refused: bool = False
    attention: Shared | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """Attention of ranks that share sequences: its `name`, and the key that says so, None for the default."""

    name: str
    said: Taken[str] | None


def read_processes(reader: Reader, draft: Draft) -> Draft:
    """The draft with the number of GPUs that the file states, which must be that of `--gpus`: [Note: processes]."""
    count, machines, answer = reader.integer("num_processes"), reader.integer("num_machines"), draft.answers.gpus
    draft.idle(machines, "num_processes counts the ranks of all machines")
    _check_visible(reader, draft, count, machines)
    if count is None or count.value < 1:
        draft.idle(count, "the number of GPUs is not said")
        return draft
    if str(reader.look("distributed_type")).upper() in _ALONE:
        draft.idle(count, "distributed_type NO starts one rank")
        return replace(draft, answers=replace(draft.answers, gpus=answer or Answer(1, count.where)))
    draft.use(count, why="the number of ranks")
    if machines is not None and machines.value > 0 and count.value % machines.value:
        draft.fail(count.where, f"num_processes {count.value} is no multiple of num_machines {machines.value}")
    if answer is not None and answer.value != count.value:
        draft.fail(answer.where, f"the launcher starts {count.value} ranks: num_processes ({count.where})")
    return replace(draft, answers=replace(draft.answers, gpus=answer or Answer(count.value, count.where)))


def _check_visible(reader: Reader, draft: Draft, count: Taken[int] | None, machines: Taken[int] | None) -> None:
    """Compares `gpu_ids`, which become CUDA_VISIBLE_DEVICES, with the ranks of a machine: each takes a GPU of its own.

    accelerate 1.15.0 `utils/launch.py` prepare_multi_gpu_env.
    """
    named = reader.take("gpu_ids")
    draft.idle(named, "which GPUs of a machine ranks take")
    if named is None or count is None or str(named.value) == "all":
        return
    seen, each = len(str(named.value).split(",")), count.value // max(machines.value if machines else 1, 1)
    if seen < each:
        draft.fail(named.where, f"gpu_ids {named.value} leaves {seen} GPUs to the {each} ranks of a machine")


def read_launch(reader: Reader, draft: Draft, file: Reader | None) -> Launch:
    """Reads the launcher's YAML, but for `num_processes`. `file`: the DeepSpeed JSON that the user names beside it."""
    kind = reader.text("distributed_type")
    name = kind.value.upper() if kind else "NO"
    read_rows(reader, draft, _ROWS)
    mixed, older = reader.take("mixed_precision"), reader.flag("fp16")
    if mixed is not None or older is None:
        draft.idle(older, "mixed_precision goes before it")
    else:
        mixed = Taken("fp16" if older.value else "no", older.path, older.where, older.reader)
    if mixed is not None and str(mixed.value).lower() == "fp8":
        draft.refuse(mixed, "products in 8 bits under accelerate")
        mixed = None
    if name not in (*_COPIES, "FSDP", "DEEPSPEED"):
        draft.refuse(kind, f"distributed_type {name}", always=True)
        draft.use(mixed, why="of a launch that is refused")
        draft.idle(reader.matching("*"), "of a launch that is refused")
        return Launch(Shards.NONE, is_refused=True)
    if name not in _COPIES:
        draft.use(kind, why="says whose block is read")
    shared = _read_shared(reader, draft) if name == "DEEPSPEED" else None
    _read_degrees(reader, draft, cuts=name == "FSDP", shares=shared is not None)
    for block, owner in (("fsdp_config", "FSDP"), ("deepspeed_config", "DEEPSPEED"), ("megatron_lm_config", "")):
        if owner != name:
            draft.idle(reader.matching(block, f"{block}.*"), f"distributed_type is {name}")
    if name in _COPIES:
        draft.infer("framework", "ddp", f"distributed_type {name}", kind)
        copy_to_ranks(draft, one=name in _ALONE)
        return Launch(Shards.NONE, mixed)
    if name == "FSDP":
        return _read_fsdp(reader, draft, mixed)
    return replace(_read_zero(reader, draft, mixed, file), attention=shared)


def _read_shared(reader: Reader, draft: Draft) -> Shared | None:
    """Reads ranks that share sequences by DeepSpeed's exchanges (`sp_size`), and writes `mesh.cp`.

    The product of the data-parallel degrees must be the other ranks: 1.15.0 accelerator.py:2360 takes it for the batch,
    which DeepSpeed compares (`runtime/config.py`, _batch_assertion).
    """
    at = "parallelism_config.parallelism_config_"
    degree = reader.integer(f"{at}sp_size")
    if degree is None or degree.value <= 1:
        draft.idle(degree, "one rank")
        return None
    draft.infer("mesh.cp", degree.value, "ranks that share sequences (Ulysses)", degree,
                source="accelerate 1.15.0 accelerator.py:2424")
    sizes = [reader.integer(f"{at}{name}_size") for name in ("dp_replicate", "dp_shard")]
    draft.use(*sizes, why="their product is the number of data-parallel ranks")
    copies, gpus = prod(one.value for one in sizes if one is not None), draft.answers.gpus
    if gpus is not None and copies * degree.value != gpus.value:
        draft.fail(degree.where, f"{at}dp_replicate_size x dp_shard_size is {copies}, and {gpus.value} ranks over "
                                 f"sp_size {degree.value} are another number: DeepSpeed's batch is then wrong, and it "
                                 "stops (accelerate 1.15.0 accelerator.py:2360)")
    draft.idle(reader.matching(f"{at}sp_backend", f"{at}sp_seq_length", f"{at}sp_seq_length_is_variable"),
               "DeepSpeed's is the only one, and lengths are the recipe's")
    named = reader.text(f"{at}sp_attn_implementation")
    name = named.value if named else "sdpa"
    if name not in ("sdpa", "flash_attention_2"):
        draft.refuse(named, f"shared sequences around attention by {name}")
    else:
        draft.use(named, why="must be the attention of the model")
    return Shared(name, named)


def copy_to_ranks(draft: Draft, *, one: bool = False) -> None:
    """Writes the copies of the whole model, one on each GPU. `one`: there is one rank, whatever is started."""
    gpus = Answer(1, draft.path) if one and draft.answers.gpus is None else draft.answers.gpus
    if one and gpus is not None and gpus.value > 1:
        draft.fail(gpus.where, f"{gpus.value} GPUs, but distributed_type NO starts one rank")
    if gpus is None:
        draft.ask("mesh.dp_replicate", "--gpus N", "number of GPUs")
    else:
        share_out(draft, gpus, {}, "mesh.dp_replicate", "a copy on each GPU", "torch DDP")


def _read_degrees(reader: Reader, draft: Draft, *, cuts: bool, shares: bool) -> None:
    """Refuses degrees that transformers' models get beside data parallelism.

    `cuts`: FSDP reads those of its shards, and that of ranks that share a sequence. `shares`: those of ranks that share
    sequences have been read.
    """
    at = "parallelism_config.parallelism_config_"
    for name in ("tp", "sp") if cuts else ("tp", "cp") if shares else ("tp", "cp", "sp"):
        degree = reader.integer(f"{at}{name}_size")
        if degree is not None and degree.value > 1:
            draft.refuse(degree, f"{name} of accelerate's parallelism_config: without it the answer would be of "
                         f"another layout, so --loose does not leave it out{_STOPS * (name == 'tp' and cuts)}",
                         always=True)
        else:
            draft.idle(degree, "one rank")
    draft.idle(reader.matching(f"{at}sp_*", f"{at}tp_*"), "settings of a degree of one rank")
    if not cuts:
        draft.idle(reader.matching(f"{at}cp_*"), "settings of a degree of one rank")
    if not (cuts or shares):
        shards = reader.integer(f"{at}dp_shard_size")
        if shards is not None and shards.value > 1:
            draft.refuse(shards, "shards without FSDP")
        else:
            draft.idle(shards, "one rank")
        copies = reader.integer(f"{at}dp_replicate_size")
        draft.idle(copies, "must be the number of ranks, each of which has a copy")
        _expect_all(draft, copies.value if copies else 1, copies)


def _expect_all(draft: Draft, product: int, by: Taken[int] | None) -> None:
    """Compares the product of the degrees, where one is said, with the ranks: 1.15.0 _validate_accelerator."""
    gpus = draft.answers.gpus
    if by is not None and gpus is not None and product not in (1, gpus.value):
        draft.fail(by.where, f"{by.key}: ParallelismConfig is of {product} ranks, and {gpus.value} are started: an "
                             "error of accelerate 1.15.0 (parallelism_config.py)")


def _read_fsdp(reader: Reader, draft: Draft, mixed: Taken[Any] | None) -> Launch:
    version = reader.integer("fsdp_config.fsdp_version") or reader.integer("fsdp_config.version")
    if version is not None and version.value not in (1, 2):
        draft.fail(version.where, f"{version.key}: expected 1 or 2, got {version.value}")
    second = version is not None and version.value > 1
    if version is not None:
        draft.infer("framework", "fsdp2" if second else "fsdp1", "version of FSDP", version)
    else:
        draft.default("framework", "fsdp1", "accelerate 1.15.0", "commands/launch.py --fsdp_version")
    checkpoints = read_plugin(reader, draft, _PLUGIN, second=second)
    at = "parallelism_config.parallelism_config_"
    sizes = [reader.integer(f"{at}{name}_size") for name in ("dp_replicate", "dp_shard", "cp")]
    said = next((one for one in sizes if one is not None and one.value > 1), None)
    if said is not None and not second:
        draft.fail(said.where, f"{said.key}: accelerate 1.15.0 has it with version 2 of FSDP alone")
    if said is not None and not any(draft.refuses(f"{at}{name}_size") for name in ("tp", "sp")):
        _expect_all(draft, prod(one.value for one in sizes if one is not None), said)
        copies, shards, ring = (1 if one is None else one.value for one in sizes)
        if copies > 1 and shards == 1 and ring > 1:
            draft.fail(said.where, "Tensor/Context parallelism (tp/cp_size > 1) cannot be used with pure data "
                       "parallelism (dp_replicate_size > 1 and dp_shard_size == 1): accelerate 1.15.0 "
                       "parallelism_config.py:336")
        elif shards == ring == 1:
            draft.fail(said.where, f"{said.key}: without {at}dp_shard_size above 1 FSDP has no ranks to cut over")
    shared = _read_context(reader, draft, sizes[2], at)
    _read_unread(reader, draft, "fsdp_config")
    share_ranks(reader, draft, f"{at}dp_replicate_size", f"{at}dp_shard_size", shared)
    return Launch(Shards.EACH if second else Shards.FLAT, mixed, checkpoints=checkpoints)


def _read_context(reader: Reader, draft: Draft, degree: Taken[int] | None, at: str) -> Taken[int] | None:
    """Writes the ranks that share a sequence, and returns their degree; None for one rank.

    torch's ring is the one backend, and takes SDPA (1.15.0 parallelism_config.py __post_init__).
    """
    if degree is None or degree.value == 1:
        draft.idle(degree, "one rank")
        draft.idle(reader.matching(f"{at}cp_*"), "settings of a degree of one rank")
        return None
    draft.put("mesh.cp", degree)
    attend_by_ring(draft, degree)
    way = reader.text(f"{at}cp_comm_strategy")
    if way is not None and way.value == "alltoall":
        draft.refuse(way, "keys and values that pass from rank to rank (served: allgather)")
    else:
        draft.use(way, why="keys and values are gathered")
    draft.idle(reader.matching(f"{at}cp_*"), "the one backend, torch's")
    return degree


def _read_zero(reader: Reader, draft: Draft, mixed: Taken[Any] | None, file: Reader | None) -> Launch:
    """DeepSpeed by the few keys of the plugin, or by a file that it names, which then says all of it."""
    named = reader.text("deepspeed_config.deepspeed_config_file")
    read_rows(reader, draft, _OF_ZERO)
    if named is not None or file is not None:
        draft.use(named, why="names the file that stands beside this one")
        draft.idle(reader.matching("deepspeed_config.*"), "the file that is named says all of it")
        if file is None:
            draft.fail(named.where if named else draft.path,
                       "not yet: DeepSpeed's configuration stands in another file"
                       f"{f', {shorten(named.value)}' if named else ''}: name it too, by --with")
            return Launch(Shards.ZERO, mixed)
        check_named(draft, named, file)
        zero = read_deepspeed(file, draft)
        if zero.shards is Shards.ZERO:
            shard_over_ranks(draft, whole=zero.is_whole)
        return Launch(zero.shards, mixed, zero, is_refused=zero.shards is not Shards.ZERO)
    stage = reader.integer("deepspeed_config.zero_stage")
    steps = reader.take("deepspeed_config.gradient_accumulation_steps")
    if stage is None:
        draft.default("framework", "zero2", "accelerate 1.15.0", _STAGE)
    elif stage.value in (0, 1, 2, 3):
        draft.infer("framework", f"zero{stage.value}", "stage of ZeRO", stage)
    else:
        draft.refuse(stage, f"stage {stage.value} of ZeRO", always=True)
    for name, part in (("optimizer", "optimizer"), ("param", "params")):
        _read_device(reader, draft, name, part)
    shard_over_ranks(draft, whole=stage is not None and stage.value == 0)
    _read_unread(reader, draft, "deepspeed_config")
    if steps is not None and not (isinstance(steps.value, int) and steps.value > 0):
        draft.idle(steps, "the trainer's")
        steps = None
    return Launch(Shards.ZERO, mixed, None, steps)


def _read_unread(reader: Reader, draft: Draft, block: str) -> None:
    """Lists words of a block that are no options of `accelerate launch`, which hands them on to no one.

    1.15.0 commands/launch.py _validate_launch_command sets each as an argument, and utils/launch.py asks for its own.
    An unknown word in the command itself is an error there, and stays one.
    """
    typed = {one.path for one in draft.answers.options}
    for one in (one for one in reader.untouched() if one.path[0] == block and one.path not in typed):
        near = reader.near(one)
        draft.unmodelled(reader.matching(one.key), "no option of accelerate, which hands on to no one what it does "
                         "not know (1.15.0 commands/launch.py _validate_launch_command)" + (
            f": did you mean {near!r}?" if near else ": deepspeed_config_file names a JSON of DeepSpeed's own" if
            block == "deepspeed_config" else ""))


def _read_device(reader: Reader, draft: Draft, name: str, part: str) -> None:
    device = reader.text(f"deepspeed_config.offload_{name}_device")
    path = reader.text(f"deepspeed_config.offload_{name}_nvme_path")
    if device is None or device.value == "none":
        draft.idle(device, "the default")
        draft.idle(path, "nothing is offloaded")
    elif device.value in ("cpu", "nvme"):
        draft.put(f"training.offload.{part}", device, "host" if device.value == "cpu" else "nvme")
        draft.idle(path, "where the drives are mounted")
    else:
        draft.refuse(device, f"offload to {device.value}")
        draft.idle(path, "nothing is offloaded")
