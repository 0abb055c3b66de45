"""The interface of a framework's data-parallel strategy: all that code outside the framework's folder may ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DTENSOR", "EXACT_RANKS", "FLAT", "MEGATRON", "NO_WORKER", "ParallelStrategy", "RlWorker"]

EXACT_RANKS: Final = 64
"""Up to this many ranks are looked at one by one where those of a class may differ."""


@dataclass(frozen=True, slots=True)
class RlWorker:
    """A kind of worker that trains a policy in reinforcement learning.

    `is_module`: its policy is a module that is sharded alone: it moves whole, and makes logits of the full vocabulary.
    """

    name: str
    is_module: bool = False


DTENSOR: Final = RlWorker("dtensor", is_module=True)
"""Worker of strategies with DTensors, FSDP 2's (NeMo RL 7ea279ab `dtensor_policy_worker_v2.py`)."""
FLAT: Final = RlWorker("flat", is_module=True)
"""Worker of strategies with flat parameters, FSDP 1's (verl b178a3cd `workers/fsdp_workers.py`)."""
MEGATRON: Final = RlWorker("megatron")
"""Worker of Megatron's strategies (NeMo RL 7ea279ab `megatron_policy_worker.py`)."""
NO_WORKER: Final = RlWorker("")


class ParallelStrategy:
    """A framework's data-parallel strategy: a frozen record of its settings.

    Each framework derives its own record with the fields that its hooks read. The properties below are all that the
    rest of the engine asks; their defaults are those of a framework whose flat shards are gathered before use.
    """

    __slots__ = ()

    @property
    def holds_whole_parameters(self) -> bool:
        """True if every data-parallel rank holds whole parameters between steps."""
        return False

    @property
    def holds_whole_states(self) -> bool:
        """True if every data-parallel rank holds whole optimizer states."""
        return False

    @property
    def is_flat(self) -> bool:
        """True if a rank's shard is cut from many tensors laid end to end; the tensors in it vary by rank."""
        return True

    @property
    def is_placed_by_rank(self) -> bool:
        """True if bytes at rest may differ between ranks of one class (ranks simulated as one).

        The plan of every rank is then made, not only that of one rank of the class.
        """
        return True

    @property
    def step_varies_by_rank(self) -> bool:
        """True if the operations of a step differ between ranks that hold equally many bytes."""
        return False

    @property
    def gathers_on_side_streams(self) -> bool:
        """True if the framework all-gathers on separate CUDA streams, so that the allocator reserves more.

        Blocks that were freed on one stream cannot serve requests of another until the events between them are over.
        """
        return False

    @property
    def gathers_before_passes(self) -> bool:
        """True if all units are gathered before passes without gradients, and cut again behind the first microbatch."""
        return False

    @property
    def counts_workspaces(self) -> bool:
        """True if workspaces of libraries are part of the allocated bytes that the framework itself reports."""
        return True

    @property
    def keeps_gradients(self) -> bool:
        """True if gradients stay where autograd made them until the last microbatch, whatever units there are."""
        return False

    @property
    def unit_sync(self) -> str:
        """The time at which units reduce gradients: "every" microbatch, the "last", or the "end" of the step.

        "" for a framework that reduces in another way.
        """
        return ""

    @property
    def prefetch_depth(self) -> int:
        """Largest number of units that explicit prefetch gathers ahead of the one in use; 0 without it."""
        return 0

    @property
    def elements_per_call(self) -> int:
        """Elements of a bucket of gradients or parameters that a call moves; 0 where calls are those of units."""
        return 0

    @property
    def rl_worker(self) -> RlWorker:
        """The kind of policy worker that trains with this strategy; `NO_WORKER` if none does."""
        return NO_WORKER
