"""The limit of one quantity of a scenario, such as the fewest GPUs on which it fits; JSON in and out."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from simcore.results.verdict import Verdict

__all__ = ["QUANTITIES", "Limit", "Quantity"]

Quantity = Literal["gpus", "micro_batch", "sequence"]
QUANTITIES: Final[dict[Quantity, str]] = {
    "gpus": "fewest GPUs", "micro_batch": "largest micro batch", "sequence": "longest sequence"}
"""Quantities that a limit is asked of, with the words for the limit."""


class Limit(BaseModel):
    """Limit of one quantity of the scenario `name`, with what lies next to it.

    `value`: the smallest (GPUs) or largest value that surely fits, None if none does; `keys`: what sets it, as `--set`
    takes it; `peak_bytes`, `headroom_bytes`: device memory of the fullest rank there. `likely`: the furthest value
    whose likely peak fits; `possible`: the furthest value that is not surely out of memory. `beyond`: the nearest tried
    value that does not surely fit, with its verdict and peak; None if none was tried. `num_simulated`: simulations that
    it took. `problem`: why no value could be simulated; "" if one could.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    quantity: Quantity
    value: int | None
    keys: dict[str, Any]
    peak_bytes: int | None = None
    headroom_bytes: int | None = None
    likely: int | None
    possible: int | None
    beyond: int | None
    beyond_verdict: Verdict | None = None
    beyond_bytes: int | None = None
    num_simulated: int
    problem: str = ""
