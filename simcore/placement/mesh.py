"""The device mesh: named axes, two views of the same ranks, and no table of ranks.

Ranks are row-major over `pp, dp_replicate, dp_shard, cp, tp` (tp fastest). The expert view re-cuts the ranks of one
pipeline stage as `expert_dp, ep, etp` (etp fastest), as Megatron-Core (`parallel_state.py`, order tp-cp-ep-dp-pp) and
NeMo Automodel (`mesh_utils.py`, moe mesh) both do. An axis is a digit of the rank: `rank // stride % size`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["Axis", "IntArray", "Mesh"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Axis:
    """One mesh axis, or view of several: `size` ranks whose numbers lie `stride` apart.

    It is a digit of the rank: the coordinate is `rank // stride % size`.
    """

    name: str
    size: int
    stride: int

    def coordinate(self, rank: int) -> int:
        """Returns the coordinate of `rank` on this axis."""
        return rank // self.stride % self.size

    def coordinates(self, ranks: IntArray) -> IntArray:
        """Returns the coordinate on this axis of each of `ranks`, in the same order."""
        return ranks // self.stride % self.size


@dataclass(frozen=True, slots=True)
class Mesh:
    """Sizes of a job's axes of parallelism: pipeline, data (replicas, shards), context, tensor, expert.

    `etp`: tensor parallelism of experts. `ep * etp` must divide the ranks of a pipeline stage (frameworks check and
    cite their rule).
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def stage_size(self) -> int:
        """Number of ranks of one pipeline stage."""
        return self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def size(self) -> int:
        """Number of ranks of the job."""
        return self.pp * self.stage_size

    @property
    def expert_dp(self) -> int:
        """Number of ranks of a stage that share the same part of the same experts, each with a copy or a shard."""
        return self.stage_size // (self.ep * self.etp)

    def axis(self, name: str) -> Axis:
        """Returns an axis by its name: a field of the mesh, "expert_dp", a view of several axes, "name/n" or "name%n".

        Views: dp, dp_shard_cp, dp_cp, expert_dp_shard, expert_dp_replicate, world. "dp_shard_cp/4" is groups of 4
        neighbours on dp_shard_cp, "cp%2" groups of those that lie 2 apart on cp.
        """
        return _axis(self, name)

    def digit(self, name: str) -> tuple[int, int]:
        """Returns (size, stride) of the axis or view `name`; KeyError for an unknown name.

        Size: number of ranks; stride: distance of neighbours in rank numbers.
        """
        digits = {
            "tp": (self.tp, 1),
            "cp": (self.cp, self.tp),
            "dp_shard": (self.dp_shard, self.tp * self.cp),
            "dp_replicate": (self.dp_replicate, self.tp * self.cp * self.dp_shard),
            "dp": (self.dp_replicate * self.dp_shard, self.tp * self.cp),
            "dp_shard_cp": (self.dp_shard * self.cp, self.tp),
            "dp_cp": (self.dp_replicate * self.dp_shard * self.cp, self.tp),
            "etp": (self.etp, 1),
            "ep": (self.ep, self.etp),
            "expert_dp": (self.expert_dp, self.ep * self.etp),
            "expert_dp_shard": (max(1, self.expert_dp // self.dp_replicate), self.ep * self.etp),
            "expert_dp_replicate": (self.dp_replicate,
                                    self.ep * self.etp * max(1, self.expert_dp // self.dp_replicate)),
            "pp": (self.pp, self.stage_size),
            "world": (self.size, 1),
        }
        return digits[name]

    def group(self, rank: int, name: str) -> range:
        """Returns the ranks that communicate with `rank` along axis `name`: rising order, itself included."""
        axis = self.axis(name)
        base = rank - axis.coordinate(rank) * axis.stride
        return range(base, base + axis.size * axis.stride, axis.stride)


@lru_cache(maxsize=4096)
def _axis(mesh: Mesh, name: str) -> Axis:
    whole, _, part = name.partition("/")
    if part:
        return Axis(name, int(part), mesh.axis(whole).stride)
    whole, _, apart = name.partition("%")
    if apart:
        axis = mesh.axis(whole)
        return Axis(name, axis.size // int(apart), axis.stride * int(apart))
    size, stride = mesh.digit(whole)
    return Axis(name, size, stride)
