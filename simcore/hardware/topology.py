"""A cluster: nodes of GPUs and the links between them, read from `topologies/*.yaml`.

A *node* here is a group of GPUs joined by NVLink (8 of a DGX, 72 of an NVL72); a *host* is a group of GPUs that share
one host memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from simcore.errors import InputError, Problem
from simcore.hardware.collective_curves import Curves, find_curves, load_curves
from simcore.hardware.device import Device
from simcore.hardware.efficiency import Efficiency, find_efficiency, load_efficiency
from simcore.hardware.node_spread import worst_spread
from simcore.hardware.nvme import Nvme
from simcore.inputs.document import Document, named_at, read_document
from simcore.inputs.file_cache import FileCache
from simcore.inputs.quantity import Bytes, Duration, Frozen, GpuCount, Price, Rate, read_values
from simcore.inputs.shipped import data_folder, find_file

__all__ = ["BusBandwidth", "Fabric", "HostLink", "Link", "Node", "Topology", "load_topology", "topology_names"]


class BusBandwidth(Frozen):
    """Bus bandwidth (as nccl-tests defines it) that one rank reaches, for each collective."""

    all_gather: Rate
    reduce_scatter: Rate
    all_reduce: Rate
    all_to_all: Rate
    send_recv: Rate


def _most_on_bus(collective: str, bandwidth: float, *, sums_in_switch: bool) -> float:
    """Largest bus bandwidth in bytes/s that a link of `bandwidth` allows: see `Fabric`."""
    return bandwidth * (2 if collective == "all_reduce" and sums_in_switch else 1)


class Fabric(Frozen):
    """Interconnect of one level: between the GPUs of a node, or between nodes.

    `bandwidth`: one GPU, one way, datasheet; of a network, its share of the node's NICs. `latency`: of a call;
    `hop_latency`: added per hop of a ring inside a node, per square root of the number of nodes across nodes. `curves`:
    measured times inside one host, the name of a built-in file (`topologies/nccl/`) or a path. `sums_in_switch`: the
    switch reduces data on their way (NVLS), so every byte of an all-reduce is sent once, and its bus bandwidth, which
    counts it twice, may be up to twice the link's. No other collective may exceed the link. `joined_to`: other GPUs to
    which each has a link of its own, None behind a switch; all bus bandwidths but a message's are those of all links.
    """

    bandwidth: Rate
    latency: Duration
    hop_latency: Duration
    sums_in_switch: bool = False
    joined_to: GpuCount | None = None
    bus_bandwidth: BusBandwidth
    curves: str | None = None

    @field_validator("bus_bandwidth")
    @classmethod
    def _passes(cls, reached: BusBandwidth, info: ValidationInfo) -> BusBandwidth:
        link: Rate | None = info.data.get("bandwidth")
        if link is None:  # refused already
            return reached
        for name in BusBandwidth.model_fields:
            most = _most_on_bus(name, link.si, sums_in_switch=bool(info.data.get("sums_in_switch")))
            if getattr(reached, name).si > most:
                raise ValueError(f"{name}: {getattr(reached, name).value} is more than the link carries "
                                 f"(bandwidth: {link.value})")
        return reached


class HostLink(Frozen):
    """Link between one GPU and its host's memory: one-way bandwidths, and the latency of a copy.

    `bandwidth`: datasheet; `to_device`, `to_host`: measured copies with pinned memory.
    """

    bandwidth: Rate
    to_device: Rate
    to_host: Rate
    latency: Duration

    def way(self, direction: str) -> Link:
        """`Link` named "host" for copies in one `direction`, "to_host" or "to_device".

        Its bandwidth was measured with pinned memory; pageable memory is assumed to be as fast.
        """
        return Link("host", int(self.to_device if direction == "to_device" else self.to_host), self.latency.si, 1, 1)


class Node(Frozen):
    """One node: GPUs joined by one fabric, and the memory, links and drives of its hosts.

    `host_memory`: bytes of each host; `gpus_per_host`: set where a node (NVLink domain) has several hosts.
    `host_bandwidth`: bandwidth of a host's memory over all channels; without it no optimizer on a CPU is timed.
    `unified`: the source for one memory that host and device share; None: they have two. `nvme`: the host's drives, if
    known. `nvlink`: NVLink, or AMD's Infinity Fabric; `pcie`: for GPUs that have no faster link to each other.
    """

    gpus: GpuCount
    gpus_per_host: GpuCount | None = None
    nvlink: Fabric | None = None
    pcie: Fabric | None = None
    host_memory: Bytes
    host_bandwidth: Rate | None = None
    unified: str | None = None
    host_link: HostLink
    nvme: Nvme | None = None

    @model_validator(mode="after")
    def _joined(self) -> Self:
        if int(self.gpus) > 1 and (self.nvlink is None) == (self.pcie is None):
            raise ValueError("a node of several GPUs needs the one link between them: nvlink or pcie")
        if self.gpus_per_host is not None and int(self.gpus) % int(self.gpus_per_host):
            raise ValueError("gpus must be a multiple of gpus_per_host")
        return self

    @property
    def fabric(self) -> Fabric | None:
        """Fabric between the GPUs of the node (`nvlink`, else `pcie`); None: a single GPU without either."""
        return self.nvlink or self.pcie


@dataclass(frozen=True, slots=True)
class Link:
    """Slowest link that the ranks of one communicator use, and how they are spread over nodes.

    `bytes_per_s`: one rank, one way, datasheet; `latency_s`: seconds of a call. `ranks_per_node`: the fewest members on
    any node that has a member; `num_nodes`, `num_hosts`: nodes and hosts with a member (a node may have several hosts).
    `fabric`: the level that is crossed; None: every collective reaches `bytes_per_s`. `local`: the level inside the
    node, for a network link. `name`: "nvlink" is the level inside a node, also where it is PCIe; "host" is between a
    GPU and its host's memory; "self" is a communicator of one rank.
    """

    name: Literal["nvlink", "network", "self", "host"]
    bytes_per_s: int
    latency_s: float
    ranks_per_node: int
    num_nodes: int
    fabric: Fabric | None = None
    local: Fabric | None = None
    num_hosts: int = 1


class Topology(Frozen):
    """A cluster of equal nodes, and the shares of its GPUs' peaks that kernels reach (`efficiency`).

    `num_nodes` None: as many as the job needs; `price_per_gpu_hour` None: unknown. `network` None: one node only.
    """

    name: str
    device: Device
    efficiency: Efficiency
    node: Node
    network: Fabric | None = None
    num_nodes: int | None = Field(None, ge=1, strict=True)
    price_per_gpu_hour: Price | None = None

    @property
    def gpus_per_node(self) -> int:
        """Number of GPUs of one node, which are joined by NVLink (or PCIe)."""
        return int(self.node.gpus)

    @property
    def gpus_per_host(self) -> int:
        """Number of GPUs that share one host's memory; equal to `gpus_per_node` if a node is one host."""
        return int(self.node.gpus_per_host or self.node.gpus)

    @property
    def max_gpus(self) -> int | None:
        """Number of GPUs of the cluster; None if its number of nodes is not given."""
        return None if self.num_nodes is None else self.num_nodes * self.gpus_per_node

    def gpus_taken(self, world_size: int) -> int:
        """Number of GPUs of each node that a job of `world_size` ranks takes; in most cases all of them.

        Where a node (NVLink domain) has several hosts, a larger job takes the same number of hosts from each.
        Megatron-Bridge's rule (`--segment` of Slurm, 067f987d scripts/performance/utils/executors.py:168): the largest
        number of a domain's hosts that divides the job's, so 256 GPUs of GB200 are 64 in each of four domains of 72. If
        that is less than half of a domain, whole domains are taken.
        """
        hosts, remainder = divmod(world_size, self.gpus_per_host)
        if remainder or world_size <= self.gpus_per_node or self.gpus_per_host == self.gpus_per_node:
            return self.gpus_per_node
        hosts_per_node = self.gpus_per_node // self.gpus_per_host
        max_nodes = self.num_nodes or hosts
        even = (taken for taken in range(hosts_per_node, hosts_per_node // 2 - 1, -1)
                if hosts % taken == 0 and hosts <= taken * max_nodes)
        return next(even, hosts_per_node) * self.gpus_per_host

    def bounded(self, num_nodes: int, where: str = "topology") -> Topology:
        """Copy of the topology with `num_nodes` nodes.

        InputError, with `where` as its place, if that is less than one or more than the cluster has.
        """
        if not 1 <= num_nodes <= (self.num_nodes or num_nodes):
            there = self.num_nodes or "one or more"
            raise _problem(where, f"num_nodes: {self.name} has {there} node(s), not {num_nodes}")
        return self.model_copy(update={"num_nodes": num_nodes})

    def limited(self, power_limit: str, where: str = "topology.power_limit") -> Topology:
        """Copy of the topology whose GPUs may draw only `power_limit` (such as "500 W").

        InputError, with `where` as its place, for a limit that `Device` refuses.
        """
        limit = {"value": power_limit, "source": "the scenario"}
        try:
            device = Device.model_validate({**self.device.model_dump(), "power_limit": limit})
        except ValidationError as error:
            told = (one["msg"].removeprefix("Value error, ") for one in error.errors())
            raise _problem(where, "; ".join(told)) from None
        return self.model_copy(update={"device": device})

    def narrowed(self, gpus_per_node: int) -> Topology:
        """Copy of the topology whose nodes have only `gpus_per_node` GPUs.

        A queue gives out such parts of a large NVLink domain. InputError if a node has fewer GPUs, or if a number above
        one host is not a multiple of whole hosts.
        """
        node, host = self.node, self.gpus_per_host
        if not 1 <= gpus_per_node <= self.gpus_per_node or (gpus_per_node % host and gpus_per_node > host):
            raise _problem("topology.gpus_per_node", f"{gpus_per_node}: expected at most {self.gpus_per_node}, in "
                           f"whole hosts of {host}")
        kept = GpuCount(value=f"{gpus_per_node} GPU", kind=node.gpus.kind, source=node.gpus.source)
        hosts = node.gpus_per_host if gpus_per_node > host else None
        return self.model_copy(update={"node": node.model_copy(update={"gpus": kept, "gpus_per_host": hosts})})

    def check_world_size(self, world_size: int, where: str = "mesh") -> None:
        """Raises InputError if the cluster has fewer than `world_size` GPUs, or needs a network and has none.

        `where` is the place that the error names.
        """
        if self.max_gpus is not None and world_size > self.max_gpus:
            raise _problem(where, f"{world_size} ranks do not fit on {self.name}: {self.num_nodes} node(s) of "
                                  f"{self.gpus_per_node} GPU(s) = {self.max_gpus}")
        if world_size > self.gpus_per_node and self.network is None:
            raise _problem(where, f"{world_size} ranks need several nodes, and {self.name} has no network")

    def link(self, group_size: int, stride: int, world_size: int | None = None) -> Link:
        """Slowest link of a communicator of the ranks base, base + stride, ...; nodes hold consecutive ranks.

        `world_size` ranks are cut into several such groups (None: one group, group_size * stride ranks); the answer is
        for the one that is spread worst: over several nodes, then fewest members in one node, then most nodes. A group
        of one rank has the link "self". InputError if there are too few GPUs or no network.
        """
        if group_size < 1 or stride < 1:
            raise ValueError(f"group of {group_size} with stride {stride}")
        world = max(world_size or 0, group_size * stride)
        self.check_world_size(world)
        if group_size == 1:
            return Link("self", int(self.device.memory_bandwidth), 0.0, 1, 1)
        num_nodes, ranks_per_node = worst_spread(group_size, stride, world, self.gpus_taken(world))
        fabric = self.node.fabric if num_nodes == 1 else self.network
        if fabric is None:
            raise _problem("topology", f"{self.name} has no link for a group of {group_size} with stride {stride}")
        bandwidth, latency = int(fabric.bandwidth), fabric.latency.si
        num_hosts, _ = worst_spread(group_size, stride, world, self.gpus_per_host)
        if num_nodes == 1:
            return Link("nvlink", bandwidth, latency, ranks_per_node, 1, fabric, None, num_hosts)
        return Link("network", bandwidth, latency, ranks_per_node, num_nodes, fabric, self.node.fabric, num_hosts)


@lru_cache(maxsize=1)
def _files() -> dict[str, Path]:
    return {path.stem: path for path in data_folder("topologies").glob("*.yaml")}


def topology_names() -> tuple[str, ...]:
    """Names of the built-in topologies (`topologies/`, without `.yaml`), sorted."""
    return tuple(sorted(_files()))


def load_topology(ref: str | Path, num_nodes: int | None = None, where: str = "topology") -> Topology:
    """Reads the built-in topology named `ref`, or the file at path `ref`.

    `num_nodes`: number of nodes of the result; None: as in the file. InputError: no such name or file (the error names
    the place `where`, which asked for it), wrong keys and quantities (all of them at once), fewer nodes than
    `num_nodes`. A file is read once, and again when it, or a file that it names, has changed.
    """
    path = find_file("topology", ref, _files(), where)
    with named_at(where, path):
        topology = _read(path)
    return topology if num_nodes is None else topology.bounded(num_nodes, where)


def _parsed(path: Path) -> tuple[Topology, list[Path]]:
    """Topology of a file, and the other files that it names, whose change changes the topology or its times."""
    load_curves.cache_clear()
    document = read_document(path)
    named = {"efficiency": _efficiency(document)} if "efficiency" in document.data else {}
    topology = _with_curves(read_values(Topology, document, **named), document)
    files = [find_efficiency(document.data["efficiency"], folder=document.folder)] if named else []
    if (fabric := topology.node.fabric) is not None and fabric.curves is not None:
        files.append(Path(fabric.curves))
    return topology, files


_read = FileCache(_parsed)


def _with_curves(topology: Topology, document: Document) -> Topology:
    """Replaces the name of a file of measured curves by its path; the file is read to hold it to the link."""
    fabric, level = topology.node.fabric, "nvlink" if topology.node.nvlink else "pcie"
    if fabric is None or fabric.curves is None:
        return topology
    where = document.where(("node", level, "curves"))
    path = find_curves(fabric.curves, where, document.folder)
    _check_curves(load_curves(path), fabric, where, f"node.{level}.curves")
    level_fabric = fabric.model_copy(update={"curves": str(path)})
    return topology.model_copy(update={"node": topology.node.model_copy(update={level: level_fabric})})


def _check_curves(curves: Curves, fabric: Fabric, where: str, key: str) -> None:
    """Raises InputError for a measured time in which the link could not have carried the bytes."""
    for (collective, ranks), curve in curves.by_ranks.items():
        most = _most_on_bus(collective, fabric.bandwidth.si, sums_in_switch=fabric.sums_in_switch)
        on_bus = (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks  # as nccl-tests defines it
        for size, ns in zip(curve.sizes, curve.times, strict=True):
            if size * on_bus > most * ns * 1e-9 * (1 + 1e-9):
                raise _problem(where, f"{key}: {collective} of {ranks} ranks, {size} bytes in {ns / 1000:g} us, is "
                               f"more than the link carries (bandwidth: {fabric.bandwidth.value}): a curve of "
                               "another machine?")


def _efficiency(document: Document) -> Efficiency:
    ref, where = document.data["efficiency"], document.where(("efficiency",))
    if not isinstance(ref, str):
        raise _problem(where, f"efficiency: expected the name or path of an efficiency file, got {ref!r}")
    return load_efficiency(ref, where, document.folder)


def _problem(where: str, message: str) -> InputError:
    return InputError(Problem(where, message))

