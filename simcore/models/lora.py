"""What a person asks of LoRA; which modules that hits is each framework's own matcher's decision."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoraChoice"]


@dataclass(frozen=True, slots=True)
class LoraChoice:
    """`target_modules`/`exclude_modules` empty means: not given. `expert_adapters`: auto, none, shared, per_expert."""

    rank: int
    target_modules: tuple[str, ...] = ()
    exclude_modules: tuple[str, ...] = ()
    expert_adapters: str = "auto"
