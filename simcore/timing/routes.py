"""Routes of a job: the link of each collective, the time of a call, the share of a payload that crosses each link.

[Note: messages between stages]
A stage sends equal numbers of activations up and gradients down, so half of its messages go to each neighbour; with
several chunks a stage the last stage's up go to the first. In a ring (context parallelism) every rank sends to the
next. Where nodes and stages do not divide each other, ranks of a class differ in which neighbours are near: the
share that leaves the node is the mean over the class, and over the whole of each ring. Other collectives are counted in
the worst-off group of their axis (`Topology.link`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simcore.hardware.topology import Link, Topology
from simcore.placement.framework import Framework
from simcore.placement.job import Job
from simcore.placement.mesh import IntArray
from simcore.placement.token_dispatch import Dispatch, dispatch_of
from simcore.timing.collective import Crossing, algorithm, collective_ns, crossing, measured_sizes

__all__ = ["HOST_WAYS", "Route", "Routes"]

HOST_WAYS: Final = ("to_host", "to_device")
"""Directions of copies, in the place of an axis."""


@dataclass(frozen=True, slots=True)
class Route:
    """Route of one collective on one mesh axis: size of the group, link that it crosses, dispatcher.

    `group_size`: ranks of the axis (1 for a copy). `link`: of a message, the link across nodes if any two neighbours
    are on different ones. `dispatch`: token dispatcher of an all-to-all of experts, None for others.
    """

    collective: str
    group_size: int
    link: Link
    dispatch: Dispatch | None

    @property
    def leaves(self) -> bool:
        """True if any byte leaves the rank: False in a group of one, except for a copy to or from the host."""
        return self.group_size > 1 or self.link.name == "host"

    @property
    def algorithm(self) -> str:
        """Name of the collective's algorithm, see `collective.algorithm`."""
        return algorithm(self.collective, self.link, self.dispatch)

    @property
    def measured(self) -> range:
        """Range of payloads in bytes whose time was measured (`collective.measured_sizes`); empty if none was."""
        return measured_sizes(self.collective, self.group_size, self.link, self.dispatch)

    def ns(self, payload_bytes: int) -> int:
        """Time in ns of one call with that payload, without contention."""
        size = 2 if self.collective == "send_recv" else self.group_size
        return collective_ns(self.collective, payload_bytes, size, self.link, self.dispatch)


class Routes:
    """Routes of all collectives of one job; each is found when first asked for."""

    def __init__(self, job: Job, framework: Framework, topology: Topology) -> None:
        self.mesh, self.topology, self.schedule = job.mesh, topology, framework.schedule
        self.per_node = topology.gpus_taken(job.mesh.size)
        self.dispatch = dispatch_of(job.graph, framework.libraries)
        self.known: dict[tuple[str, str], Route] = {}

    def of(self, collective: str, axis_name: str) -> Route:
        """Route of a collective on a mesh axis, the same for all ranks; for a copy the axis is its direction.

        `axis_name`: name of the mesh axis; of a copy `to_host` or `to_device`.
        """
        if (collective, axis_name) not in self.known and collective == "copy":
            self.known[collective, axis_name] = Route(collective, 1, self.topology.node.host_link.way(axis_name), None)
        if (collective, axis_name) not in self.known:
            axis = self.mesh.axis(axis_name)
            link = self.topology.link(axis.size, axis.stride, self.mesh.size)
            dispatch = self.dispatch if (collective, axis_name) == ("all_to_all", "ep") else None
            self.known[collective, axis_name] = Route(collective, axis.size, link, dispatch)
        return self.known[collective, axis_name]

    def crossing(self, collective: str, axis_name: str, ranks: IntArray) -> Crossing:
        """Shares of a payload that leave a rank and its node, the mean over the given ranks.

        `ranks`: numbers of the ranks of one class (with the same program); they count only for messages (send_recv),
        whose route differs by rank.
        """
        route = self.of(collective, axis_name)
        if collective != "send_recv" or route.group_size == 1:
            return crossing(collective, route.group_size, route.link, route.dispatch)
        return Crossing(1.0, self._up_and_down(ranks) if axis_name == "pp" else self._round(axis_name, ranks))

    def _up_and_down(self, ranks: IntArray) -> float:
        """Share of a stage's messages that goes to other nodes."""
        stage, size, stages = int(ranks[0]) // self.mesh.stage_size, self.mesh.stage_size, self.mesh.pp
        if self.per_node % size == 0 or size % self.per_node == 0:
            ranks = ranks[:1]  # all have the same neighbours
        share = num = 0.0
        for step, count in self._sent(stage):
            to = ranks + ((stage + step) % stages - stage) * size
            share += count * float(np.mean(to // self.per_node != ranks // self.per_node))
            num += count
        return share / num

    def _round(self, axis_name: str, ranks: IntArray) -> float:
        """Share of a ring's messages that goes to other nodes."""
        axis = self.mesh.axis(axis_name)
        rings = np.unique(ranks - axis.coordinates(ranks) * axis.stride)
        nodes = (rings[:, None] + np.arange(axis.size) * axis.stride) // self.per_node
        return float(np.mean(nodes != np.roll(nodes, -1, axis=1)))

    def _sent(self, stage: int) -> tuple[tuple[int, int], ...]:
        """(step along the stages, messages of a microbatch): one message a chunk, except at the model's ends."""
        rounds = self.schedule.num_rounds
        return (1, rounds - (stage == self.schedule.num_stages - 1)), (-1, rounds - (stage == 0))
