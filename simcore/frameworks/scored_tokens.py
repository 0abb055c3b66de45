"""Tokens that a loss scores, where it is made of their hidden states or logits alone: GRPO and SFT of TRL."""

from __future__ import annotations

from simcore.errors import InputError, Problem
from simcore.operators.hf.chunked import LM_HEAD
from simcore.placement.job import Job
from simcore.recording.layer import KEPT

__all__ = ["check_scored"]


def check_scored(job: Job) -> None:
    """InputError for scored tokens that are not read, or are more than there are; NotYet for layouts of the head."""
    training, where, mesh = job.scenario.training, job.scenario.where("training", "scored_tokens"), job.mesh
    if training.loss not in (LM_HEAD, *KEPT):
        if training.scored_tokens is not None:
            raise InputError(Problem(where, f"scored_tokens: changes nothing but with loss: {LM_HEAD} or "
                                                f"{', '.join(KEPT)}"))
        return
    if training.scored_tokens is not None and training.scored_tokens >= training.seq_len:
        raise InputError(Problem(where, f"scored_tokens: expected fewer than the {training.seq_len:,} tokens of a "
                                        f"sequence, of which the first is not scored, got {training.scored_tokens:,}"))
    trains = training.loss == LM_HEAD and job.scenario.workload == "train"
    lengths = ("fixed", "packed") if trains and mesh.cp == 1 else ("fixed",)
    for wrong, key, what in (
            (job.graph.implementation != "hf", "training.loss", f"{training.loss} of "
             f"{job.graph.implementation} layers"),
            (mesh.tp > 1, "mesh.tp", f"{training.loss} of a head that tensor parallelism splits"),
            (mesh.cp > 1 and not trains, "mesh.cp", f"{training.loss} of sequences that ranks share"),
            (training.lengths not in lengths, "training.lengths", f"{training.loss} of packed or drawn lengths")):
        if wrong:
            raise job.not_yet(key, what)
