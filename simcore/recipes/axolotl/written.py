"""Writes scenarios as axolotl recipes. Data, learning rate and files are stand-ins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from simcore.recipes.axolotl.adapters import ADAPTER_ROWS, BASE_ROWS
from simcore.recipes.huggingface.modules import linears_of
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.written import (
    FRAMEWORKS,
    OFFLOADED,
    hugging_face_name,
    is_moved,
    optimizer_name,
    shards_of,
    steps_of,
    whole,
    write_given,
    write_zero,
)
from simcore.recipes.outline import Outline
from simcore.recipes.recipe_writer import Job, RecipeWriter, commented, yaml_recipe
from simcore.recipes.rows import key_of, write_rows

__all__ = ["WRITER"]

_AUTOCAST: Final = "framework_options.autocast"
_ZERO: Final = "zero"
"""Key under which the outline has DeepSpeed's configuration, a file beside the recipe."""
_PLUGINS: Final = {"cut": ("axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin", "cut_cross_entropy"),
                   "liger": ("axolotl.integrations.liger.LigerPlugin", "liger_fused_linear_cross_entropy")}
"""Plugin of a loss, and the key that switches it on."""
_KERNELS: Final = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
"""Fused layers, which axolotl switches on unless told (`utils/schemas/config.py`), where PEFT's are simulated."""
_REASONS: Final = {"datasets": "yours", "learning_rate": "yours",
                   _KERNELS[0]: "on unless told; PEFT's layers are simulated"}
_FIXED: Final = "PYTORCH_ALLOC_CONF=expandable_segments:False"


def _write(outline: Outline) -> None:
    outline.put("base_model", hugging_face_name(outline.settled.scenario.model_name), "model")
    _write_loss(outline)
    outline.put("datasets", [{"path": "your/dataset", "type": "alpaca"}], stand_in=True)
    _write_lengths(outline)
    steps = steps_of(outline)
    outline.put("gradient_accumulation_steps", steps, "training.global_batch_size")
    outline.put("learning_rate", 0.0002, stand_in=True)
    _write_optimizer(outline)
    _write_formats(outline)
    _write_method(outline)
    _write_checkpointing(outline)
    for name in ("attn_implementation", "use_kernels"):
        write_given(outline, name, f"framework_options.{name}")
    _write_sharding(outline, steps)


def _write_loss(outline: Outline) -> None:
    found = _PLUGINS.get(outline.value("training.loss"))
    if found is not None:
        plugin, switch = found
        outline.put("plugins", [plugin], "training.loss")
        outline.put(switch, True, "training.loss")  # noqa: FBT003 - a value


def _write_lengths(outline: Outline) -> None:
    """Writes lengths; without `multipack_real_batches` a pack is one row of all sequences of a microbatch."""
    kind, length, micro = (outline.value(f"training.{key}") for key in ("lengths", "seq_len", "micro_batch_size"))
    longest = outline.value("training.packed_length")
    if kind == "fixed":
        outline.put("sequence_len", length, "training.seq_len", "training.lengths")
        outline.put("pad_to_sequence_len", True, "training.lengths")  # noqa: FBT003 - a value
        outline.put("micro_batch_size", micro, "training.micro_batch_size")
    elif kind == "packed" and (longest is None or (length % longest == 0 and micro == 1)):
        outline.put("sequence_len", longest or length, "training.seq_len", "training.packed_length")
        outline.put("sample_packing", True, "training.lengths")  # noqa: FBT003 - a value
        if micro > 1:
            outline.put("multipack_real_batches", True, "training.micro_batch_size")  # noqa: FBT003 - a value
        outline.put("micro_batch_size", length // longest if longest else micro, "training.micro_batch_size")
    elif kind == "packed":
        outline.refuse("training.packed_length", "a row is a whole number of longest samples, one row a microbatch")
    else:
        outline.refuse("training.lengths", "lengths that are drawn: data have them, not the recipe")


def _write_optimizer(outline: Outline) -> None:
    said = [f"training.optimizer.{key}" for key in ("name", "implementation", "moments", "paged")]
    name = "muon" if outline.value(said[0]) == "muon" else optimizer_name(outline)
    if name is not None:
        outline.put("optimizer", name, *said)


def _write_formats(outline: Outline) -> None:
    compute = outline.value("training.precision.compute")
    for key in ("params", "grad_reduce"):
        outline.value(f"training.precision.{key}")
    if compute not in ("bf16", "fp16", "fp32"):
        outline.refuse("training.precision.compute", f"{compute}: a recipe that is read says bf16, fp16 or neither")
        return
    plain = _is_without_casts(outline)
    if plain and compute == "fp16":
        outline.put("float16", True, "training.precision.compute", "training.precision.params")  # noqa: FBT003 - a value
        outline.put("bf16", False, "training.precision.compute")  # noqa: FBT003 - a value: `auto` where it is not said
        return
    outline.put("fp16" if compute == "fp16" else "bf16", "full" if plain and compute == "bf16" else compute != "fp32",
                "training.precision.compute", "training.precision.params")


def _is_without_casts(outline: Outline) -> bool:
    """True if adapters in fp32 compute in fp32, which the Trainer's mixed precision would cast."""
    if shards_of(outline) is not Shards.NONE or outline.value("training.method") == "full":
        return False
    autocast = outline.given(_AUTOCAST)
    if autocast is False:
        outline.as_without(_AUTOCAST)
    outline.said.add(_AUTOCAST)
    return autocast is not True and outline.value("training.lora.dtype") == "fp32"


def _write_method(outline: Outline) -> None:
    method, packed = outline.value("training.method"), outline.value("training.quantization.format")
    if method == "full":
        outline.said.add("training.method")
        return
    outline.put("adapter", "qlora" if method == "qlora" and packed != "int8" else "lora", "training.method")
    if method == "qlora":
        outline.put("load_in_8bit" if packed == "int8" else "load_in_4bit", True, "training.quantization.format")  # noqa: FBT003
        if packed != "int8":
            write_rows(outline, BASE_ROWS)
        outline.value("framework_options.bnb_4bit_quant_storage")
    for key, name in (("lora_r", "rank"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")):
        outline.put(key, whole(outline.value(f"training.lora.{name}")), f"training.lora.{name}")
    write_given(outline, "lora_modules_to_save", "training.lora.modules_to_save")
    for name in _KERNELS:
        outline.put(name, False)  # noqa: FBT003 - a value
    _write_format_of_adapters(outline, method)
    _write_targets(outline)
    write_rows(outline, [row for row in ADAPTER_ROWS if key_of(row) not in outline.puts])


def _write_format_of_adapters(outline: Outline, method: str) -> None:
    """PEFT makes adapters in fp32; beside a base of 16 bits they may stay in its format."""
    key, compute = "training.lora.dtype", outline.value("training.precision.compute")
    dtype = outline.value(key)
    if dtype == "fp32" or shards_of(outline) not in (Shards.NONE, Shards.EACH):
        return
    if method != "lora":
        outline.refuse(key, "adapters beside a packed base are in fp32 (PEFT 0.21.2 tuners/lora/layer.py)")
    elif dtype in ("auto", compute):
        outline.put("peft_autocast_adapter_dtype", False, key)  # noqa: FBT003 - a value
        outline.counts_as(key, compute)
    else:
        outline.refuse(key, f"adapters in {dtype} beside products in {compute}")


def _write_targets(outline: Outline) -> None:
    key, family = "training.lora.target_modules", str(outline.settled.fields.get("model_type"))
    targets = outline.value(key)
    if not isinstance(targets, list):
        outline.refuse(key, "the modules are not said")
    elif set(targets) == set(linears_of(family)):
        outline.put("lora_target_linear", True, key)  # noqa: FBT003 - a value
    else:
        outline.put("lora_target_modules", targets, key)


def _write_checkpointing(outline: Outline) -> None:
    """Writes what is recomputed; offload asks for checkpoints, whose place it takes beside adapters."""
    recompute, offloaded = outline.value("training.recompute"), outline.value("training.offload.activations") == "host"
    if recompute not in ("none", "full"):
        outline.refuse("training.recompute", "layers are recomputed as a whole or not at all")
        return
    if offloaded and recompute == "full" and outline.value("training.method") != "full":
        outline.refuse("training.offload.activations", "beside adapters it takes the place of recomputing in axolotl")
    outline.put("gradient_checkpointing", recompute == "full" or offloaded, "training.recompute")
    if offloaded:
        outline.put("activation_offloading", True, "training.offload.activations")  # noqa: FBT003 - a value


def _write_sharding(outline: Outline, steps: int) -> None:
    shards = shards_of(outline)
    if shards is Shards.ZERO:
        write_zero(outline, f"{_ZERO}.", steps)
    elif shards is not Shards.NONE:
        _write_fsdp(outline, second=shards is Shards.EACH)


def _write_fsdp(outline: Outline, *, second: bool) -> None:
    """Writes FSDP's block; options of version 1 that axolotl's schema does not have are not in it."""
    options = "framework_options."
    outline.put("fsdp_version", 2 if second else 1, "framework", "mesh.dp_shard")
    outline.put("fsdp_config.auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    name = "reshard_after_forward" if second else "use_orig_params"
    write_given(outline, f"fsdp_config.{name}", f"{options}{name}")
    if is_moved(outline):
        outline.put("fsdp_config.offload_params", True, *OFFLOADED)  # noqa: FBT003 - a value
    for name in ("sync_gradients", "wrap", "backward_prefetch", "forward_prefetch", "sharding_strategy"):
        outline.value(f"{options}{name}")
    if outline.value("mesh.dp_replicate") > 1:
        for axis in ("dp_replicate", "dp_shard"):
            outline.put(f"{axis}_size", outline.value(f"mesh.{axis}"), f"mesh.{axis}")


# ---- files ----------------------------------------------------------------------------------------------------------
def _text(keys: Mapping[str, Any], job: Job) -> str:
    own = {key: value for key, value in keys.items() if key != _ZERO}
    return commented(yaml_recipe({**own, "deepspeed": _zero_file(job)} if _ZERO in keys else own, job), _REASONS)


def _beside(keys: Mapping[str, Any], job: Job) -> Mapping[str, str]:
    return {_zero_file(job): json.dumps(keys[_ZERO], indent=2) + "\n"} if _ZERO in keys else {}


def _zero_file(job: Job) -> str:
    return f"{job.stem}-zero.json"


def _launch(job: Job) -> str:
    """Axolotl's command, which makes segments expandable unless the variable is set."""
    fixed = "" if "PYTORCH_CUDA_ALLOC_CONF" in job.environment else f"export {_FIXED}\n"
    nodes = f"--nnodes={job.nodes} " if job.nodes > 1 else ""
    return f"{fixed}axolotl train {job.file} --launcher torchrun -- {nodes}--nproc-per-node={job.gpus_per_node}\n"


WRITER: Final = RecipeWriter(".yaml", FRAMEWORKS, _write, _launch, _text, _beside, patches=True)
