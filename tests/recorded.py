"""Memory snapshots written by hand, in the form of torch's own: making a real one needs CUDA.

Keys and states are those of torch 2.13 (`torch/cuda/memory.py` `_snapshot`, `torch/csrc/cuda/memory_snapshot.cpp`);
frames are functions that torch, FSDP2 and Megatron have in these files, innermost first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["BACKWARD", "FORWARD", "GATHER", "LOADED", "MIB", "RECOMPUTE", "REDUCE", "STATES", "STEP", "frames",
           "snapshot", "step"]

MIB = 2**20
BASE = 0x7F1234000000
SITE = "/opt/venv/lib/python3.12/site-packages/"

Frames = list[dict[str, Any]]
Event = tuple[str, int, int, Frames]
"""(action, address as a number of MiB, size, frames)."""


def frames(*places: str) -> Frames:
    """`torch/optim/adam.py:178:_init_group`, innermost first."""
    made = []
    for place in places:
        file, line, name = place.split(":", 2)
        made.append({"filename": SITE + file, "line": int(line), "name": name})
    return made


CALL = ("torch/nn/modules/module.py:1780:_call_impl", "train.py:40:main")
LOADED = frames("torch/nn/modules/module.py:990:_apply", "torch/nn/modules/module.py:1100:to_empty", "train.py:20:main")
FORWARD = frames("torch/nn/modules/linear.py:130:forward", *CALL)
GATHER = frames("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:59:allocate",
                "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:351:foreach_all_gather",
                "torch/distributed/fsdp/_fully_shard/_fsdp_state.py:240:_pre_forward", *CALL)
REDUCE = frames("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:597:foreach_reduce",
                "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:600:post_backward",
                "torch/autograd/function.py:300:apply")
RECOMPUTE = frames("torch/nn/functional.py:2300:silu", "torch/nn/modules/module.py:1780:_call_impl",
                   "torch/utils/checkpoint.py:1180:unpack_hook")
STATES = frames("torch/optim/adam.py:178:_init_group", "torch/optim/adam.py:240:step", "train.py:50:main")
STEP = frames("torch/optim/adam.py:600:_multi_tensor_adam", "torch/optim/adam.py:240:step", "train.py:50:main")
BACKWARD: Frames = []


def snapshot(events: Iterable[Event], blocks: Iterable[tuple[int, int, Frames]], *, device: int = 0, devices: int = 8,
             reserved: int = 64 * MIB) -> dict[str, Any]:
    """`blocks`: those that are allocated at the end, as (address in MiB, requested bytes, frames)."""
    traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
    for when, (action, address, size, stack) in enumerate(events):
        place = {"device_free": address * MIB} if action == "oom" else {"addr": BASE + address * MIB}
        traces[device].append({"action": action, **place, "size": size, "stream": 0, "time_us": 10**15 + when,
                               "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), "frames": stack})
    return {"segments": [segment(list(blocks), device, reserved)], "device_traces": traces,
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1,
                                   "garbage_collection_threshold": 0.0, "expandable_segments": False,
                                   "roundup_power2_divisions": {"1": 0, "2": 0}},
            "external_annotations": []}


def segment(live: list[tuple[int, int, Frames]], device: int, size: int) -> dict[str, Any]:
    """Blocks that tile it, in 512 B."""
    blocks: list[dict[str, Any]] = []
    end = 0
    for address, requested, stack in sorted(live, key=lambda one: one[0]):
        rounded = -(-requested // 512) * 512
        blocks += gap(end, address * MIB)
        blocks.append({"address": BASE + address * MIB, "size": rounded, "requested_size": requested,
                       "state": "active_allocated", "frames": stack})
        end = address * MIB + rounded
    blocks += gap(end, size)
    held = sum(one["size"] for one in blocks if one["state"] == "active_allocated")
    return {"device": device, "address": BASE, "total_size": size, "allocated_size": held, "active_size": held,
            "requested_size": sum(requested for _, requested, _ in live), "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks}


def gap(start: int, end: int) -> list[dict[str, Any]]:
    empty = {"address": BASE + start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}
    return [empty] if end > start else []


def step() -> dict[str, Any]:
    """A window that begins after the parameters (10 MiB) and a lost gather (2 MiB) were made.

    Its peak, 10 + 2 + 8 + 4 + 6 + 5 MiB, is in backward; states of 9 MiB come later, and a temporary of 1.
    """
    events: list[Event] = [
        ("alloc", 20, 8 * MIB, FORWARD), ("alloc", 30, 4 * MIB, GATHER), ("alloc", 35, 6 * MIB, BACKWARD),
        ("alloc", 45, 5 * MIB - 100, REDUCE), ("free_requested", 45, 5 * MIB - 100, []),
        ("free_completed", 45, 5 * MIB - 100, []), ("free_requested", 12, 2 * MIB, []),
        ("free_completed", 12, 2 * MIB, []),
        ("free_requested", 20, 8 * MIB, []), ("free_completed", 20, 8 * MIB, []), ("free_requested", 30, 4 * MIB, []),
        ("free_completed", 30, 4 * MIB, []), ("alloc", 14, 9 * MIB, STATES), ("alloc", 46, MIB, STEP),
        ("free_requested", 46, MIB, []), ("free_completed", 46, MIB, []), ("snapshot", 0, 0, [])]
    return snapshot(events, [(0, 10 * MIB, LOADED), (35, 6 * MIB, BACKWARD), (14, 9 * MIB, STATES)])
