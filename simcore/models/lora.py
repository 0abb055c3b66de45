"""Choice of LoRA in a scenario; each framework's own matcher decides which modules get adapters."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoraChoice"]


@dataclass(frozen=True, slots=True)
class LoraChoice:
    """Rank of the adapters, and names that a framework's matcher reads.

    `target_modules`/`exclude_modules` empty means: not given. `expert_adapters`: auto, none, shared, per_expert.
    """

    rank: int
    target_modules: tuple[str, ...] = ()
    exclude_modules: tuple[str, ...] = ()
    expert_adapters: str = "auto"
