"""Frameworks of an axolotl recipe: DDP, where each GPU has the whole model, or FSDP 1 and 2, which shard it."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, read_rows
from simcore.recipes.world import share_out

__all__ = ["Shards", "read_sharding"]


class Shards(Enum):
    """Shards of a rank: none (DDP), of flat parameters (FSDP 1), of each parameter (FSDP 2)."""

    NONE = auto()
    FLAT = auto()
    EACH = auto()


_VERSION: Final = "utils/schemas/validation.py _resolve_fsdp_version: version 1 where nothing is said"
_EVERY: Final = "accelerate 1.15.0 accelerator.py no_sync: FSDP 2 reduces after every microbatch"
_DEGREES: Final = ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size")
_KEYS: Final = ("", "fsdp_")
"""Keys of `fsdp_config` stand with or without the prefix of older recipes."""
_ROWS: Final = (
    Idle(tuple(f"fsdp_config.{prefix}{name}" for prefix in _KEYS for name in (
        "state_dict_type", "final_state_dict_type", "cpu_ram_efficient_loading", "sync_module_states",
        "limit_all_gathers", "transformer_layer_cls_to_wrap", "cpu_offload_pin_memory", "version")),
         "files, start of the run, or as it is simulated: each layer is a unit"),
    Idle(("accelerator_config.*",), "accelerate's own settings of batches"),
)


def read_sharding(reader: Reader, draft: Draft) -> Shards:
    """Writes `framework`, its options and the mesh, and returns which shards a rank has."""
    for name in _DEGREES:
        degree = reader.integer(name)
        if degree is not None and degree.value > 1:
            draft.refuse(degree, "transformers' own parallelism beside data parallel")
        else:
            draft.idle(degree, "one rank")
    zero = reader.text("deepspeed")
    if zero is not None:
        draft.refuse(zero, "DeepSpeed's configuration file")
    fsdp, version = reader.take("fsdp"), _version(reader)
    asked = [one for one in (fsdp, *version) if one is not None]
    if not reader.is_mapping("fsdp_config"):
        draft.idle(reader.take("fsdp_config"), "nothing is said")
    if not reader.names("fsdp_config") and fsdp is None:
        draft.idle(version, "no FSDP is asked for")
        draft.infer("framework", "ddp", "neither FSDP nor DeepSpeed is asked for")
        _copies(reader, draft)
        return Shards.NONE
    second = any(str(one.value) == "2" for one in version)
    draft.infer("framework", "fsdp2" if second else "fsdp1", "version of FSDP", *asked, source=_VERSION,
                where=(asked or reader.untouched())[0].where)
    _read_options(reader, draft, second=second)
    read_rows(reader, draft, _ROWS)
    _shards(reader, draft)
    return Shards.EACH if second else Shards.FLAT


def _version(reader: Reader) -> list[Taken[object]]:
    found = (reader.take(key) for key in ("fsdp_version", "fsdp_config.fsdp_version"))
    return [one for one in found if one is not None]


def _copies(reader: Reader, draft: Draft) -> None:
    """One model on each GPU."""
    for name in ("dp_shard_size", "dp_replicate_size"):
        draft.idle(reader.integer(name), "each GPU has the whole model")
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
            draft.use(shard)
            return
    if draft.answers.gpus is None:
        if shard is not None:
            draft.put("mesh.dp_shard", shard)
        else:
            draft.ask("mesh", "--gpus N", "number of GPUs")
        return
    found = share_out(draft, draft.answers.gpus, {"dp_replicate_size": copies}, "mesh.dp_shard",
                      "GPUs / dp_replicate_size", "accelerate's FSDP shards over all ranks of a replica")
    draft.use(shard)
    if shard is not None and found is not None and shard.value != found:
        draft.fail(shard.where, f"dp_shard_size {shard.value} x dp_replicate_size are not the GPUs of "
                                f"{draft.answers.gpus.where}")


def _read_options(reader: Reader, draft: Draft, *, second: bool) -> None:
    """Options of FSDP; those of accelerate's plugin that trainers set in any case are written out."""
    wrap = _either(reader, "auto_wrap_policy")
    if wrap is not None and wrap.value != "TRANSFORMER_BASED_WRAP":
        draft.refuse(wrap, f"units by {wrap.value}")
    else:
        draft.idle(wrap, "each layer is a unit")
    sharding = _either(reader, "sharding_strategy")
    if sharding is not None and sharding.value not in ("FULL_SHARD", 1):
        draft.refuse(sharding, f"the strategy {sharding.value}")
    else:
        draft.idle(sharding, "the default")
    offload, reshard = _either(reader, "offload_params"), _either(reader, "reshard_after_forward")
    if offload is not None and offload.value is True:
        for part in ("params", "gradients", "optimizer"):
            draft.infer(f"training.offload.{part}", "host", "offload_params moves all three", offload)
    else:
        draft.idle(offload, "the default")
    for name in ("backward_prefetch", "forward_prefetch", "use_orig_params"):
        _read_of_first(reader, draft, name, second=second)
    if second:
        draft.put("framework_options.reshard_after_forward", reshard)
        draft.default("framework_options.sync_gradients", "every", "accelerate 1.15.0", _EVERY)
        return
    draft.idle(reshard, "a key of FSDP 2")
    draft.default("framework_options.sync_gradients", "last", "accelerate 1.15.0", "accelerator.py no_sync")
    if "backward_prefetch" not in draft.values.get("framework_options", {}):
        draft.default("framework_options.backward_prefetch", "NO_PREFETCH", "accelerate 1.15.0",
                      "utils/dataclasses.py FullyShardedDataParallelPlugin")


def _read_of_first(reader: Reader, draft: Draft, name: str, *, second: bool) -> None:
    given = _either(reader, name)
    if second:
        draft.idle(given, "a key of FSDP 1")
    else:
        draft.put(f"framework_options.{name}", given)


def _either(reader: Reader, name: str) -> Taken[object] | None:
    for prefix in _KEYS:
        if (found := reader.take(f"fsdp_config.{prefix}{name}")) is not None:
            return found
    return None
