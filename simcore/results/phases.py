"""Phases of a reinforcement-learning step: a part of a result, JSON in and out."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from simcore.results.verdict import Verdict

__all__ = ["ACTIVITIES", "LINKS", "PHASES", "PHASE_PARTS", "PhaseName", "PhaseReport"]

PhaseName = Literal["refit", "generation", "logprob", "reward", "reference", "values", "critic", "training"]
PHASES: dict[PhaseName, str] = {
    "refit": "the policy's weights go to the engine that generates",
    "generation": "the engine decodes",
    "reward": "a reward model scores what was generated",
    "logprob": "a forward pass of the policy over what was generated",
    "reference": "a forward pass of the reference policy",
    "values": "a forward pass of the critic",
    "critic": "forward, backward and the optimizer's step of the critic",
    "training": "forward, backward and the optimizer's step, as in a step that only trains",
}
PHASE_PARTS: dict[str, str] = {
    **{name: f"{words}, without copies to and from the host" for name, words in PHASES.items() if name != "training"},
    "host copies": "copies of parameters, optimizer states and the engine between device and host, of all phases",
}
"""Parts of the time of a step with phases, besides those of its training."""
LINKS = ("nvlink", "network", "host")
"""Links over which bytes leave a rank, in the order of tables; nvlink is inside a node, also where it is PCIe."""
ACTIVITIES: dict[str, str] = {
    "host copies": "parameters, optimizer states or the engine between device and host",
    "gathers": "all-gathers of the policy's parameters, one after the other",
    "packing": "copies into the buffers that the engine reads, and from them into its weights",
    "quantising": "weights that arrive in 16 bits, to 8 bits with their scales",
    "broadcast": "the packed weights to the GPUs that generate",
    "forward passes": "log-probabilities, or values, of what was generated",
    "decoding": "bytes that the engine reads for each token",
    "scoring": "arithmetic of the reward model",
    "training steps": "every step of the optimizer",
    "the ranks that train": "a GPU that only generates waits for them",
}
"""Activities that a phase of a step consists of."""


class PhaseReport(BaseModel):
    """One phase of a reinforcement-learning step, at its highest moment on one rank.

    Phases follow each other. `start_s`, `seconds`: begin and duration within the step, `parts`: seconds by what is
    done, in order. `sent_bytes`: bytes that leave the rank by link: nvlink, network, host. `device_bytes`: all
    processes on the GPU together, parts in `by_owner`; `host_bytes`: host memory of this rank, parts in
    `host_by_owner`. `event`: event at the highest moment.
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
    parts: dict[str, float] = {}
    sent_bytes: dict[str, int] = {}
