"""Weights on their way from OpenRLHF's policy to vLLM, one parameter after the other.

[Note: one parameter after the other]
OpenRLHF 0.11.0 `trainer/ray/ppo_actor.py` broadcast_to_vllm: each parameter is whole for a moment (GatheredParameters
under ZeRO 3). On shared GPUs it is cloned, and the engine reads the clone through its handle (_handle_cuda_ipc), into
its own weights (`vllm_worker_wrap.py` load_weights). Otherwise rank 0 broadcasts it to all ranks of all engines, each
of which receives a tensor of its size (_broadcast_param, update_weight). Nothing is packed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from simcore.hardware.topology import Topology
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Plan
from simcore.rl.step.refit import Gathered
from simcore.rl.step.traffic import EVERY_AXIS, Sent
from simcore.rl.trl.sync import synced
from simcore.timing.routes import Routes
from simcore.vllm.protocol import InferenceEngine

__all__ = ["Sync", "sync_of"]

_SENT_AS: Final = "bf16"
_BYTES: Final = 2
_BY_HANDLE, _RECEIVED = 4, 2
"""Times that weights cross device memory: cloned and read into the engine's own, or received and read."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Weights as they are gathered and sent. `clone`: bytes of the copy that an engine on the same GPU reads.

    `moved_ns`: ns in which they cross device memory; `broadcast`: calls to engines on GPUs of their own.
    """

    weights: Gathered
    clone: int
    moved_ns: int
    broadcast: tuple[Sent, ...]

    @property
    def broadcast_ns(self) -> int:
        """Time in ns of all broadcasts."""
        return sum(one.ns for one in self.broadcast)


def sync_of(scenario: Scenario, plan: Plan, routes: Routes, engine: InferenceEngine) -> Sync:
    """Sizes and times of a sync, see [Note: one parameter after the other]. `plan`: of one of the policy's ranks."""
    weights, shared = synced(scenario, plan, routes), engine.generation.colocated
    topology = engine.topology
    rate = topology.device.memory_bandwidth.si * topology.efficiency.kernels.copy_.memory.si
    moved = round((_BY_HANDLE if shared else _RECEIVED) * weights.total / rate * 1e9)
    broadcast = () if shared else tuple(_broadcast(scenario, plan, engine, topology))
    return Sync(weights, weights.largest if shared else 0, moved, broadcast)


def _broadcast(scenario: Scenario, plan: Plan, engine: InferenceEngine, topology: Topology) -> Iterator[Sent]:
    size = 1 + engine.generation.engines * engine.tp
    link = topology.link(size, 1, scenario.world_size - 1 + size)
    sizes: Counter[int] = Counter()
    for kind, count in plan.kind_counts:
        for placed in plan.kinds[kind]:
            if placed.spec.is_owned and not placed.spec.is_buffer:
                sizes[placed.spec.numel * _BYTES] += count * placed.spec.copies
    for num_bytes, num_calls in sorted(sizes.items()):
        yield Sent("broadcast", EVERY_AXIS, size, link, "refit", _SENT_AS, num_bytes, num_calls)
