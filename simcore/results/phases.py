"""Phases of a reinforcement-learning step: a part of a result, JSON in and out."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from simcore.results.verdict import Verdict

__all__ = ["PHASES", "PHASE_PARTS", "PhaseName", "PhaseReport"]

PhaseName = Literal["refit", "generation", "logprob", "reference", "training"]
PHASES: dict[PhaseName, str] = {
    "refit": "the policy's weights go to the engine that generates",
    "generation": "the engine decodes",
    "logprob": "a forward pass of the policy over what was generated",
    "reference": "a forward pass of the reference policy",
    "training": "forward, backward and the optimizer's step, as in a step that only trains",
}
PHASE_PARTS: dict[str, str] = {
    **{name: f"{words}, without copies to and from the host" for name, words in PHASES.items() if name != "training"},
    "host copies": "copies of parameters, optimizer states and the engine between device and host, of all phases",
}
"""Parts of the time of a step with phases, besides those of its training."""


class PhaseReport(BaseModel):
    """One phase of a reinforcement-learning step, at its highest moment on one rank.

    Phases follow each other. `start_s`, `seconds`: begin and duration within the step. `device_bytes`: all processes on
    the GPU together, parts in `by_owner`; `host_bytes`: host memory of this rank, parts in `host_by_owner`. `event`:
    event at the highest moment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    phase: PhaseName
    start_s: float
    seconds: float
    device_bytes: int
    host_bytes: int
    event: str
    by_category: dict[str, int]
    by_owner: dict[str, int]
    host_by_owner: dict[str, int]
    device_verdict: Verdict
