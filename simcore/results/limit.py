"""The limit of one quantity of a scenario, such as the fewest GPUs on which it fits; JSON in and out."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from simcore.results.verdict import Verdict

__all__ = ["QUANTITIES", "Limit", "Quantity", "Value"]

Quantity = Literal["gpus", "micro_batch", "global_batch", "sequence", "machine", "cost"]
QUANTITIES: Final[dict[Quantity, str]] = {
    "gpus": "fewest GPUs", "micro_batch": "largest micro batch", "global_batch": "largest global batch",
    "sequence": "longest sequence", "machine": "smallest GPU", "cost": "fewest USD per million tokens"}
"""Quantities that a limit is asked of, with the words for the limit."""
Value = int | float | str
"""A number of GPUs, sequences or tokens; USD for a million tokens; or the name of a machine."""


class Limit(BaseModel):
    """Limit of one quantity of the scenario `name`, with what lies next to it.

    `value`: the smallest (GPUs, machine) or largest value that surely fits, None if none does; `keys`: what sets it, as
    `--set` takes it; `peak_bytes`, `headroom_bytes`: device memory of the fullest rank there. `likely`: the furthest
    value whose likely peak fits; `possible`: the furthest value that is not surely out of memory. `beyond`: the nearest
    tried value that does not surely fit, with its verdict and peak, both None if it is refused; None if none was tried.
    `why`: what decides there, or refuses it. `exceptions`: values on the good side of `value` that were tried and do
    not surely fit; memory does not rise, or fall, steadily then. `num_simulated`: simulations that it took. `problem`:
    why no value could be simulated; "" if one could.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    quantity: Quantity
    value: Value | None
    keys: dict[str, Any]
    peak_bytes: int | None = None
    headroom_bytes: int | None = None
    likely: Value | None
    possible: Value | None
    beyond: Value | None
    beyond_verdict: Verdict | None = None
    beyond_bytes: int | None = None
    why: str = ""
    exceptions: tuple[Value, ...] = ()
    num_simulated: int
    problem: str = ""
