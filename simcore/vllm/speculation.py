"""Speculative decoding that a scenario asks for: what is refused of it, and what is assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simcore.errors import InputError, NotYet, Problem
from simcore.hardware.topology import Topology
from simcore.inputs.generation import Generation
from simcore.inputs.scenario import Scenario
from simcore.models.config import Architecture
from simcore.results.report import Assumption
from simcore.units import format_bytes
from simcore.vllm.drafter import MODULES, Drafter, drafter_of
from simcore.vllm.release import Release

__all__ = ["asked_drafter", "drafter_assumptions"]

_OLDER: Final = "0.12.0"


def asked_drafter(scenario: Scenario, given: Generation, model: tuple[Architecture, Mapping[str, Any]],
                  release: Release, topology: Topology, *, quantised: bool) -> Drafter | None:
    """Drafter of the model's own module; None where no tokens are drafted.

    `model`: its layers and its configuration; `quantised`: the engine's weights are in few bits. InputError for more
    accepted tokens than drafted ones, NotYet for what is not described.
    """
    count, accepted = given.num_speculative_tokens, given.accepted_tokens
    if accepted > count:
        raise InputError(Problem(scenario.where("generation", "accepted_tokens"), f"accepted_tokens: expected at most "
                                 f"the {count} of num_speculative_tokens, got {accepted:g}"))
    if not count:
        return None
    found = drafter_of(model[1], model[0], given.tp, count, accepted,
                       narrow_router=release.narrow_router(topology.device.compute_capability))
    for missing, what in (
            (release.name == _OLDER, f"with vLLM {_OLDER} (served: 0.25.1)"), (given.max_loras > 0, "beside adapters"),
            (quantised, "with weights in few bits"),
            (found is None, f"of {model[0].family} (served: one module of multi-token prediction of "
                            f"{', '.join(MODULES)})")):
        if missing:
            raise NotYet(Problem(scenario.where("generation", "num_speculative_tokens"),
                                 f"not yet: speculative decoding {what}"))
    return found


def drafter_assumptions(drafter: Drafter) -> Iterator[Assumption]:
    """Assumptions: the drafter's memory, and how often it is right."""
    size = sum(weight.num_bytes for weight in drafter.weights)
    yield Assumption(what="generation.num_speculative_tokens", value=f"{drafter.tokens} drafted by a module of "
                     f"{format_bytes(size)} a rank", kind="derived", source="vLLM 0.25.1, see simcore/vllm/drafter.py: "
                     "embedding and head are the model's own")
    bound = "" if drafter.accepted else ": the slowest that there is"
    told = f"{drafter.accepted:g} of {drafter.tokens} drafted tokens of a pass{bound}"
    yield Assumption(what="generation.accepted_tokens", value=told, kind="assumed", source="how often drafts are right "
                     "is a matter of model and data")
