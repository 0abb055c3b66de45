"""Choice of LoRA in a scenario; each framework's own matcher decides which modules get adapters."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoraChoice"]


@dataclass(frozen=True, slots=True)
class LoraChoice:
    """LoRA settings of a scenario: rank of the adapters, and module names for a framework's matcher.

    `target_modules` (get an adapter) and `exclude_modules` (get none): empty means not given. `expert_adapters`:
    adapters of routed experts, "auto" (the framework's own), "none", "shared" or "per_expert".
    """

    rank: int
    target_modules: tuple[str, ...] = ()
    exclude_modules: tuple[str, ...] = ()
    expert_adapters: str = "auto"
