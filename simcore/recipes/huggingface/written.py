"""Parts of recipes that the libraries around transformers share, written: names, number formats, FSDP, ZeRO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import IllegalLayout, Problem
from simcore.models.names import find, ids_of
from simcore.recipes.huggingface.optimizers import OPTIMIZERS
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.outline import Outline

__all__ = ["FORMAT_NAMES", "FRAMEWORKS", "OFFLOADED", "OF_ZERO", "check_trainer", "hugging_face_name", "is_moved",
           "optimizer_name", "shards_of", "stage_of", "steps_of", "whole", "write_given", "write_plugin", "write_zero",
           "zero_options"]

FORMAT_NAMES: Final[Mapping[str, str]] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Number formats in torch's words."""
_WIDE: Final = "framework_options.wide_embedding_states"
_OPTIONS: Final = "framework_options."
_STAGES: Final = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3}
_SHARDS: Final = {"ddp": Shards.NONE, "fsdp1": Shards.FLAT, "fsdp2": Shards.EACH, **dict.fromkeys(_STAGES, Shards.ZERO)}
FRAMEWORKS: Final = (*_SHARDS,)
"""Frameworks that transformers' Trainer runs, by accelerate."""
OF_ZERO: Final = (*_STAGES,)
"""Frameworks that DeepSpeed's configuration describes."""
_TORCH_ADAM: Final = "framework_options.torch_adam"
_DEVICES: Final = {"host": "cpu", "nvme": "nvme"}
OFFLOADED: Final = tuple(f"training.offload.{part}" for part in ("params", "gradients", "optimizer"))
"""Parts that FSDP moves together, all of them or none."""
_OF_VERSION_1: Final = ("backward_prefetch", "forward_prefetch", "use_orig_params")


def hugging_face_name(reference: str) -> str:
    """Id of the repository on Hugging Face that has a preset's configuration; another name as it is."""
    named = find(reference)
    return reference if named is None or not named.is_own else next(iter(ids_of(named.preset)), reference)


def shards_of(outline: Outline) -> Shards:
    """Shards of the model that a rank has."""
    return _SHARDS[outline.settled.scenario.framework]


def stage_of(outline: Outline) -> int:
    """Stage of ZeRO."""
    return _STAGES[outline.settled.scenario.framework]


def write_given(outline: Outline, key: str, said: str) -> None:
    """Writes a key with the scenario's value, if its file says it."""
    value: Any = outline.given(said)
    if value is not None:
        outline.put(key, value, said)


def steps_of(outline: Outline) -> int:
    """Microbatches of an optimizer step."""
    ranks = outline.value("mesh.dp_shard") * outline.value("mesh.dp_replicate")
    return int(outline.value("training.global_batch_size") // (outline.value("training.micro_batch_size") * ranks))


def optimizer_name(outline: Outline) -> str | None:
    """Name that transformers has for the optimizer; None, and a refusal, for one that it has none for."""
    asked = outline.settled.values
    on_host = shards_of(outline) is Shards.ZERO and asked.get("training.optimizer.implementation") == "cpu"
    for name, settings in OPTIMIZERS.items():
        plain = on_host and settings["name"] == "adamw" and settings.get("implementation") in ("foreach", "fused")
        said = {"moments": "auto", "paged": False, "implementation": "auto", **settings}
        if plain:
            said["implementation"] = outline.value("training.optimizer.implementation")  # DeepSpeed's own
        if all(_is_alike(outline.value(f"training.optimizer.{key}"), value, key) for key, value in said.items()):
            _say_wide_states(outline, settings)
            return name
    outline.refuse("training.optimizer.name", f"{asked['training.optimizer.name']} in this form: transformers has "
                                              f"{', '.join(OPTIMIZERS)}")
    return None


def _say_wide_states(outline: Outline, settings: Mapping[str, Any]) -> None:
    """Holds the states of embeddings against those that the Trainer has beside 8-bit ones of bitsandbytes."""
    wide = (settings.get("moments"), settings.get("implementation")) == ("int8", "bitsandbytes")
    copies = shards_of(outline) is Shards.NONE and outline.value("training.method") == "full"
    asked = bool(outline.given(_WIDE))
    if asked != (wide and copies):
        outline.refuse(_WIDE, "transformers' Trainer keeps states of embeddings in 32 bits beside 8-bit ones of "
                              "bitsandbytes, where each GPU has a copy and all is trained, and nowhere else")
    outline.said.add(_WIDE)


def _is_alike(asked: Any, value: Any, key: str) -> bool:
    if value == "auto":
        return bool(key == "implementation" or asked not in ("int8", "int4"))
    return bool(asked == value)


def whole(value: float) -> float:
    """A number without its fraction where that is zero."""
    return int(value) if float(value).is_integer() else value


def is_moved(outline: Outline) -> bool:
    """True if parameters, gradients and states of FSDP wait on the host; torch has all three there, or none."""
    return all(outline.value(key) == "host" for key in OFFLOADED)


def write_plugin(outline: Outline, at: str, *, trainer: bool) -> None:
    """Writes options of accelerate's FSDP plugin under `at`.

    `trainer`: in the words of transformers' `fsdp_config`, else in those of accelerate's YAML. transformers wraps
    layers unless told, calls offload `cpu_offload`, and passes on no `sharding_strategy` (5.23.0 `training_args.py`).
    """
    second, prefix = shards_of(outline) is Shards.EACH, "" if trainer else "fsdp_"
    outline.put(f"{at}{prefix}version", 2 if second else 1, "framework")
    whole = outline.value(f"{_OPTIONS}wrap") == "root" and not second
    if whole or not trainer:
        outline.put(f"{at}{prefix}auto_wrap_policy", "NO_WRAP" if whole else "TRANSFORMER_BASED_WRAP",
                    f"{_OPTIONS}wrap")
    if second:
        write_given(outline, f"{at}{prefix}reshard_after_forward", f"{_OPTIONS}reshard_after_forward")
    else:
        for name in _OF_VERSION_1:
            write_given(outline, f"{at}{prefix}{name}", f"{_OPTIONS}{name}")
        if not trainer:
            write_given(outline, f"{at}{prefix}sharding_strategy", f"{_OPTIONS}sharding_strategy")
    if is_moved(outline):
        outline.put(f"{at}{prefix}{'cpu_offload' if trainer else 'offload_params'}", True, *OFFLOADED)  # noqa: FBT003
    outline.value(f"{_OPTIONS}sync_gradients")  # accelerate's no_sync, in which the Trainer accumulates


def write_zero(outline: Outline, at: str, steps: int) -> None:
    """Writes DeepSpeed's configuration under `at`: numbers, which hold with and without transformers around it.

    IllegalLayout for what DeepSpeed does in a script of its own and not under the trainer of the recipe.
    """
    check_trainer(outline)
    outline.put(f"{at}train_micro_batch_size_per_gpu", _sequences(outline), "training.micro_batch_size")
    outline.put(f"{at}gradient_accumulation_steps", steps, "training.global_batch_size")
    compute = outline.value("training.precision.compute")
    if compute in ("bf16", "fp16"):
        outline.put(f"{at}{compute}.enabled", True, "training.precision.compute")  # noqa: FBT003 - a value
    outline.put(f"{at}zero_optimization.stage", stage_of(outline), "framework")
    if outline.value("mesh.tp") > 1:
        outline.put(f"{at}tensor_parallel.autotp_size", outline.value("mesh.tp"), "mesh.tp")
    if outline.given(_TORCH_ADAM) is False:
        outline.put(f"{at}optimizer.type", "AdamW", _TORCH_ADAM)
        outline.put(f"{at}optimizer.params.lr", "auto", _TORCH_ADAM)
    outline.said.add(_TORCH_ADAM)
    write_given(outline, f"{at}{_SEQUENCES}", f"{_OPTIONS}{_SEQUENCES}")
    for name in _ZERO_OPTIONS:
        write_given(outline, f"{at}zero_optimization.{name}", f"{_OPTIONS}{name}")
    for block, part in (("offload_optimizer", "optimizer"), ("offload_param", "params")):
        device = _DEVICES.get(outline.value(f"training.offload.{part}"))
        if device is not None:
            outline.put(f"{at}zero_optimization.{block}.device", device, f"training.offload.{part}")
            for name, value in (outline.given(f"{_OPTIONS}{block}") or {}).items():
                outline.put(f"{at}zero_optimization.{block}.{name}", value, f"{_OPTIONS}{block}")


def check_trainer(outline: Outline) -> None:
    """Raises IllegalLayout for what no trainer of transformers has with DeepSpeed.

    DeepSpeed's experts, and matrices that ranks share at stage 3.
    """
    for key, is_on, why, rule in (
            ("implementation", outline.value("implementation") == "autoep", _OF_AUTOEP, _RULE_OF_AUTOEP),
            ("mesh.tp", outline.value("mesh.tp") > 1 and stage_of(outline) == 3, _OF_AUTOTP, _RULE_OF_AUTOTP)):
        if is_on:
            raise IllegalLayout(Problem(outline.where(key), f"{key}: {why}", rule))


_ALONE: Final = ("in a script of its own, whose JSON for deepspeed.initialize is read by itself (--set model=NAME "
                 "--seq-len N --gpus N)")
_OF_AUTOEP: Final = ("DeepSpeed's experts with the optimizer of a trainer, at which DeepSpeed stops; they run "
                     f"{_ALONE} and says expert_parallel and optimizer")
_RULE_OF_AUTOEP: Final = "deepspeed 0.19.6 runtime/zero/stage_1_and_2.py _configure_moe_settings"
_OF_AUTOTP: Final = ("ranks that share matrices of a model that a trainer has loaded in the parts of stage 3: AutoTP "
                     f"cuts none; it cuts at stages 0 to 2 (framework: zero2), or at stage 3 {_ALONE}")
_RULE_OF_AUTOTP: Final = "deepspeed 0.19.6 module_inject/auto_tp.py _replace_module"


def zero_options(outline: Outline) -> tuple[str, ...]:
    """Options of DeepSpeed's own that the scenario's file says, and matrices that ranks share."""
    names = (*_ZERO_OPTIONS, _SEQUENCES, "offload_optimizer", "offload_param")
    own = ("torch_adam",) if outline.given(_TORCH_ADAM) is False else ()
    split = ("autotp_size",) if outline.value("mesh.tp") > 1 else ()
    return (*own, *split, *(name for name in names if outline.given(f"{_OPTIONS}{name}") is not None))


def _sequences(outline: Outline) -> int:
    """Sequences of a microbatch as the trainer counts them."""
    packed = outline.value("training.packed_length") if outline.value("training.lengths") == "packed" else None
    return int(outline.value("training.seq_len") // packed if packed else outline.value("training.micro_batch_size"))


_SEQUENCES: Final = "seq_parallel_communication_data_type"
_ZERO_OPTIONS: Final = (
    "overlap_comm", "contiguous_gradients", "round_robin_gradients", "reduce_bucket_size", "allgather_bucket_size",
    "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters",
    "stage3_max_reuse_distance", "sub_group_size", "zero_hpz_partition_size", "mics_shard_size")
"""Options of the simulation with DeepSpeed's own names, which stand under `zero_optimization`."""
