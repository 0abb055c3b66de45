"""Writes scenarios as recipes of `trl sft`: the trainer's keys, and beside them what the GPUs split.

Data are a stand-in: the name of a data set is the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.operators.hf.chunked import LM_HEAD
from simcore.recipes.huggingface.modules import linears_of
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.written import (
    FORMAT_NAMES,
    FRAMEWORKS,
    hugging_face_name,
    optimizer_name,
    shards_of,
    steps_of,
    whole,
    write_given,
    write_plugin,
    write_zero,
)
from simcore.recipes.outline import Outline
from simcore.recipes.recipe_writer import Job, RecipeWriter, commented, yaml_recipe

__all__ = ["PROGRAM", "WRITER", "trainer_text", "write_trainer"]

PROGRAM: Final = "-m trl.scripts.sft --config"
"""Module that trains, and the option behind which its recipe stands (TRL 1.16.0 `scripts/sft.py`)."""

_AUTOCAST: Final = "framework_options.autocast"
_REASONS: Final = {"dataset_name": "yours", "optim": "its learning rate is yours"}
_PLAIN: Final = "no mixed precision: products in the format of the parameters"


def write_trainer(outline: Outline, at: str = "") -> int:
    """Writes the trainer's keys under `at`, and returns the microbatches of a step."""
    name = hugging_face_name(outline.settled.scenario.model_name)
    outline.put(f"{at}model_name_or_path", name, "model")
    _write_formats(outline, at)
    write_given(outline, f"{at}attn_implementation", "framework_options.attn_implementation")
    outline.put(f"{at}dataset_name", "your/dataset", stand_in=True)
    _write_lengths(outline, at)
    steps = steps_of(outline)
    outline.put(f"{at}gradient_accumulation_steps", steps, "training.global_batch_size")
    recompute = outline.value("training.recompute")
    if recompute in ("none", "full"):
        outline.put(f"{at}gradient_checkpointing", recompute == "full", "training.recompute")
    else:
        outline.refuse("training.recompute", "layers are recomputed as a whole or not at all")
    if outline.value("training.loss") == LM_HEAD:
        outline.put(f"{at}loss_type", "nll", "training.loss")
    else:
        outline.refuse("training.loss", "SFTTrainer makes no whole logits " + (
            "(fused_lm_head, which is not yet served over a head that ranks share: --to axolotl makes them)"
            if outline.value("mesh.tp") > 1 else "(fused_lm_head is its loss)"))
    write_given(outline, f"{at}use_liger_kernel", "framework_options.use_liger_kernel")
    if (optimizer := optimizer_name(outline)) is not None:
        outline.put(f"{at}optim", optimizer, *(f"training.optimizer.{key}" for key in (
            "name", "implementation", "moments", "paged")))
    _write_method(outline, at)
    return steps


def _write_formats(outline: Outline, at: str) -> None:
    """Writes `dtype`, in which the checkpoint is read, and mixed precision, which TRL switches on unless told."""
    shards, compute = shards_of(outline), outline.value("training.precision.compute")
    stored = compute if shards is Shards.ZERO else outline.value("training.precision.params")
    plain = stored == compute and (not _is_upcast(outline) if shards in (Shards.FLAT, Shards.EACH) else
                                   _is_without_casts(outline))
    said = ("training.precision.compute", "training.precision.params", "training.precision.grad_reduce")
    for key in said:
        outline.value(key)
    if stored not in FORMAT_NAMES or compute not in FORMAT_NAMES:
        outline.refuse(said[0] if compute not in FORMAT_NAMES else said[1], "formats of 16 or 32 bits alone")
        return
    if stored != compute and outline.given(_AUTOCAST) is True:
        outline.as_without(_AUTOCAST)
    outline.put(f"{at}dtype", FORMAT_NAMES[stored], *said[:2])
    if plain or compute == "fp32":
        outline.put(f"{at}bf16", False)  # noqa: FBT003 - a value
    else:
        outline.put(f"{at}{compute}", True)  # noqa: FBT003 - a value


def _is_without_casts(outline: Outline) -> bool:
    """True if adapters compute in their own type, which mixed precision would cast: there is no autocast."""
    autocast = outline.given(_AUTOCAST)
    if shards_of(outline) is not Shards.NONE or outline.value("training.method") == "full":
        return False
    if autocast is False:
        outline.as_without(_AUTOCAST)
    outline.said.add(_AUTOCAST)
    return autocast is not True and outline.value("training.lora.dtype") == "fp32"


def _is_upcast(outline: Outline) -> bool:
    """True if parameters at rest do not tell whether there is mixed precision: what is frozen is left as it is."""
    if shards_of(outline) is Shards.FLAT:
        return outline.given("training.precision.params") is None
    return bool(outline.value("training.method") != "full")


def _write_lengths(outline: Outline, at: str) -> None:
    """Writes lengths and the microbatch; a pack by best fit is one row of all samples of a microbatch."""
    kind, length, micro = (outline.value(f"training.{key}") for key in ("lengths", "seq_len", "micro_batch_size"))
    if kind == "packed":
        longest = outline.value("training.packed_length") or length
        if length % longest or micro != 1:
            outline.refuse("training.packed_length", "a row is a whole number of longest samples, one row a microbatch")
        outline.put(f"{at}max_length", longest, "training.seq_len", "training.packed_length")
        outline.put(f"{at}packing", True, "training.lengths")  # noqa: FBT003 - a value
        outline.put(f"{at}per_device_train_batch_size", max(length // longest, 1), "training.micro_batch_size")
    elif kind == "fixed":
        outline.put(f"{at}max_length", length, "training.seq_len", "training.lengths")
        outline.put(f"{at}per_device_train_batch_size", micro, "training.micro_batch_size")
    else:
        outline.refuse("training.lengths", "lengths that are drawn: data have them, not the recipe")


def _write_method(outline: Outline, at: str) -> None:
    method, lora = outline.value("training.method"), "training.lora."
    if method == "full":
        outline.said.add("training.method")
        return
    outline.put(f"{at}use_peft", True, "training.method")  # noqa: FBT003 - a value
    for key, name in (("lora_r", "rank"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")):
        outline.put(f"{at}{key}", whole(outline.value(f"{lora}{name}")), f"{lora}{name}")
    _write_targets(outline, at)
    for name in ("use_rslora", "use_dora"):
        if outline.value(f"{lora}{name}"):
            outline.put(f"{at}{name}", True, f"{lora}{name}")  # noqa: FBT003 - a value
    outline.value(f"{lora}dtype")
    if method != "qlora":
        return
    if outline.value("training.quantization.format") == "int8":
        outline.put(f"{at}load_in_8bit", True, "training.quantization.format")  # noqa: FBT003 - a value
        return
    outline.put(f"{at}load_in_4bit", True, "training.method")  # noqa: FBT003 - a value
    outline.put(f"{at}bnb_4bit_quant_type", outline.value("training.quantization.format"),
                "training.quantization.format")
    outline.put(f"{at}use_bnb_nested_quant", outline.value("training.quantization.double_quant"),
                "training.quantization.double_quant")
    write_given(outline, f"{at}bnb_4bit_quant_storage", "framework_options.bnb_4bit_quant_storage")


def _write_targets(outline: Outline, at: str) -> None:
    """Writes modules with adapters; TRL makes one text of a list of one, which PEFT takes for a pattern."""
    key = "training.lora.target_modules"
    targets, family = outline.value(key), outline.settled.fields.get("model_type")
    if not isinstance(targets, list):
        outline.refuse(key, "the modules are not said")
    elif set(targets) == set(linears_of(str(family))):
        outline.put(f"{at}lora_target_modules", "all-linear", key)
    elif len(targets) == 1:
        outline.refuse(key, f"{targets[0]} alone: TRL passes it as one text, which PEFT takes for a pattern of paths")
    else:
        outline.put(f"{at}lora_target_modules", targets, key)


def _write(outline: Outline) -> None:
    shards, steps = shards_of(outline), write_trainer(outline)
    if shards is Shards.NONE:
        write_given(outline, "ddp_bucket_cap_mb", "framework_options.bucket_cap_mb")
    elif shards is not Shards.ZERO:
        outline.put("fsdp", True, "framework", "mesh.dp_shard")  # noqa: FBT003 - a value
        write_plugin(outline, "fsdp_config.", trainer=True)
    else:
        write_zero(outline, "deepspeed.", steps)


def trainer_text(keys: Mapping[str, Any], job: Job) -> str:
    """YAML text of the trainer's keys."""
    reasons = _REASONS if keys.get("bf16") is not False else {**_REASONS, "bf16": _PLAIN}
    return commented(yaml_recipe(keys, job), reasons)


def _launch(job: Job) -> str:
    return job.torchrun(f"{PROGRAM} {job.file}")


WRITER: Final = RecipeWriter(".yaml", FRAMEWORKS, _write, _launch, trainer_text, patches=True)
