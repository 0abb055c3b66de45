"""Memory of a process on the GPU outside torch's allocator: the CUDA context, buffers of NCCL and token dispatchers.

[Note: NCCL's buffers]
A communicator for rings and trees is counted as measured: on A100 544 MiB for two ranks and 688 MiB for more (nccl
issue 964: four A100 on NVLink, one all-reduce in each group); on later GPUs 342 and 392 MiB (aiconfigurator 095f58a5,
system files). Sends and receives connect every pair by 32 channels with 14 MiB each: 3.06 GiB with seven peers (nccl
issue 1685: first all-to-all of eight H100), without NVLink by 2 (`graph/paths.cc`, ncclTopoGetNchannels); one buffer
of 10 MiB is 4 MiB Simple, 4.7 MiB LL128 and 0.5 MiB LL in pages of 2 MiB (nccl 5067397c `init.cc:810`), the rest is
on the sender's side. Peers in other nodes share buffers and are not counted; no measurement of a
larger node is known, so at most seven peers are counted.

[Note: DeepEP's buffer]
DeepEP dd758ca `csrc/legacy/config.hpp` `get_nvl_buffer_size_hint` and `get_rdma_buffer_size_hint`, with the settings of
`deep_ep/buffers/legacy.py` for 20 SMs, the larger one of dispatch and combine (they differ in chunks that are sent, not
in those received); 32 MiB of workspace (`csrc/legacy/buffer.hpp:149`). cudaMalloc and NVSHMEM, so outside torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from simcore.hardware.topology import Topology
from simcore.placement.libraries import KernelLibraries
from simcore.placement.mesh import Mesh

__all__ = ["CommSetup", "Communication", "OutsideMemory", "deepep_bytes", "outside", "paged"]

MIB: Final = 2**20
AMPERE: Final = 8
_RINGS: Final = {True: (544, 688), False: (342, 392)}
"""MiB of a communicator of (two, more) ranks; True: Ampere and older, False: later architectures."""
_PER_CHANNEL: Final = 14 * MIB
_NVLINK_CHANNELS, _PCIE_CHANNELS, _MOST_PEERS = 32, 2, 7
_PAIRWISE: Final = {"all_to_all": _MOST_PEERS, "send_recv": 2}
"""Collectives made of sends and receives, and the largest number of peers of a rank."""

_DEEPEP_CHANNELS: Final = 10
_DEEPEP_RECEIVED: Final = {8: 256, 16: 288, 24: 288, 32: 288, 48: 288, 64: 288, 96: 480, 128: 560, 144: 720, 160: 720}
"""Tokens that a channel receives over NVLink, by the number of ranks (up to); over RDMA always 128."""
_DEEPEP_RDMA_RECEIVED: Final = 128


@dataclass(frozen=True, slots=True)
class OutsideMemory:
    """GPU memory of one category outside torch's caching allocator, in bytes, on one rank.

    `kind`: evidence for the number: derived from code, calibrated on measurements, or assumed. `source`: where it is
    from.
    """

    category: Literal["context", "nccl", "dispatcher", "workspace", "paged_states"]
    num_bytes: int
    kind: Literal["derived", "calibrated", "assumed"]
    source: str


class Communication(Protocol):
    """Collective on a mesh axis (of a copy its direction) in a group of ranks, such as a `TrafficRow`."""

    @property
    def collective(self) -> str:
        """Name of the collective."""

    @property
    def axis(self) -> str:
        """Name of the mesh axis."""

    @property
    def group_size(self) -> int:
        """Number of ranks of a group."""


@dataclass(frozen=True, slots=True)
class CommSetup:
    """Inputs of the sizes of communication buffers on one rank: layout, machine, libraries, tokens.

    `tokens`: of one microbatch on the rank, before sequence parallelism. `hidden`: elements of a token;
    `expert_hidden`: elements of a token as it is sent to experts.
    """

    mesh: Mesh
    topology: Topology
    libraries: KernelLibraries
    tokens: int
    hidden: int
    expert_hidden: int


def outside(site: CommSetup, traffic: Iterable[Communication]) -> tuple[OutsideMemory, ...]:
    """GPU memory of one rank outside torch's allocator, one entry a category.

    Categories: the CUDA context, NCCL's buffers for the communicators in `traffic` (the rank's collectives of a step),
    token dispatcher buffers, and TransformerEngine's user buffers; those of 0 bytes are omitted.
    """
    context = site.topology.device.memory.context
    kind: Literal["calibrated", "assumed"] = "assumed" if context.kind == "assumed" else "calibrated"
    parts = (OutsideMemory("context", int(context), kind, context.source), _nccl(site, list(traffic)),
             _dispatcher(site), _user_buffers(site))
    return tuple(part for part in parts if part.num_bytes)


def paged(num_bytes: int) -> tuple[OutsideMemory, ...]:
    """One entry for `num_bytes` of paged optimizer states that are on the device; () for 0 bytes.

    Paged states (cudaMallocManaged) stay on the device as long as nothing else needs the room.
    """
    source = "bitsandbytes 95f9af30 functional.py get_paged: cudaMallocManaged; what has room stays on the device"
    return (OutsideMemory("paged_states", num_bytes, "assumed", source),) * bool(num_bytes)


# ---- NCCL -----------------------------------------------------------------------------------------------------------
def _nccl(site: CommSetup, traffic: list[Communication]) -> OutsideMemory:
    """Buffers of NCCL's communicators, and memory of their groups that is symmetric.

    Copies to the host and back do not use NCCL.
    """
    traffic = [row for row in traffic if row.collective != "copy"]
    rings = {row.axis: row.group_size for row in traffic if row.collective not in _PAIRWISE}
    if site.mesh.size not in (1, *rings.values()):
        rings["world"] = site.mesh.size
    pairs = {(row.axis, row.collective) for row in traffic if row.collective in _PAIRWISE}
    num_bytes = sum(_rings(site, size) for size in rings.values()) + sum(_pairs(site, *pair) for pair in pairs)
    symmetric = ", torch 2.13 distributed/_symmetric_memory/__init__.py get_symm_mem_workspace"
    return OutsideMemory("nccl", num_bytes + _symmetric(site), "assumed",
                         "nccl issues 964 and 1685, aiconfigurator 095f58a5: single readings, for "
                f"{len(rings)} communicators with rings and {len(pairs)} with sends"
                + symmetric * bool(site.libraries.pipelined))


def _symmetric(site: CommSetup) -> int:
    """Two pieces, one a rank, of a product's output in 16 bits, whose whole is a layer's output."""
    ranks = site.libraries.pipelined
    return 2 * 2 * site.tokens * site.hidden // ranks if ranks else 0


def _rings(site: CommSetup, size: int) -> int:
    two, more = _RINGS[site.topology.device.architecture <= AMPERE]
    return (two if size == 2 else more) * MIB


def _pairs(site: CommSetup, axis: str, collective: str) -> int:
    """Buffers for sends and receives; tokens of experts go through the dispatcher's own buffers, if it has any."""
    if collective == "all_to_all" and axis == "ep" and site.libraries.dispatcher != "nccl":
        return 0
    group = site.mesh.axis(axis)
    link = site.topology.link(group.size, group.stride, site.mesh.size)
    channels = _NVLINK_CHANNELS if site.topology.node.nvlink else _PCIE_CHANNELS
    return min(link.ranks_per_node - 1, _PAIRWISE[collective]) * channels * _PER_CHANNEL


# ---- TransformerEngine's user buffers --------------------------------------------------------------------------------
def _user_buffers(site: CommSetup) -> OutsideMemory:
    """Ten user buffers of the size of a layer's full input: six to gather into, four to reduce in."""
    return OutsideMemory("workspace", site.libraries.user_buffer_bytes * site.tokens * site.hidden, "assumed",
                "TransformerEngine 2.18 pytorch/module/base.py initialize_ub: memory of its own, outside torch")


# ---- token dispatchers ----------------------------------------------------------------------------------------------
def _dispatcher(site: CommSetup) -> OutsideMemory:
    ep = site.mesh.ep if site.libraries.dispatcher != "nccl" else 1
    if ep == 1:
        return OutsideMemory("dispatcher", 0, "derived", "")
    if site.libraries.dispatcher == "hybridep":
        return OutsideMemory("dispatcher", 2 * 2 * site.tokens * ep * site.expert_hidden, "assumed",
                    "DeepEP branch hybrid-ep, allocator.cu: of the order of two buffers for every token of all ranks")
    return OutsideMemory("dispatcher", deepep_bytes(site.expert_hidden, ep), "derived",
                         "DeepEP dd758ca csrc/legacy/config.hpp, "
                "20 SMs; buffers of HBM outside torch")


def deepep_bytes(hidden: int, ep: int) -> int:
    """Bytes of DeepEP's buffers (NVLink and RDMA) and of its workspace on one rank.

    Tokens are bf16, of `hidden` elements. `ep`: number of ranks that exchange tokens (expert parallelism).
    """
    row = 2 * hidden + 8 + 128 * (8 + 4 + 4)  # the token, its source, room for 128 choices and scales
    received = _DEEPEP_RECEIVED[min((size for size in _DEEPEP_RECEIVED if size >= ep), default=160)]
    near, far = min(ep, 8), ep // 8
    nvlink = _DEEPEP_CHANNELS * near * (4 * (2 * max(far, 1) + 3) + received * row)
    rdma = _DEEPEP_CHANNELS * far * 2 * (4 * 18 + _DEEPEP_RDMA_RECEIVED * (row + 16)) if ep > 8 else 0
    return _aligned(nvlink) + _aligned(rdma) + 32 * MIB


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // 128) * 128
