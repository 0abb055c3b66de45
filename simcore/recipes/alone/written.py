"""Writes scenarios as files about GPUs alone, and beside them the trainer's: a recipe of `trl sft`.

What such a file leaves open stands in the trainer's, so that the two together are the scenario.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.written import (
    FRAMEWORKS,
    OF_ZERO,
    check_trainer,
    shards_of,
    stage_of,
    write_given,
    write_plugin,
    write_zero,
    zero_options,
)
from simcore.recipes.outline import Outline
from simcore.recipes.recipe_writer import Job, RecipeWriter, commented, yaml_recipe
from simcore.recipes.trl.written import PROGRAM, trainer_text, write_trainer

__all__ = ["OF_ACCELERATE", "OF_DEEPSPEED"]

_TRAINER, _ZERO = "trainer", "zero"
"""Keys under which the outline has what goes into the files beside the first."""
_NAMED: Final = "deepspeed_config.deepspeed_config_file"
_SEVERAL: Final = "beside it machine_rank of each, and main_process_ip of the first"
_DEVICES: Final = {"host": "cpu", "nvme": "nvme"}


# ---- accelerate -----------------------------------------------------------------------------------------------------
def _write_launch(outline: Outline) -> None:
    shards, steps = shards_of(outline), write_trainer(outline, f"{_TRAINER}.")
    ranks = outline.value("mesh.dp_shard") * outline.value("mesh.dp_replicate")
    if shards is Shards.NONE:
        outline.put("distributed_type", "MULTI_GPU" if ranks > 1 else "NO", "framework", "mesh.dp_replicate")
        write_given(outline, f"{_TRAINER}.ddp_bucket_cap_mb", "framework_options.bucket_cap_mb")
    elif shards is not Shards.ZERO:
        outline.put("distributed_type", "FSDP", "framework", "mesh.dp_shard")
        write_plugin(outline, "fsdp_config.", trainer=False)
        _write_copies(outline)
    else:
        outline.put("distributed_type", "DEEPSPEED", "framework", "mesh.dp_shard", "mesh.dp_replicate")
        _write_zero_launch(outline, steps)
        _write_shared(outline)
    mixed = next((name for name in ("bf16", "fp16") if outline.puts.get(f"{_TRAINER}.{name}") and
                  outline.puts[f"{_TRAINER}.{name}"].value), "no")
    outline.put("mixed_precision", mixed)
    outline.put("num_processes", ranks * outline.value("mesh.cp") * outline.value("mesh.tp"))


def _write_copies(outline: Outline) -> None:
    """Writes copies of the shards, which accelerate has with version 2 alone (1.15.0 `commands/launch.py`)."""
    copies, shared = outline.value("mesh.dp_replicate"), outline.value("mesh.cp")
    if copies == shared == 1:
        return
    flat = shards_of(outline) is Shards.FLAT
    if flat and copies > 1:
        outline.refuse("mesh.dp_replicate", "accelerate has copies of shards with FSDP 2 alone")
    if shared > 1 and (flat or outline.value("framework_options.attn_implementation") not in (None, "sdpa")):
        outline.refuse("mesh.cp", "accelerate has ranks that share a sequence with FSDP 2 and SDPA alone")
    for axis in ("dp_replicate", "dp_shard", *["cp"] * (shared > 1)):
        outline.put(f"parallelism_config.parallelism_config_{axis}_size", outline.value(f"mesh.{axis}"), f"mesh.{axis}")


def _write_shared(outline: Outline) -> None:
    """Writes ranks that share sequences by DeepSpeed's exchanges, around the attention that the model has."""
    shared, at = outline.value("mesh.cp"), "parallelism_config.parallelism_config_"
    if shared == 1:
        return
    for axis in ("dp_replicate", "dp_shard"):
        outline.put(f"{at}{axis}_size", outline.value(f"mesh.{axis}"), f"mesh.{axis}")
    outline.put(f"{at}sp_size", shared, "mesh.cp")
    outline.put(f"{at}sp_backend", "deepspeed", "mesh.cp")
    outline.put(f"{at}sp_seq_length_is_variable", True, "mesh.cp")  # noqa: FBT003 - a value
    outline.put(f"{at}sp_attn_implementation", outline.value("framework_options.attn_implementation") or "sdpa",
                "framework_options.attn_implementation")


def _write_zero_launch(outline: Outline, steps: int) -> None:
    """Writes the few keys of the plugin, or the name of a file where the scenario has options of DeepSpeed's own."""
    check_trainer(outline)
    if zero_options(outline):
        write_zero(outline, f"{_ZERO}.", steps)
        return
    outline.put("deepspeed_config.zero_stage", stage_of(outline), "framework")
    for name, part in (("optimizer", "optimizer"), ("param", "params")):
        device = _DEVICES.get(outline.value(f"training.offload.{part}"))
        if device is not None:
            outline.put(f"deepspeed_config.offload_{name}_device", device, f"training.offload.{part}")


def _launch_text(keys: Mapping[str, Any], job: Job) -> str:
    own = {key: value for key, value in keys.items() if key not in (_TRAINER, _ZERO)}
    if _ZERO in keys:
        own["deepspeed_config"] = {"deepspeed_config_file": _zero_file(job)}
        del own["mixed_precision"]  # with a file of DeepSpeed's, accelerate reads it there
    reasons = {"num_machines": _SEVERAL} if job.nodes > 1 else {}
    return commented(yaml_recipe({**own, "num_machines": job.nodes}, job), reasons)


def _beside_launch(keys: Mapping[str, Any], job: Job) -> Mapping[str, str]:
    zero = {_zero_file(job): _json(keys[_ZERO], job)} if _ZERO in keys else {}
    return {_trainer_file(job): trainer_text(keys[_TRAINER], job), **zero}


def _accelerate_launch(job: Job) -> str:
    return f"accelerate launch --config_file {job.file} {PROGRAM} {_trainer_file(job)}\n"


# ---- DeepSpeed ------------------------------------------------------------------------------------------------------
def _write_json(outline: Outline) -> None:
    write_zero(outline, "", write_trainer(outline, f"{_TRAINER}."))


def _json(keys: Mapping[str, Any], job: Job) -> str:
    del job
    return json.dumps({key: value for key, value in keys.items() if key != _TRAINER}, indent=2) + "\n"


def _beside_json(keys: Mapping[str, Any], job: Job) -> Mapping[str, str]:
    return {_trainer_file(job): trainer_text({**keys[_TRAINER], "deepspeed": job.file}, job)}


def _torchrun(job: Job) -> str:
    return job.torchrun(f"{PROGRAM} {_trainer_file(job)}")


# ---- names of files -------------------------------------------------------------------------------------------------
def _trainer_file(job: Job) -> str:
    return f"{job.stem}-sft.yaml"


def _zero_file(job: Job) -> str:
    return f"{job.stem}-zero.json"


OF_ACCELERATE: Final = RecipeWriter(".yaml", FRAMEWORKS, _write_launch, _accelerate_launch, _launch_text,
                                    _beside_launch)
OF_DEEPSPEED: Final = RecipeWriter(".json", OF_ZERO, _write_json, _torchrun, _json, _beside_json)
