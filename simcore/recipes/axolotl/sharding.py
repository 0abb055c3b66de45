"""Frameworks of an axolotl recipe: DDP, where each GPU has the whole model, or FSDP 1 and 2, which shard it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.inputs.block import shorten
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.deepspeed import read_deepspeed, shard_over_ranks
from simcore.recipes.huggingface.fsdp import Plugin, read_plugin
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.shipped import own_files
from simcore.recipes.huggingface.trainer import ACCELERATOR
from simcore.recipes.huggingface.zero import Zero
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, read_rows
from simcore.recipes.world import share_out

__all__ = ["Sharding", "read_sharding"]


_VERSION: Final = "utils/schemas/validation.py _resolve_fsdp_version: version 1 where nothing is said"
_DEGREES: Final = {"tensor_parallel_size": "matrices", "context_parallel_size": "sequences",
                   "expert_parallel_size": "experts"}
"""Degrees of transformers' own parallelism, each with what it splits over ranks."""
_OLDER: Final = {"tensor_parallel_size": " (axolotl 067b021c pins transformers 5.14.1, whose integrations/"
                 "tensor_parallel.py:483 cuts plain tensors and sums them in place; mesh.tp has 5.23.0's DTensors)"}
"""Words about a degree's code that its refusal has."""
_PLUGIN: Final = Plugin("fsdp_config.", "TRANSFORMER_BASED_WRAP", True,  # noqa: FBT003 - a value, not a switch
                        "transformers 5.23.0", "training_args.py _process_fsdp_args, to which axolotl hands the block",
                        ("cpu_offload", "sharding_strategy", "backward_prefetch", "forward_prefetch",
                         "limit_all_gathers", "mixed_precision_policy"),
                        "axolotl's utils/schemas/fsdp.py, utils/trainer.py setup_fsdp_envs")
_BESIDE_FSDP1: Final = ("adamw_8bit", "adamw_bnb_8bit")
"""Optimizers of bitsandbytes that axolotl refuses under FSDP 2."""
_ROWS: Final = (Idle(("expert_parallel_*",), "one rank"), *ACCELERATOR)


@dataclass(frozen=True, slots=True)
class Sharding:
    """Shards of a rank, and DeepSpeed's configuration where it cuts them, else None."""

    shards: Shards
    zero: Zero | None = None


def read_sharding(reader: Reader, draft: Draft, file: Reader | None) -> Sharding:
    """Writes `framework`, its options and the mesh; `file`: a DeepSpeed JSON that the user names behind it."""
    for name, what in _DEGREES.items():
        degree = reader.integer(name)
        if degree is not None and degree.value > 1:
            draft.refuse(degree, f"{what} that are split over {degree.value} ranks; without it the answer would be of "
                         f"another layout, so --loose does not leave it out{_OLDER.get(name, '')}", always=True)
        else:
            draft.idle(degree, "one rank")
    read_rows(reader, draft, _ROWS)
    zero = reader.text("deepspeed")
    if zero is not None and file is not None:
        own_files(draft, zero, file)
        return _read_zero(reader, draft, file)
    draft.refuse(zero, f"DeepSpeed's configuration in another file, {shorten(zero.value) if zero else ''}: name it "
                       "too, by --with")
    if file is not None:
        draft.fail(file.document.path, "the recipe asks for no DeepSpeed")
        draft.idle(file.matching("*"), "of no part of the run")
    fsdp, version = reader.take("fsdp"), _version(reader)
    asked = [one for one in (fsdp, *version) if one is not None]
    if not reader.is_mapping("fsdp_config"):
        draft.idle(reader.take("fsdp_config"), "nothing is said")
    if not reader.names("fsdp_config") and fsdp is None:
        draft.idle(version, "no FSDP is asked for")
        draft.infer("framework", "ddp", "neither FSDP nor DeepSpeed is asked for")
        _copies(reader, draft)
        return Sharding(Shards.NONE)
    second = any(str(one.value) == "2" for one in version)
    draft.infer("framework", "fsdp2" if second else "fsdp1", "version of FSDP", *asked, source=_VERSION,
                where=(asked or reader.untouched())[0].where)
    if second and (optimizer := reader.look("optimizer")) in _BESIDE_FSDP1:
        draft.fail(reader.document.where(("optimizer",)), f"FSDP2 not compatible with {optimizer}, use "
                   "`adamw_torch_8bit` instead (axolotl 067b021c utils/schemas/validation.py "
                   "check_fsdp2_w_8bit_optimizer)")
    read_plugin(reader, draft, _PLUGIN, second=second)
    _shards(reader, draft)
    return Sharding(Shards.EACH if second else Shards.FLAT)


def _read_zero(reader: Reader, draft: Draft, file: Reader) -> Sharding:
    """DeepSpeed by its own configuration, which says all of it."""
    for name in ("fsdp", "fsdp_config", "fsdp_version"):
        draft.refuse(reader.take(name), "FSDP beside DeepSpeed")
    for name in ("dp_shard_size", "dp_replicate_size"):
        draft.idle(reader.integer(name), "ZeRO cuts over all ranks")
    zero = read_deepspeed(file, draft)
    if zero.shards is Shards.ZERO:
        shard_over_ranks(draft, whole=zero.is_whole)
    return Sharding(zero.shards, zero)


def _version(reader: Reader) -> list[Taken[object]]:
    found = (reader.take(key) for key in ("fsdp_version", "fsdp_config.fsdp_version"))
    return [one for one in found if one is not None]


def _copies(reader: Reader, draft: Draft) -> None:
    """One model on each GPU."""
    shard = reader.integer("dp_shard_size")
    if shard is not None and shard.value > 1:
        draft.refuse(shard, "shards without fsdp_config")
    else:
        draft.idle(shard, "each GPU has the whole model")
    draft.idle(reader.integer("dp_replicate_size"), "each GPU has the whole model")
    draft.put("framework_options.bucket_cap_mb", reader.integer("ddp_bucket_cap_mb"))
    if draft.answers.gpus is None:
        draft.ask("mesh", "--gpus N", "number of GPUs")
    else:
        share_out(draft, draft.answers.gpus, {}, "mesh.dp_replicate", "a copy on each GPU", "torch DDP")


def _shards(reader: Reader, draft: Draft) -> None:
    """Ranks that shard, and copies of them."""
    shard, copies = reader.integer("dp_shard_size"), reader.integer("dp_replicate_size")
    draft.put("mesh.dp_replicate", copies)
    for one in (shard, copies):
        if one is not None and one.value < 1:
            draft.fail(one.where, f"{one.key}: expected a number of ranks, got {one.value}")
            draft.use(shard, why="must be the GPUs over dp_replicate_size")
            return
    if draft.answers.gpus is None:
        if shard is not None:
            draft.put("mesh.dp_shard", shard)
        else:
            draft.ask("mesh", "--gpus N", "number of GPUs")
        return
    found = share_out(draft, draft.answers.gpus, {"dp_replicate_size": copies}, "mesh.dp_shard",
                      "GPUs / dp_replicate_size", "accelerate's FSDP shards over all ranks of a replica")
    draft.use(shard, why="must be the GPUs over dp_replicate_size")
    if any(draft.refuses(name) for name in _DEGREES):
        return  # the GPUs are shared out over that degree too
    if shard is not None and found is not None and shard.value != found:
        draft.fail(shard.where, f"dp_shard_size {shard.value} x dp_replicate_size are not the GPUs of "
                                f"{draft.answers.gpus.where}")
