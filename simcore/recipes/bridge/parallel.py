"""Degrees, overlap and number of GPUs of Megatron-Bridge's configurations."""

from __future__ import annotations

import re
from typing import Final

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.world import share_out

__all__ = ["BUCKET", "WHOLE", "gpus_of", "machine_of", "read_degrees", "read_overlap", "unknown_machine"]

_DEGREES: Final = {"pp": "pipeline", "cp": "context", "tp": "tensor"}
_OPTION: Final = "framework_options."
_OVERLAPS: Final = "Megatron-FSDP gathers and reduces beside products by itself"
BUCKET: Final = 128 * 2**20
WHOLE: Final = 2**40
"""Elements that no bucket reaches."""
_SIZE: Final = re.compile(r"_(\d+)gpu_([a-z]+\d+)")
_MACHINES: Final = {"h100": "dgx-h100", "h200": "dgx-h200", "b200": "dgx-b200", "b300": "dgx-b300",
                    "gb200": "gb200-nvl72", "gb300": "gb300-nvl72"}


def gpus_of(name: str, where: str) -> Answer | None:
    """Number of GPUs that a recipe's name says (`..._8gpu_h100_...`); None for one without."""
    found = _SIZE.search(name)
    return Answer(int(found[1]), f"{where} (its name says {found[1]} GPUs)") if found else None


def machine_of(name: str) -> str:
    """Topology that a recipe's name says; "" for one without."""
    found = _SIZE.search(name)
    return _MACHINES.get(found[2], "") if found else ""


def unknown_machine(name: str) -> str:
    """GPU that a recipe's name says and no topology has, such as `vr200`; "" for a known one, or none."""
    found = _SIZE.search(name)
    return found[2] if found and found[2] not in _MACHINES else ""


def read_degrees(reader: Reader, draft: Draft, gpus: Answer | None) -> int:
    """Writes the degrees, and returns the number of data-parallel ranks, or 0 if it is asked for."""
    degrees = {axis: reader.integer(f"model.{word}_model_parallel_size" if axis != "cp" else
                                    "model.context_parallel_size") for axis, word in _DEGREES.items()}
    for axis, one in degrees.items():
        if one is not None and one.value != 1:
            draft.put(f"mesh.{axis}", one)
        else:
            draft.use(one, why="1, as without it")
    for axis, key in (("ep", "model.expert_model_parallel_size"), ("etp", "model.expert_tensor_parallel_size")):
        one = reader.integer(key)
        if one is not None and (one.value != 1 or axis == "etp"):
            draft.put(f"mesh.{axis}", one)
        else:
            draft.use(one, why="1, as without it")
    experts = draft.values.get("mesh", {})
    if experts.get("ep", 1) > 1 and "etp" not in experts:
        draft.infer("mesh.etp", 1, "1 where there is expert parallelism; core's default is tp",
                    source="Bridge models/transformer_config.py, _set_moe_expert_tensor_parallel_default")
    if gpus is None:
        draft.ask("mesh.dp_shard", "--gpus N", "number of GPUs")
        return 0
    copies = draft.values.get("mesh", {}).get("dp_replicate", 1)
    made = share_out(draft, gpus, degrees, "mesh.dp_shard", "GPUs over the other degrees",
                     "world size / (tp x pp x cp)")
    if made and copies > 1:
        draft.values["mesh"]["dp_shard"] = made // copies
    return made or 0


def read_overlap(reader: Reader, draft: Draft, data: int) -> None:
    """Writes overlap of gradients, parameters and tensor parallel products, and the size of buckets.

    A `CommOverlapConfig` makes buckets of 128 Mi parameters, and overlaps, where there are several data-parallel ranks,
    whatever `ddp` says, if `ddp` has the distributed optimizer (training/comm_overlap.py, setup, which runs before the
    settings of ddp and optimizer are brought in line). Without one `ddp` or the optimizer says it (training/config.py).
    tp_comm_overlap needs tp and sequence parallelism.
    """
    shards = draft.has_option("data_parallel_sharding_strategy")
    scatters = reader.flag("ddp.use_distributed_optimizer")
    has_one = reader.is_mapping("comm_overlap") and scatters is not None and scatters.value
    overlaps = True
    for name in ("overlap_param_gather", "overlap_grad_reduce"):
        given = [reader.flag(f"{block}.{name}") for block in ("comm_overlap", "ddp", "optimizer")]
        draft.use(*given, why=_OVERLAPS if shards else "on, as without it" if not has_one else
                  "comm_overlap goes before ddp and the optimizer, and overlaps where there are several data-parallel "
                  "ranks (training/comm_overlap.py)")
        own = given[0].value if given[0] is not None else data != 1
        overlaps = own if has_one else any(one.value for one in given if one) or not any(given)
        if not overlaps and not shards:
            draft.infer(f"{_OPTION}{name}", False, "comm_overlap, else ddp or the optimizer", *given)  # noqa: FBT003
    _read_products(reader, draft)
    few = reader.integer("ddp.num_buckets")
    if few is not None and overlaps:
        draft.put(f"{_OPTION}num_buckets", few)
    else:
        draft.idle(few, "without overlap_grad_reduce there is one bucket")
    _read_buckets(reader, draft, overlaps=overlaps, has_one=bool(has_one), is_made=bool(has_one) and data > 1)
    if shards and not overlaps:
        draft.infer(f"{_OPTION}bucket_size", WHOLE, "without overlap_grad_reduce parameters of no unit are one bucket",
                    source="Megatron-LM d98e8a64 megatron_fsdp/param_and_grad_buffer.py:1862")


def _read_buckets(reader: Reader, draft: Draft, *, overlaps: bool, has_one: bool, is_made: bool) -> None:
    """Writes the size of buckets: a CommOverlapConfig's goes before that of ddp, of any (training/comm_overlap.py:570).

    Without either core has a size of its own (Megatron-LM d98e8a64 training/models/dist_utils.py:315). `has_one`: there
    is such a config, and the distributed optimizer; `is_made`: it makes buckets.
    """
    chosen, own = reader.integer("comm_overlap.bucket_size"), reader.integer("ddp.bucket_size")
    if has_one:
        draft.idle(own, "comm_overlap goes before it, with or without a size (training/comm_overlap.py:570)")
    else:
        draft.idle(chosen, "read with the distributed optimizer of ddp alone (training/comm_overlap.py:641)")
        chosen = own
    if chosen is not None and overlaps:
        draft.put(f"{_OPTION}bucket_size", chosen)
    elif chosen is not None:
        draft.idle(chosen, "without overlap_grad_reduce there is one bucket")
    elif is_made and overlaps:
        draft.infer(f"{_OPTION}bucket_size", BUCKET, "128 Mi with a CommOverlapConfig",
                    source="Bridge training/comm_overlap.py")


def _read_products(reader: Reader, draft: Draft) -> None:
    """Writes overlap of matrix products, experts and the head's weight gradients with what is sent."""
    mesh = draft.values.get("mesh", {})
    products, own = reader.flag("comm_overlap.tp_comm_overlap"), reader.flag("model.tp_comm_overlap")
    if products is None:
        products = own
    else:
        draft.idle(own, "comm_overlap.tp_comm_overlap goes before it (training/comm_overlap.py)")
    if products is not None and products.value and mesh.get("tp", 1) > 1 and draft.values["training"].get(
            "sequence_parallel"):
        draft.put(f"{_OPTION}tp_comm_overlap", products)
    else:
        draft.idle(products, "there is one tensor parallel rank, or no sequence parallelism" if products and
                   products.value else "off, as without it")
    details = reader.matching("comm_overlap.tp_comm_overlap_cfg.*")
    if draft.values.get("framework_options", {}).get("tp_comm_overlap"):
        draft.unmodelled(details, "how products are cut while pieces are sent: methods, splits and multiprocessors")
    else:
        draft.idle(details, "tp_comm_overlap is off")
    for name in ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "defer_embedding_wgrad_compute"):
        one = reader.flag(f"comm_overlap.{name}")
        if one is not None and one.value:
            draft.put(f"{_OPTION}{name}", one)
        else:
            draft.idle(one, "off, as without it")
    limit = reader.integer("comm_overlap.wgrad_deferral_limit")
    if limit is not None and draft.values.get("framework_options", {}).get("defer_embedding_wgrad_compute"):
        draft.put(f"{_OPTION}wgrad_deferral_limit", limit)
    else:
        draft.idle(limit, "read with defer_embedding_wgrad_compute alone")
