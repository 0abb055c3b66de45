"""Which way each communication of a job goes: its link, how long a call takes, what crosses which link.

[Note: messages between stages]
A stage sends activations up and gradients down, as many of each, so half of its messages go to each neighbour; with
several chunks a stage the last stage's up go to the first. Which of them share its node is looked up for the rank that
stands for its class. In a ring (context parallelism) every rank sends to the next, and the mean of its ring is told.
Other collectives are counted in the worst-off group of their axis (`Topology.link`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.collective import Crossing, algorithm, collective_ns, crossing, measured_sizes
from simcore.dispatch import Dispatch, dispatch_of
from simcore.framework import Framework
from simcore.job import Job
from simcore.topology import Link, Topology

__all__ = ["HOST_WAYS", "Route", "Routes"]

HOST_WAYS: Final = ("to_host", "to_device")
"""What stands where an axis would, of a copy."""


@dataclass(frozen=True, slots=True)
class Route:
    """Of one collective on one axis. `link`: of its calls; a message crosses nodes where any two neighbours do."""

    collective: str
    group_size: int
    link: Link
    dispatch: Dispatch | None

    @property
    def leaves(self) -> bool:
        """Whether anything leaves the rank."""
        return self.group_size > 1 or self.link.name == "host"

    @property
    def algorithm(self) -> str:
        """How it sends."""
        return algorithm(self.collective, self.link, self.dispatch)

    @property
    def measured(self) -> range:
        """Payloads whose time was measured."""
        return measured_sizes(self.collective, self.group_size, self.link, self.dispatch)

    def ns(self, payload_bytes: int) -> int:
        """Nanoseconds of one call, alone."""
        size = 2 if self.collective == "send_recv" else self.group_size
        return collective_ns(self.collective, payload_bytes, size, self.link, self.dispatch)


class Routes:
    """Of a job on a machine."""

    def __init__(self, job: Job, framework: Framework, topology: Topology) -> None:
        self.mesh, self.topology, self.schedule = job.mesh, topology, framework.schedule
        self.dispatch = dispatch_of(job.graph, framework.libraries)
        self.known: dict[tuple[str, str], Route] = {}

    def of(self, collective: str, axis_name: str) -> Route:
        """The route of a collective on an axis, or of a copy `to_host` or `to_device`."""
        if (collective, axis_name) not in self.known and collective == "copy":
            self.known[collective, axis_name] = Route(collective, 1, self.topology.node.host_link.way(axis_name), None)
        if (collective, axis_name) not in self.known:
            axis = self.mesh.axis(axis_name)
            link = self.topology.link(axis.size, axis.stride, self.mesh.size)
            dispatch = self.dispatch if (collective, axis_name) == ("all_to_all", "ep") else None
            self.known[collective, axis_name] = Route(collective, axis.size, link, dispatch)
        return self.known[collective, axis_name]

    def crossing(self, collective: str, axis_name: str, rank: int) -> Crossing:
        """By which links a rank's payload leaves it."""
        route = self.of(collective, axis_name)
        if collective != "send_recv" or route.group_size == 1:
            return crossing(collective, route.group_size, route.link, route.dispatch)
        return Crossing(1.0, self._away(axis_name, rank))

    def _away(self, axis_name: str, rank: int) -> float:
        """Of messages on an axis, the share that goes to other nodes: a stage's own, or all of a ring."""
        group, per_node = self.mesh.group(rank, axis_name), self.topology.gpus_taken(self.mesh.size)
        at = self.mesh.axis(axis_name).coordinate(rank)
        sent = [(at, *up) for up in self._sent(at)] if axis_name == "pp" else [(i, 1, 1) for i in range(len(group))]
        far = sum(n for i, step, n in sent if group[i] // per_node != group[(i + step) % len(group)] // per_node)
        return far / sum(n for _, _, n in sent)

    def _sent(self, stage: int) -> tuple[tuple[int, int], ...]:
        """Steps along the stages, and how many messages of a microbatch: one a chunk, but for the model's ends."""
        chunks = 1 if self.schedule.name == "zbv" else self.schedule.num_chunks
        return (1, chunks - (stage == self.schedule.num_stages - 1)), (-1, chunks - (stage == 0))
