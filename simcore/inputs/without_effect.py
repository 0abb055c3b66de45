"""Keys that a workload accepts and that change no number of its result, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Final

__all__ = ["WITHOUT_EFFECT", "Idle", "matches", "reason"]


@dataclass(frozen=True, slots=True)
class Idle:
    """Rule: a key (a pattern) has no effect where workload and method match their patterns, under every framework."""

    key: str
    why: str
    workload: str = "*"
    method: str = "*"


_NO_ADAPTERS: Final = "adapters are made by the methods lora and qlora; a sweep over methods may keep the block"

WITHOUT_EFFECT: Final[tuple[Idle, ...]] = (
    Idle("training.lora.alpha", "a factor of the adapter's output: no tensor and no operation more"),
    Idle("training.lora.*", _NO_ADAPTERS, method="full"),
    Idle("generation.*", "a training step generates nothing; `rankscope check` says so", workload="train"),
    Idle("rl.*", "a training step has no prompts; `rankscope check` says so", workload="train"),
    Idle("topology.num_nodes", "nodes beyond those that the mesh needs stay empty"),
    Idle("topology.gpus_per_node", "an engine's ranks read no network, so that it does not matter on which nodes they "
         "are", workload="serve"),
    Idle("topology.power_limit", "an engine alone is not timed, and power changes no byte", workload="serve"),
    Idle("training.routing", "auto means balanced but for KempnerForge, whose untrained router was measured, and for "
         "the upper end of bands, which the verdict counts, under expert parallelism"),
)
"""Rules; the first that matches gives the reason."""


def reason(workload: str, method: str, key: str) -> str:
    """Reason why the key changes nothing there; "" if it is not listed."""
    return next((row.why for row in WITHOUT_EFFECT if matches(row, workload, method, key)), "")


def matches(row: Idle, workload: str, method: str, key: str) -> bool:
    """True if the rule is about the key there."""
    return all(fnmatch(value, pattern) for value, pattern in (
        (key, row.key), (workload, row.workload), (method, row.method)))
