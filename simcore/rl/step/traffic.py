"""Traffic of a step with phases: bytes that leave a rank in each phase, by collective, axis and link.

Rows of the training steps keep the phases of a step that trains ("forward", "backward", ...); those of the other phases
have their names: gathers of a refit (`refit.py`) and its broadcast to engines on separate GPUs, forward passes
(`forward.py`), tensor parallelism of the engine (`vllm/parallel.py`), copies between device and host (`journal.py`).
Where an engine shares a rank's GPU, a refit's buffer is read through an IPC handle: nothing leaves the GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.hardware.topology import Link, Topology
from simcore.results.phases import PHASES
from simcore.results.report import TrafficRow
from simcore.rl.step.journal import Journal
from simcore.rl.step.refit import Gathered
from simcore.timing.collective import algorithm, collective_ns, crossing, measured_sizes
from simcore.timing.routes import Routes
from simcore.vllm.parallel import Call

__all__ = ["ENGINE_AXIS", "EVERY_AXIS", "PACKED", "Sent", "by_phase", "engine_ns", "of_copies", "of_engine",
           "of_logprobs", "of_passes", "of_refit", "of_steps", "rows"]

ENGINE_AXIS, EVERY_AXIS = "engine_tp", "all_ranks"
"""Axes that no mesh has: ranks of one engine; all ranks that train and all that generate."""
_TENSORS: Final = "mixed"
"""Format of copies: tensors of several formats."""
PACKED: Final = "uint8"
"""Format of packed tensors (NeMo RL 7ea279ab `utils/packed_tensor.py` packed_broadcast_producer)."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Equal calls of a collective in one phase: group, link, format, payload of one call, number of calls."""

    collective: str
    axis: str
    group_size: int
    link: Link
    phase: str
    dtype: str
    num_bytes: int
    num_calls: int

    @property
    def ns(self) -> int:
        """Time in ns of all calls, one after the other, without contention."""
        return self.num_calls * collective_ns(self.collective, self.num_bytes, self.group_size, self.link)


def rows(sent: Iterable[Sent]) -> tuple[TrafficRow, ...]:
    """Rows of the report's traffic, one for each collective, axis, phase and dtype, sorted; without empty ones.

    Bytes are rounded call by call, as those of a training step (`timing/traffic.py`).
    """
    alike: dict[tuple[str, str, str, str], list[Sent]] = {}
    for one in sent:
        leaves = one.group_size > 1 or one.link.name == "host"
        if one.num_calls and one.num_bytes and leaves:
            alike.setdefault((one.collective, one.axis, one.phase, one.dtype), []).append(one)
    return tuple(_row(found) for _, found in sorted(alike.items()))


def _row(alike: Sequence[Sent]) -> TrafficRow:
    first = alike[0]
    share = crossing(first.collective, first.group_size, first.link)
    wire = sum(one.num_calls * round(one.num_bytes * share.wire) for one in alike)
    away = sum(one.num_calls * round(one.num_bytes * share.network) for one in alike)
    known = measured_sizes(first.collective, first.group_size, first.link)
    return TrafficRow(
        collective=first.collective, axis=first.axis, group_size=first.group_size, phase=first.phase, dtype=first.dtype,
        calls=sum(one.num_calls for one in alike), payload_bytes=sum(one.num_calls * one.num_bytes for one in alike),
        wire_bytes=wire, nvlink_bytes=0 if first.link.name == "host" else wire - away, network_bytes=away,
        algorithm=algorithm(first.collective, first.link),
        timing="measured" if all(one.num_bytes in known for one in alike) else "model")


# ---- by phase --------------------------------------------------------------------------------------------------------
def of_steps(trained: Iterable[TrafficRow], steps: int) -> Iterator[TrafficRow]:
    """Rows of one training step, `steps` times."""
    return (_repeated(row, steps) for row in trained)


def of_passes(passed: Iterable[TrafficRow], phase: str) -> Iterator[TrafficRow]:
    """Rows of forward passes, under the name of their phase."""
    return (row.model_copy(update={"phase": phase}) for row in passed)


def of_logprobs(num_tokens: int, routes: Routes) -> Iterator[Sent]:
    """Broadcast of fp32 log-probabilities from the last stage to the others; none without stages.

    `num_tokens`: of all sequences of a data-parallel rank. The phase is "forward", as of the passes that make them.
    NeMo RL 7ea279ab `megatron_policy_worker.py` get_logprobs, broadcast_tensors_from_last_stage.
    """
    if routes.mesh.pp > 1:
        route = routes.of("broadcast", "pp")
        yield Sent("broadcast", "pp", route.group_size, route.link, "forward", "fp32", 4 * num_tokens, 1)


def of_refit(gathered: Gathered, routes: Routes) -> Iterator[Sent]:
    """Gathers of a policy's parameters, and broadcasts between stages, to send them to the engine."""
    for call in gathered.calls:
        route = routes.of(call.collective, call.axis)
        yield Sent(call.collective, call.axis, route.group_size, route.link, "refit", call.dtype, call.num_bytes,
                   call.num_calls)


def engine_ns(made: Iterable[Call], size: int, link: Link) -> int:
    """Time in ns of an engine's collectives over `size` ranks, one after the other and beside nothing.

    By NCCL: vLLM's own all-reduce of small tensors in one node takes less.
    """
    return sum(call.num_calls * collective_ns(call.collective, call.num_bytes, size, link) for call in made)


def of_engine(calls: Iterable[Call], tp: int, link: Link) -> Iterator[Sent]:
    """Collectives of an engine on `tp` ranks."""
    return (Sent(call.collective, ENGINE_AXIS, tp, link, "generation", call.dtype, call.num_bytes, call.num_calls)
            for call in calls)


def of_copies(journal: Journal, topology: Topology) -> tuple[TrafficRow, ...]:
    """Copies between device and host, of each phase."""
    return tuple(
        TrafficRow(collective="copy", axis=way, group_size=1, phase=moment.phase, dtype=_TENSORS, calls=copied.calls,
                   payload_bytes=copied.num_bytes, wire_bytes=copied.num_bytes,
                   algorithm=algorithm("copy", topology.node.host_link.way(way)))
        for moment in journal.phases for way, copied in sorted(moment.copied.items()))


def _repeated(row: TrafficRow, times: int) -> TrafficRow:
    return row.model_copy(update={name: times * getattr(row, name) for name in (
        "calls", "payload_bytes", "wire_bytes", "nvlink_bytes", "network_bytes")})


def by_phase(found: Iterable[TrafficRow]) -> Mapping[str, Mapping[str, int]]:
    """Bytes that leave the rank by phase of the step and link: "nvlink", "network", "host"; without zeros.

    Phases of a training step ("forward" and others) are together "training".
    """
    sums: dict[str, Counter[str]] = {}
    for row in found:
        near = row.nvlink_bytes + row.network_bytes
        phase = row.phase if row.phase in PHASES else "training"
        sums.setdefault(phase, Counter()).update(
            nvlink=row.nvlink_bytes, network=row.network_bytes, host=row.wire_bytes - near)
    return {phase: {link: size for link, size in sizes.items() if size} for phase, sizes in sums.items()}
