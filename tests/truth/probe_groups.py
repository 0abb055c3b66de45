"""Which ranks each framework puts into one communicator: its own set-up over torch's fake process group.

    python probe_groups.py megatron > groups/megatron-core-0.16.1.json       (needs megatron-core and torch, no GPU)
    python probe_groups.py automodel > groups/automodel-0.7.0.json           (needs nemo-automodel and torch, no GPU)

    python probe_groups.py torchtitan > groups/torchtitan-0.2.2.json         (needs torchtitan and torch, no GPU)

Axes have our names; what the frameworks call them stands in MEGATRON, AUTOMODEL and TORCHTITAN.
"""

from __future__ import annotations

import json
import logging
import sys
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

Mesh = dict[str, int]
Groups = dict[str, set[tuple[int, ...]]]

CASES: list[Mesh] = [
    {"dp_shard": 32},
    {"dp_shard": 4, "tp": 8},
    {"dp_shard": 32, "ep": 16},
    {"dp_shard": 8, "tp": 4, "ep": 16, "etp": 1},
    {"dp_shard": 8, "tp": 4, "ep": 4, "etp": 4},
    {"pp": 2, "dp_shard": 4, "cp": 2, "tp": 2, "ep": 4, "etp": 2},
    {"pp": 4, "dp_replicate": 2, "dp_shard": 4, "tp": 2, "ep": 2, "etp": 1},
    {"pp": 2, "dp_replicate": 2, "dp_shard": 4, "cp": 2, "ep": 8, "etp": 1},
    {"dp_replicate": 3, "dp_shard": 4, "tp": 2},
]
"""Axes that are left out are 1."""

MEGATRON = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp", "CONTEXT_PARALLEL_GROUP": "cp", "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp", "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp_shard_cp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp", "EXPERT_MODEL_PARALLEL_GROUP": "ep", "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_DATA_PARALLEL_GROUP": "expert_dp", "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1": "expert_dp_replicate",
}
AUTOMODEL = {
    "pp": "pp", "dp_replicate": "dp_replicate", "dp_shard": "dp_shard", "cp": "cp", "tp": "tp", "dp": "dp",
    "dp_shard_cp": "dp_shard_cp", "dp_cp": "dp_cp", "ep": "ep", "ep_shard": "expert_dp",
}
TORCHTITAN = {"pp": "pp", "batch": "dp", "loss": "dp_cp", "dp_replicate": "dp_replicate", "fsdp": "dp_shard_cp",
              "cp": "cp", "tp": "tp", "ep": "ep", "etp": "etp"}


def size_of(mesh: Mesh) -> int:
    """Ranks."""
    size = 1
    for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp"):
        size *= mesh.get(axis, 1)
    return size


def as_rank(rank: int, size: int, ask: Callable[[], None]) -> None:
    """Asks as one rank of `size`."""
    dist.init_process_group(backend="fake", rank=rank, world_size=size, store=FakeStore())
    try:
        ask()
    finally:
        dist.destroy_process_group()


def megatron(mesh: Mesh) -> Groups:
    """Every rank creates all groups, so the first tells them; those of replicas are told by their members."""
    from megatron.core import parallel_state

    groups: Groups = defaultdict(set)
    create = parallel_state.create_group

    def noted(ranks: list[int], *given: Any, **more: Any) -> Any:
        if more.get("group_desc") in MEGATRON:
            groups[MEGATRON[more["group_desc"]]].add(tuple(ranks))
        return create(ranks, *given, **more)

    def ask() -> None:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=mesh.get("tp", 1), pipeline_model_parallel_size=mesh.get("pp", 1),
            context_parallel_size=mesh.get("cp", 1), expert_model_parallel_size=mesh.get("ep", 1),
            expert_tensor_parallel_size=mesh.get("etp", 1),
            num_distributed_optimizer_instances=mesh.get("dp_replicate", 1), create_gloo_process_groups=False)
        parallel_state.destroy_model_parallel()

    parallel_state.create_group = noted
    try:
        as_rank(0, size_of(mesh), ask)
    finally:
        parallel_state.create_group = create
    return groups


def automodel(mesh: Mesh) -> Groups:
    """Every rank knows its own groups alone."""
    from nemo_automodel.components.distributed.config import FSDP2Config
    from nemo_automodel.components.distributed.mesh import ParallelismSizes
    from nemo_automodel.components.distributed.mesh_utils import _create_device_meshes, get_flat_mesh

    groups: Groups = defaultdict(set)
    sizes = ParallelismSizes(tp_size=mesh.get("tp", 1), pp_size=mesh.get("pp", 1), cp_size=mesh.get("cp", 1),
                             ep_size=mesh.get("ep", 1), dp_replicate_size=mesh.get("dp_replicate"))

    def ask() -> None:
        dense, experts = _create_device_meshes(FSDP2Config(), sizes, world_size=size_of(mesh))
        for theirs, ours in AUTOMODEL.items():
            source = experts if theirs in ("ep", "ep_shard") else dense
            if source is not None:
                group = get_flat_mesh(source, theirs).get_group()
                groups[ours].add(tuple(dist.get_process_group_ranks(group)))

    for rank in range(size_of(mesh)):
        as_rank(rank, size_of(mesh), ask)
    return groups


def torchtitan(mesh: Mesh) -> Groups:
    """Every rank knows its own groups alone, and none of an axis of one. Its kernels, which need Triton, stay away."""
    kernels = types.ModuleType("torchtitan.models.moe.kernels")
    kernels.fill_indices_wrapper = kernels.generate_permute_indices = None
    sys.modules[kernels.__name__] = kernels
    from torchtitan.distributed.parallel_dims import ParallelDims

    groups: Groups = defaultdict(set)
    sizes = {axis: mesh.get(axis, 1) for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")}

    def ask() -> None:
        dims = ParallelDims(**sizes, world_size=size_of(mesh))
        dims.build_mesh()
        for theirs, ours in TORCHTITAN.items():
            found = dims.get_optional_mesh(theirs)
            if found is not None:
                groups[ours].add(tuple(dist.get_process_group_ranks(found.get_group())))

    for rank in range(size_of(mesh)):
        as_rank(rank, size_of(mesh), ask)
    return groups


def rows(framework: str) -> Iterator[dict[str, Any]]:
    """A row a case that the framework takes; Automodel cuts no expert by width, torchtitan only as all else."""
    for mesh in CASES:
        if framework != "megatron" and mesh.get("etp", 1) not in (1, mesh.get("tp", 1) * (framework == "torchtitan")):
            continue
        found = {"megatron": megatron, "automodel": automodel, "torchtitan": torchtitan}[framework](mesh)
        yield {"mesh": mesh, "groups": {axis: sorted(found[axis]) for axis in sorted(found)}}


def main() -> None:
    """Print all cases."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    print("[" + ",\n ".join(json.dumps(row) for row in rows(sys.argv[1])) + "]")


if __name__ == "__main__":
    main()
