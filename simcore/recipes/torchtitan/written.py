"""Writes scenarios as job configurations of torchtitan 0.2.2. Data and files of the tokenizer are stand-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from simcore.models.graph import model_config
from simcore.recipes.huggingface.written import OFFLOADED, is_moved, write_given
from simcore.recipes.outline import Outline
from simcore.recipes.recipe_writer import Job, RecipeWriter, commented
from simcore.recipes.rows import write_rows
from simcore.recipes.torchtitan.flavors import FLAVORS
from simcore.recipes.torchtitan.parallelism import DEGREES, FSDP_ROW, SCHEDULES
from simcore.recipes.torchtitan.step import CHECKPOINT_ROWS, FORMAT_NAMES, OPTIMIZER_ROWS

__all__ = ["WRITER"]

_OPTIONS: Final = "framework_options."
_FLOAT8: Final = "quantize.linear.float8"
_ITS_OWN: Final = {"wrap": "separate_embedding_head", "set_last_reshard": True, "sdpa_backend": "cudnn",
                   "return_outputs": False, "sync_gradients": "every"}
"""Options that no key of a job configuration says, as release 0.2.2 has them."""
_NAMES_OF_SCHEDULES: Final = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved1f1b": "Interleaved1F1B",
                              "interleavedzerobubble": "InterleavedZeroBubble", "zbvzerobubble": "ZBVZeroBubble"}
"""Schedules as torch spells them (2.13 `distributed/pipelining/schedules.py`)."""


def _write(outline: Outline) -> None:
    _write_model(outline)
    _write_batches(outline)
    _write_formats(outline)
    _write_parallelism(outline)
    _write_checkpoints(outline)
    _write_compile(outline)
    _write_files(outline)
    for key in ("name", "implementation"):
        outline.value(f"training.optimizer.{key}")
    write_rows(outline, OPTIMIZER_ROWS)
    for name, usual in _ITS_OWN.items():
        if outline.value(f"{_OPTIONS}{name}") == usual:
            outline.as_without(f"{_OPTIONS}{name}")


def _write_model(outline: Outline) -> None:
    """Writes the flavor that has the model's sizes."""
    fields = outline.settled.fields
    found = [(name, word) for name, flavors in FLAVORS.items() for word, flavor in flavors.items()
             if fields.get("model_type") == _type_of(flavor.preset)
             and all(fields.get(key) == value for key, value in flavor.sizes.items())]
    outline.said.add("implementation")
    kernels = {FLAVORS[name][word].attention for name, word in found}
    kernel = outline.value(f"{_OPTIONS}attn") or "sdpa"
    if found and kernel not in kernels:
        outline.refuse("model", f"torchtitan's {found[0][1]} has {', '.join(sorted(kernels))} attention")
        return
    found = [(name, word) for name, word in found if FLAVORS[name][word].attention == kernel]
    if not found:
        outline.as_without(f"{_OPTIONS}attn")  # a flavor would say it
        outline.refuse("model", "no flavor of torchtitan 0.2.2 that is simulated has these sizes")
        return
    name, word = found[0]
    outline.put("model.name", name, "model")
    outline.put("model.flavor", word, "model")
    outline.put("model.hf_assets_path", "./assets/hf/your-tokenizer", stand_in=True)


def _type_of(preset: str) -> Any:
    return model_config(preset, None, "").get("model_type")


def _write_batches(outline: Outline) -> None:
    """Writes length and batches; with pipeline stages the local batch is that of all microbatches of a schedule."""
    whole, micro = outline.value("training.global_batch_size"), outline.value("training.micro_batch_size")
    ranks = outline.value("mesh.dp_shard") * outline.value("mesh.dp_replicate")
    stages = outline.value("mesh.pp") > 1
    outline.value("training.lengths")
    outline.put("training.dataset", "c4", stand_in=True)
    outline.put("training.seq_len", outline.value("training.seq_len"), "training.seq_len", "training.lengths")
    if whole % ranks:
        outline.refuse("training.global_batch_size", f"{whole} is no multiple of the {ranks} data-parallel ranks")
    outline.put("training.local_batch_size", whole // ranks if stages else micro, "training.micro_batch_size")
    if stages:
        outline.put("parallelism.pipeline_parallel_microbatch_size", micro, "training.micro_batch_size")
    elif whole != micro * ranks:
        outline.put("training.global_batch_size", whole, "training.global_batch_size")
    outline.said.add("training.global_batch_size")


def _write_formats(outline: Outline) -> None:
    words = {meaning: word for word, meaning in FORMAT_NAMES.items()}
    compute = outline.value("training.precision.compute")
    for key, said in (("dtype", "params"), ("mixed_precision_reduce", "grad_reduce")):
        value = outline.value(f"training.precision.{said}")
        if value in words:
            outline.put(f"training.{key}", words[value], f"training.precision.{said}")
    if compute == "fp8":
        outline.put("model.converters", [_FLOAT8], "training.precision.compute")
        outline.put(f"{_FLOAT8}.filter_fqns", ["output"], "training.precision.compute")
        write_given(outline, f"{_FLOAT8}.enable_fsdp_float8_all_gather", f"{_OPTIONS}fp8_all_gather")
        write_given(outline, f"{_FLOAT8}.recipe_name", f"{_OPTIONS}fp8_recipe")
    elif compute in words:
        outline.put("training.mixed_precision_param", words[compute], "training.precision.compute")
    else:
        outline.refuse("training.precision.compute", f"products in {compute}")
    if is_moved(outline):
        outline.put("training.enable_cpu_offload", True, *OFFLOADED)  # noqa: FBT003 - a value


def _write_parallelism(outline: Outline) -> None:
    outline.put("parallelism.data_parallel_shard_degree", outline.value("mesh.dp_shard"), "mesh.dp_shard")
    for axis, name in DEGREES.items():
        size = outline.value(f"mesh.{axis}")
        if size > 1:
            outline.put(f"parallelism.{name}", size, f"mesh.{axis}")
    for axis, name in (("ep", "expert_parallel"), ("etp", "expert_tensor_parallel")):
        size = outline.value(f"mesh.{axis}")
        if outline.value("mesh.ep") > 1:
            outline.put(f"parallelism.{name}_degree", size, f"mesh.{axis}")
    write_rows(outline, [FSDP_ROW])
    if outline.value("mesh.tp") > 1:
        write_given(outline, "parallelism.disable_loss_parallel", f"{_OPTIONS}disable_loss_parallel")
    if outline.value("mesh.pp") > 1:
        _write_stages(outline)


def _write_stages(outline: Outline) -> None:
    """Writes the schedule, and layers of a stage where a rank has more than the two that torchtitan gives it."""
    kind, each = (outline.value(f"training.pipeline.{key}") for key in ("schedule", "virtual_stages"))
    word = next((word for word, meaning in SCHEDULES.items() if meaning == (kind, each > 1)), None)
    if word is None:
        outline.refuse("training.pipeline.schedule", f"{kind} with {each} stages a rank")
        return
    outline.put("parallelism.pipeline_parallel_schedule", _NAMES_OF_SCHEDULES[word], "training.pipeline.schedule",
                "training.pipeline.virtual_stages")
    if each <= 2:
        return
    layers, stages = outline.settled.fields.get("num_hidden_layers", 0) + 2, outline.value("mesh.pp") * each
    fitting = [size for size in range(1, layers + 1) if -(-layers // size) == stages]
    if fitting:
        outline.put("parallelism.pipeline_parallel_layers_per_stage", fitting[0], "training.pipeline.virtual_stages")
    else:
        outline.refuse("training.pipeline.virtual_stages", f"no number of layers a stage makes {stages} stages")


def _write_checkpoints(outline: Outline) -> None:
    asked = outline.value("training.recompute")
    mode = asked.get("mode") if isinstance(asked, dict) else asked
    if mode == "per_op":
        outline.put("activation_checkpoint.mode", "selective", "training.recompute")
        outline.put("activation_checkpoint.selective_ac_option", "op", "training.recompute")
    elif mode == "every":
        outline.put("activation_checkpoint.mode", "selective", "training.recompute")
        outline.put("activation_checkpoint.selective_ac_option", str(asked.get("num_layers", 1)), "training.recompute")
    elif mode in ("none", "full"):
        outline.put("activation_checkpoint.mode", mode, "training.recompute")
    else:
        outline.refuse("training.recompute", "torchtitan recomputes layers, or what a list of operators does not keep")
    write_rows(outline, CHECKPOINT_ROWS)


def _write_compile(outline: Outline) -> None:
    parts = outline.given(f"{_OPTIONS}compile")
    if parts:
        outline.put("compile.enable", True, f"{_OPTIONS}compile")  # noqa: FBT003 - a value
        outline.put("compile.components", ["model", "loss"] if parts is True else [parts], f"{_OPTIONS}compile")


def _write_files(outline: Outline) -> None:
    """Writes the block `checkpoint`: files are written wherever checkpoints are on, and read if they are named."""
    load, save = (outline.value(f"checkpoint.{key}") for key in ("load", "save"))
    for key, value in (("load", load), ("save", save)):
        if value not in ("sharded", "none"):
            outline.refuse(f"checkpoint.{key}", "torchtitan reads and writes shards")
    if (load, save) == ("sharded", "none"):
        outline.refuse("checkpoint.save", "torchtitan writes files at the end of a run that may read them")
    if save == "sharded":
        outline.put("checkpoint.enable", True, "checkpoint.save")  # noqa: FBT003 - a value
        if load == "sharded":
            outline.put("checkpoint.initial_load_in_hf", True, "checkpoint.load")  # noqa: FBT003 - a value
    outline.said.update(("checkpoint.load", "checkpoint.save"))


# ---- files ----------------------------------------------------------------------------------------------------------
def _text(keys: Mapping[str, Any], job: Job) -> str:
    del job
    text = "\n".join("".join(f"{line}\n" for line in table) for table in _tables(keys, ""))
    return commented(text, {"dataset": "yours", "hf_assets_path": "yours: a tokenizer"})


def _tables(keys: Mapping[str, Any], path: str) -> Iterator[list[str]]:
    """Lines of each table of a TOML file, the outer ones first."""
    plain = {key: value for key, value in keys.items() if not isinstance(value, Mapping)}
    if plain:
        yield [f"[{path}]", *(f"{key} = {json.dumps(value)}" for key, value in plain.items())]
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from _tables(value, f"{path}.{key}".removeprefix("."))


def _launch(job: Job) -> str:
    return job.torchrun(f"-m torchtitan.train --job.config_file {job.file}")


WRITER: Final = RecipeWriter(".toml", ("fsdp2",), _write, _launch, _text)
