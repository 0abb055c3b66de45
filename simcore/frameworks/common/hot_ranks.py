"""Load of the fullest of a job's expert parallel ranks, where the model itself routes tokens.

[Note: hot ranks]
A router that is not made to balance sends some ranks more tokens than others, and within the first tens of steps more
than at first. `tests/truth/measured/expert_loads.json` has, from Megatron-LM's golden runs of 50 steps, how much fuller
than the mean one rank became (`tests/truth/fit_routing.py`: derived from the growth of its peak, the load of the first
step taken for the mean). A job fits if its fullest rank does. Of `ep` ranks, taken as independent, that is the quantile
0.5 ** (1 / ep) of one rank's loads in one of two jobs, and 0.9 ** (1 / ep) in nine of ten. Assumed: all routers are
alike; a router that was trained before, or is being fine-tuned, is no better balanced. The upper end of a rank's band
counts the second. Peaks themselves, traffic and times are those of balanced experts. Where upstream forces balance
(`moe_router_force_load_balancing`, `fake_balanced_gate`), where a scenario states its routing, and without expert
parallelism, where a rank's experts get all of its own tokens, nothing is added.
"""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np

from simcore.inputs.document import read_text
from simcore.inputs.shipped import data_folder
from simcore.placement.job import Job

__all__ = ["fullest_load", "hot_ranks_assumption"]

LIKELY, SURELY = 0.5, 0.9
"""Shares of jobs whose fullest rank has at most a load."""
_SOURCE = "growth of one rank's peak over 50 steps of Megatron-LM's golden runs, expert_loads.json"


def fullest_load(job: Job, share: float = SURELY) -> float:
    """Load of the fullest of the job's ranks over the mean, that `share` of such jobs do not pass.

    1 where routing is stated (`training.routing` is not auto), and without expert parallelism.
    """
    if job.mesh.ep == 1 or not job.has_experts or job.scenario.training.routing != "auto":
        return 1.0
    return _fullest_of(job.mesh.ep, share)


def hot_ranks_assumption(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """The assumption about hot ranks as (key, value, kind, source); () where nothing is assumed."""
    surely = fullest_load(job)
    if surely == 1:
        return ()
    value = (f"the fullest of {job.mesh.ep} ranks has likely {fullest_load(job, LIKELY):.2f}, in nine of ten jobs at "
             f"most {surely:.2f} times the mean: the verdict counts it (upper end of the band), peaks and times do not")
    return (("hot ranks", value, "calibrated", _SOURCE),)


@lru_cache(maxsize=64)
def _fullest_of(ranks: int, share: float) -> float:
    return min(float(np.quantile(_loads(), share ** (1 / ranks))), float(ranks))


@lru_cache(maxsize=1)
def _loads() -> tuple[float, ...]:
    """Loads of one rank over the mean, a run each; at least the mean, as one rank's relief is another's load."""
    rows = json.loads(read_text(data_folder("measured") / "expert_loads.json"))
    return tuple(max(1.0, float(row["load"])) for row in rows)
