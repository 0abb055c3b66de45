"""DeepSpeed's configuration, in a JSON of its own or a block of a recipe: every key of it, and what `auto` becomes.

Sizes that are `auto` follow from the hidden size and are left to the simulation, which cites transformers 5.23.0
(`integrations/deepspeed.py`, trainer_config_finalize). Batch sizes and number formats that are `auto` are those of the
trainer (trainer_config_process); numbers beside them must agree with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.deepspeed_keys import (
    FIELDS,
    ZERO_FIELDS,
    check_fields,
    of_matrices,
    read_experts,
    read_numbers,
    read_unread,
    refuse_blocks,
    switches,
    without_effect,
)
from simcore.recipes.huggingface.optimizers import holds_states_on_host, read_clipping, read_own
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.zero import AUTO, Zero, number_or_auto, read_whole
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Row, Says, read_rows
from simcore.recipes.world import share_out

__all__ = ["check_named", "read_deepspeed", "shard_over_ranks"]

_SIZES: Final = ("reduce_bucket_size", "allgather_bucket_size")
_SIZES_OF_3: Final = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters",
                      "stage3_max_reuse_distance", "sub_group_size")
_MORE_OF_3: Final = ("zero_hpz_partition_size", "mics_shard_size", "mics_hierarchical_params_gather",
                     "module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential",
                     "model_persistence_threshold", "gather_16bit_weights_on_model_save", "memory_efficient_linear")
_AT_0: Final = "deepspeed 0.19.6 runtime/engine.py zero_use_cpu_optimizer, ops/adam/cpu_adam.py; zero/config.py"
_FILLED: Final = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
"""Sizes that transformers fills in where they are `auto`."""
_STAGE_3: Final = "stage3_"
_SHARES: Final = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_DEVICES: Final = {"cpu": "host", "nvme": "nvme"}
_FORMATS: Final = "transformers 5.23.0 integrations/deepspeed.py trainer_config_process"
_ENGINE: Final = "runtime/engine.py _configure_basic_optimizer"
_OPTIMIZERS: Final = {"adamw": "adamw", "adam": "adamw", "lion": "lion", "adagrad": "adagrad", "muon": "muon"}
"""DeepSpeed's Adam decouples weight decay unless `adam_w_mode` is off (`ops/adam/fused_adam.py`)."""


_OFF_BY_NULL: Final = ("bf16", "aio", "zero_optimization.offload_param", "zero_optimization.offload_optimizer")
"""Blocks that null leaves out; null in place of another one is an error of DeepSpeed 0.19.6 (`runtime/config.py`)."""


def read_deepspeed(reader: Reader, draft: Draft, at: str = "", *, is_alone: bool = False) -> Zero:
    """Reads a configuration whose keys stand under `at`, "" or a dotted key with a full stop behind it.

    `is_alone`: no Trainer is beside it, nor accelerate, which load a model in parts at stage 3.
    """
    zero = f"{at}zero_optimization."
    for block in (block for block in _OFF_BY_NULL if not reader.has(f"{at}{block}")):
        reader.take(f"{at}{block}")  # null says nothing
    stage = reader.integer(f"{zero}stage")
    if stage is not None and stage.value not in (0, 1, 2, 3):
        draft.refuse(stage, f"stage {stage.value} of ZeRO", always=True)
        draft.idle(reader.matching(*([f"{at}*"] if at else ["*"])), "of a configuration that is refused")
        return Zero(Shards.NONE)
    number = _write_stage(draft, stage)
    check_fields(reader, draft, at)
    if number == 0:
        _read_whole_stage(reader, draft, zero)
    else:
        _read_sizes(reader, draft, zero, number)
        for name, part in (("offload_optimizer", "optimizer"), ("offload_param", "params")):
            _read_offload(reader, draft, f"{zero}{name}.", name, part)
    if "nvme" in draft.values.get("training", {}).get("offload", {}).values():
        draft.unmodelled(reader.matching(f"{at}aio.*"), "how drives are read: their rate is the machine's")
    _read_scaling(reader, draft, at, number)
    forced = reader.flag(f"{at}zero_force_ds_cpu_optimizer") if holds_states_on_host(draft) else None
    draft.use(forced, why="whether the trainer's optimizer stays where states are on the host")
    read_rows(reader, draft, [*switches(at, zero, number), *without_effect(at, zero)])
    refuse_blocks(reader, draft, at, zero)
    _read_shared(reader, draft, at, number)
    _read_matrices(reader, draft, f"{at}tensor_parallel.", in_parts=number == 3 and not is_alone)
    has_optimizer = _read_optimizer(reader, draft, f"{at}optimizer.", whole=number == 0)
    read_experts(reader, draft, at, is_alone=is_alone, has_optimizer=has_optimizer)
    read_clipping(reader, draft, f"{at}gradient_clipping")
    keeps = forced is not None and not forced.value and not has_optimizer
    compute, formats = _read_formats(reader, draft, at)
    autos: dict[str, Taken[Any]] = {}
    micro, steps = (number_or_auto(reader, f"{at}{name}", autos) for name in _SHARES)
    whole = read_whole(reader, draft, at, micro, steps, by_mpu=is_alone)
    read_unread(reader, draft, at)
    return Zero(Shards.ZERO, compute, formats, micro, steps, whole, has_optimizer, number == 0, keeps, autos)


def _read_shared(reader: Reader, draft: Draft, at: str, stage: int) -> None:
    """Reads the format of reductions among ranks that share sequences, and their number, which the launcher decides.

    Stages 1 and 2 reduce in fp32 in any case.
    """
    size, shared = reader.integer(f"{at}sequence_parallel_size"), draft.values.get("mesh", {}).get("cp", 1)
    if size is None or size.value in (0, 1) or size.value == shared:
        draft.idle(size, "the launcher's" if shared > 1 else "one rank")
    else:
        draft.refuse(size, f"{size.value} ranks that share sequences, without accelerate's sp_size that starts them")
    said = reader.text(f"{at}seq_parallel_communication_data_type")
    if said is None or shared == 1:
        draft.idle(said, "no ranks share sequences")
    elif stage in (1, 2) or said.value == "fp32":
        draft.idle(said, "fp32 in any case (0.19.6 runtime/zero/stage_1_and_2.py:1847)" if stage in (1, 2)
                   else "the default")
    else:
        draft.put("framework_options.seq_parallel_communication_data_type", said)


def _read_matrices(reader: Reader, draft: Draft, block: str, *, in_parts: bool) -> None:
    """Reads the ranks that share matrices (AutoTP), and writes `mesh.tp`.

    `in_parts`: the model is loaded so, by from_pretrained under stage 3. Then AutoTP finds no matrix (0.19.6
    `module_inject/auto_tp.py` _replace_module asks for weights of two dimensions), and says nothing.
    """
    size = reader.integer(f"{block}autotp_size")
    if size is None or size.value <= 1:
        draft.idle(size, "one rank")
        draft.idle(reader.matching(f"{block}*"), "no ranks split a tensor")
        return
    if in_parts:
        draft.refuse(size, f"{size.value} ranks that share matrices of a model that from_pretrained has loaded in the "
                     "parts of stage 3: AutoTP then cuts none, and says nothing (served: stages 0 to 2)", always=True)
        draft.idle(reader.matching(f"{block}*"), "details of what is refused")
        return
    draft.put("mesh.tp", size)
    again = reader.integer(f"{block}tp.tp_size")
    draft.use(again, why="must be autotp_size, or 1")
    if again is not None and again.value not in (1, size.value):
        draft.fail(again.where, f"{again.key} ({again.value}) does not match {size.key} ({size.value}): deepspeed "
                                "0.19.6 runtime/engine.py _apply_autotp_partitioning")
    if plan := reader.matching(f"{block}partition_config", f"{block}partition_config.*"):
        draft.refuse(plan[0], "another plan of matrices than transformers'", always=True)
        draft.idle(plan[1:], "details of what is refused")
    read_rows(reader, draft, of_matrices(block))


def _write_stage(draft: Draft, stage: Taken[int] | None) -> int:
    """Writes the stage, 0 where it is not said (0.19.6 `runtime/zero/config.py`), and returns it."""
    if stage is None:
        draft.default("framework", "zero0", "deepspeed 0.19.6", "runtime/zero/config.py: stage")
        return 0
    draft.infer("framework", f"zero{stage.value}", "stage of ZeRO", stage)
    return stage.value


def _read_whole_stage(reader: Reader, draft: Draft, zero: str) -> None:
    """Reads what a stage above 0 alone uses; offload is an error (0.19.6 `runtime/engine.py`, `zero/config.py`)."""
    for name, why in (("optimizer", "states of whole masters on the device get an Adam for CPUs, which stops at them"),
                      ("param", "parameters are offloaded at stage 3 alone")):
        device = reader.text(f"{zero}offload_{name}.device")
        if device is None or device.value == "none":
            draft.idle(device, "the default")
        else:
            draft.use(device)
            draft.fail(device.where, f"{device.key} {device.value} at stage 0: {why} ({_AT_0})")
    draft.idle(reader.matching(*(f"{zero}{name}" for name in ZERO_FIELDS.split())), "stage 0 reads it nowhere")


def check_named(draft: Draft, named: Taken[str] | None, file: Reader) -> None:
    """Compares the name of DeepSpeed's file in the recipe with that of the file which stands beside it."""
    path = file.document.path
    if named is not None and Path(named.value).name != Path(path).name:
        draft.fail(named.where, f"{named.key} names {named.value}, and {path} stands beside the recipe")


def _read_sizes(reader: Reader, draft: Draft, zero: str, stage: int) -> None:
    for name in (*_SIZES, *(_SIZES_OF_3 if stage == 3 else ())):
        key = _spelling(reader, zero, name)
        if reader.look(key) != AUTO:
            draft.put(f"framework_options.{name}", reader.integer(key))
        elif name in _FILLED and key.endswith(name):
            draft.put(f"framework_options.{name}", reader.take(key), AUTO, _FORMATS.replace("process", "finalize"))
        elif (said := reader.take(key)) is not None:
            draft.use(said)
            draft.fail(said.where, f"{key}: transformers fills in no auto for it (served: {', '.join(_FILLED)})")
    if stage != 3:
        names = (*_SIZES_OF_3, *(name.removeprefix(_STAGE_3) for name in _SIZES_OF_3), f"{_STAGE_3}*")
        draft.idle(reader.matching(*(f"{zero}{name}" for name in (*names, *_MORE_OF_3))), "keys of stage 3")
        return
    for name in ("zero_hpz_partition_size", "mics_shard_size"):
        draft.put(f"framework_options.{name}", reader.integer(f"{zero}{name}"))


def _read_scaling(reader: Reader, draft: Draft, at: str, stage: int) -> None:
    """Reads how gradients are divided: beside reduce_scatter alone by the ranks, after it (`stage_1_and_2.py`:308).

    Stage 3 takes a factor, by which gradients are multiplied once more; stage 0 divides once or twice.
    """
    before, factor = reader.flag(f"{at}prescale_gradients"), reader.number(f"{at}gradient_predivide_factor")
    if before is not None and before.value and stage > 0:
        draft.use(before)
        draft.fail(before.where, f"{before.key}: beside reduce_scatter an error of DeepSpeed 0.19.6 "
                                 "(zero/stage_1_and_2.py:313, stage3.py:390)")
    else:
        draft.idle(before, "the default" if stage > 0 else "when gradients are divided")
    if factor is None or factor.value == 1.0:
        draft.idle(factor, "the default")
    elif stage in (0, 3) or reader.look(f"{at}gradient_allreduce_op") == "sum":
        draft.unmodelled(factor, "gradients are multiplied by it before they are reduced: not timed")
    else:
        draft.use(factor)
        draft.fail(factor.where, f"{factor.key}: beside reduce_scatter an error of DeepSpeed 0.19.6 "
                                 "(zero/stage_1_and_2.py:312)")


def _spelling(reader: Reader, zero: str, name: str) -> str:
    """Key of an option, which may stand without `stage3_` (deepspeed 0.19.6 `runtime/config_utils.py`: by name too)."""
    plain = f"{zero}{name.removeprefix(_STAGE_3)}"
    return plain if reader.look(f"{zero}{name}") is None and reader.has(plain) else f"{zero}{name}"


def _read_offload(reader: Reader, draft: Draft, at: str, block: str, part: str) -> None:
    """Writes what waits on the host or its drives; the block's details are options of the simulation where it is on."""
    device = reader.text(f"{at}device")
    if device is None or device.value == "none":
        draft.idle(device, "the default")
        draft.idle(reader.matching(f"{at}*"), "nothing is offloaded")
        return
    if device.value not in _DEVICES:
        draft.refuse(device, f"offload to {device.value}")
        draft.idle(reader.matching(f"{at}*"), "details of what is refused")
        return
    draft.put(f"training.offload.{part}", device, _DEVICES[device.value])
    details = {"pin_memory": reader.flag(f"{at}pin_memory")}
    of_drives: dict[str, Taken[Any] | None] = {
        "nvme_path": reader.text(f"{at}nvme_path"), "buffer_count": reader.integer(f"{at}buffer_count"),
        **{name: reader.flag(f"{at}{name}") for name in ("fast_init", "pipeline_read", "pipeline_write")
           if name in FIELDS[f"zero_optimization.{block}"]}}
    if device.value == "nvme":
        details.update(of_drives)
    else:
        draft.idle([one for one in of_drives.values() if one is not None], "about NVMe alone")
    if given := {name: one.value for name, one in details.items() if one is not None}:
        draft.infer(f"framework_options.{block}", {"device": device.value, **given}, f"details of {block}", device,
                    *details.values())
    read_rows(reader, draft, [
        Says(f"{at}ratio", "", "number", idle={1.0: "the default"}, words={None: None}, what="a part of the states:"),
        Off(f"{at}super_offload", "SuperOffload"),
        Idle((f"{at}buffer_size", f"{at}max_in_cpu"), "about NVMe alone"),
        Idle((f"{at}cpuadam_cores_perc",), "cores of the host")])


def _read_optimizer(reader: Reader, draft: Draft, at: str, *, whole: bool) -> bool:
    """True if the configuration names DeepSpeed's own optimizer, which then takes the place of the trainer's."""
    kind = reader.text(f"{at}type")
    plain, torchs = reader.flag(f"{at}params.adam_w_mode"), reader.flag(f"{at}params.torch_adam")
    read_numbers(reader, draft, at, kind)
    legacy = reader.flag(f"{at}legacy_fusion")
    if whole and legacy is not None and legacy.value:
        draft.use(legacy)
        draft.fail(legacy.where, f"{legacy.key}: FusedAdam stops at it (deepspeed 0.19.6 ops/adam/fused_adam.py step)")
    else:
        draft.idle(legacy, "read at stage 0 alone")
    if kind is None:
        draft.idle([one for one in (plain, torchs) if one is not None], "no optimizer is named")
        return False
    if kind.value.lower() not in _OPTIMIZERS:
        draft.refuse(kind, f"the optimizer {kind.value} of DeepSpeed")
    else:
        draft.put("training.optimizer.name", kind, _OPTIMIZERS[kind.value.lower()])
    if read_own(draft, kind, plain, torchs, on_host=holds_states_on_host(draft)):
        return True
    draft.idle(plain, "when weight decay is taken: the same states")
    _read_kernel(draft, torchs)
    if whole:
        draft.infer("framework_options.torch_adam", torchs is not None and torchs.value,
                    "which Adam decides on masters", kind, torchs, source=_ENGINE)
    return True


def _read_kernel(draft: Draft, torchs: Taken[bool] | None) -> None:
    """Writes torch's loop over lists of tensors for `torch_adam`; else the kernel is DeepSpeed's FusedAdam.

    Rule: deepspeed 0.19.6 `runtime/engine.py` _configure_basic_optimizer. States on the host have Adam of DeepSpeed for
    CPUs.
    """
    key, on_host = "training.optimizer.implementation", ("training", "offload", "optimizer") in draft.origins
    if torchs is not None and torchs.value:
        draft.put(key, torchs, "for_loop" if on_host else "foreach", _ENGINE)  # torch's own default on a CPU, on a GPU
        return
    draft.idle(torchs, "the default")
    if not on_host:
        draft.default(key, "fused", "deepspeed 0.19.6", _ENGINE)


def _read_formats(reader: Reader, draft: Draft, at: str) -> tuple[str, tuple[Taken[Any], ...]]:
    """(format of products, keys that leave it to the trainer); "" and no keys if neither block is there."""
    found, names = [], []
    older = "" if reader.has(f"{at}bf16") or not reader.has(f"{at}bfloat16") else "bfloat16"
    for name in (older or "bf16", "fp16"):
        switch = reader.take(f"{at}{name}.enabled")
        checked = reader.flag(f"{at}{name}.check_grad_overflow")
        if checked is not None and not checked.value:
            draft.unmodelled(checked, "gradients are looked through as by default")
        else:
            draft.idle(checked, "the default")
        read_rows(reader, draft, _of_format(f"{at}{name}."))
        if switch is None:
            continue
        if str(switch.value).lower() in ("true", "1", "yes", "on"):
            names.append(_SHORT.get(name, name))
            draft.infer("training.precision.compute", names[-1], f"{switch.key} is on", switch)
        elif switch.value == AUTO:
            found.append(switch)
        else:
            draft.idle(switch, "off")
    if len(names) > 1:
        draft.fail(reader.document.path, f"{at}bf16 and {at}fp16 are both enabled")
    draft.idle([] if older else reader.matching(f"{at}bfloat16.*"), f"{at}bf16 goes before it")
    said = reader.text(f"{at}data_types.param_dtype")
    if said is not None and names and _TYPES.get(said.value) != names[0]:
        draft.use(said)
        draft.fail(said.where, f"{said.key} {said.value} conflicts with {names[0]}, which is enabled (deepspeed 0.19.6 "
                               "runtime/engine.py:1598)")
    else:
        draft.idle(said, "must be the format that is enabled")
    return (names[0] if names else ""), tuple(found)


_TYPES: Final = {**dict.fromkeys(("fp16", "torch.float16", "float16", "half"), "fp16"),
                 **dict.fromkeys(("bf16", "torch.bfloat16", "bfloat16"), "bf16")}
_SHORT: Final = {"bfloat16": "bf16"}  # an older name of a block, read where the newer is missing


def _of_format(at: str) -> list[Row]:
    """Rows of keys of a block of 16 bits (deepspeed 0.19.6 `runtime/precision_config.py`), but for its switch."""
    return [
        *(Off(f"{at}{name}", what) for name, what in (
            ("bf16_master_weights_and_grads", "masters and gradients in 16 bits"),
            ("fp16_master_weights_and_grads", "masters and gradients in 16 bits"),
            ("bf16_optimizer_states", "states of the optimizer in 16 bits"))),
        Idle((f"{at}immediate_grad_update",), "about BF16_Optimizer, which no stage has"),
        Idle((f"{at}auto_cast",), "inputs are numbers of tokens"),
        Idle((f"{at}*",), "how the loss is scaled")]


def shard_over_ranks(draft: Draft, *, whole: bool = False) -> None:
    """Writes the ranks that ZeRO cuts over, all of them; with `whole` (stage 0) each has a copy.

    Where ranks share sequences (`mesh.cp`) or matrices (`mesh.tp`), it is the number of groups of them.
    """
    axis, rule = ("mesh.dp_replicate", "a copy on each GPU") if whole else ("mesh.dp_shard", "ZeRO cuts over all ranks")
    gpus, mesh = draft.answers.gpus, draft.values.get("mesh", {})
    if gpus is None:
        draft.ask(axis, "--gpus N", "number of GPUs")
        return
    size, what = mesh.get("cp", 1) * mesh.get("tp", 1), "matrices" if "tp" in mesh else "sequences"
    if size == 1:
        share_out(draft, gpus, {}, axis, rule, "DeepSpeed's ZeRO")
    elif gpus.value % size == 0:
        draft.infer(axis, gpus.value // size, f"{rule}: {size} of them share {what}", source="DeepSpeed's ZeRO",
                    where=gpus.where)
    elif "tp" in mesh:
        draft.fail(gpus.where, f"{gpus.value} GPUs are no multiple of {size}, which share {what} (tensor_parallel."
                               "autotp_size)")
