"""The trainer around an implementation's layers under PyTorch's own sharding: one frozen record, `Trainer`.

`frameworks/fsdp2/trainers.py` and the table of FSDP1 have one for each implementation that they train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simcore.frameworks.adapter import Options
from simcore.frameworks.common.afterwards import OWN_LOOP
from simcore.frameworks.common.torch import Defaults
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.placement.afterwards import EvaluationLoop
from simcore.placement.job import Draft, Job
from simcore.placement.layout import Placements
from simcore.placement.libraries import NOTHING_LOGGED, Logged
from simcore.recording.options import ImplementationOptions

__all__ = ["Trainer", "uncut"]

Assumptions = tuple[tuple[str, str, str, str], ...]


def uncut(_spec: TensorSpec) -> Placements:
    """Returns no cuts, an empty tuple, for any tensor: tensor parallelism leaves it whole.

    For trainers whose `Trainer.check` refuses tensor parallelism.
    """
    return ()


def _never(_spec: TensorSpec) -> bool:
    return False


def _compute_dtype(job: Job) -> str:
    return job.compute


def _none(job: Job, options: dict[str, Any]) -> Assumptions:
    return ()


def _no_logits(job: Job, stored: str) -> str:
    return ""


def _nowhere(job: Job) -> str:
    return ""


def _first(job: Job) -> int:
    return 0


def _all_data_ranks(job: Job) -> tuple[str, str]:
    return "expert_dp", ""


def _none_whole(job: Draft, stages: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """The settings, refusals and cuts of one trainer of a model implementation, under PyTorch's sharding.

    `options`: the framework options that it takes; `defaults`: what it sets where a scenario does not. `check`: raises
    IllegalLayout or NotYet for a job with these options. `layer_options`: the options of its layers. `checkpoint`: the
    activation checkpointing ("none", "full", ...). `stages`: layer numbers of each pipeline stage. `tp_layout`: how
    tensor parallelism cuts a tensor. `in_fp8`: the model whose linears compute in fp8, None where that is not served.
    `gathered_weights`: the format in which linears of blocks are gathered. `assumptions`: notes about compiled layers.
    `serves_muon`: its optimizer may be torch's Muon. `hub_files`: the source by which it writes files of Hugging Face,
    "" if it writes others. `evaluation`: its evaluation loop; `kept_logits`: the dtype of the logits that it keeps of a
    job whose parameters are stored in a dtype, "" if it keeps none. `logged`: what its loop gathers after each step.
    `hot_ranks`: the model routes tokens itself, [Note: hot ranks] in `hot_ranks.py`.
    `counts_over`: mesh axis over which it sums tokens of experts up before a step, "" if it does not.
    `experts_dim`: the dimension of an expert parallel tensor that data parallel ranks cut; `experts_axes`: mesh axes
    over which the experts' unit is cut and copied. `gathers_experts_ahead`: units, those of experts too, are gathered
    ahead in the order that [Note: torchtitan's prefetch] says, where experts are parallel.
    `cut_late`: True for a tensor of which backward makes a whole gradient, cut over tp when it is reduced.
    `kept_whole`: numbers of the layers that it does not recompute beside others, with layer numbers of the stages.
    """

    options: Options
    defaults: Defaults
    check: Callable[[Draft, dict[str, Any]], None]
    layer_options: Callable[[Draft, dict[str, Any]], ImplementationOptions]
    checkpoint: Callable[[Draft], str]
    stages: Callable[[Draft], tuple[tuple[int, ...], ...]]
    tp_layout: Callable[[TensorSpec], Placements] = uncut
    cut_late: Callable[[TensorSpec], bool] = _never
    in_fp8: Callable[[Draft], ModelGraph] | None = None
    gathered_weights: Callable[[Draft], str] = _compute_dtype
    assumptions: Callable[[Draft, dict[str, Any]], Assumptions] = _none
    serves_muon: bool = False
    hub_files: str = ""
    files: tuple[str, str] = ("every_rank", "full")
    evaluation: EvaluationLoop = OWN_LOOP
    kept_logits: Callable[[Job, str], str] = _no_logits
    logged: Logged = NOTHING_LOGGED
    hot_ranks: bool = False
    counts_over: Callable[[Job], str] = _nowhere
    experts_dim: Callable[[Job], int] = _first
    experts_axes: Callable[[Job], tuple[str, str]] = _all_data_ranks
    gathers_experts_ahead: bool = False
    kept_whole: Callable[[Draft, tuple[tuple[int, ...], ...]], tuple[int, ...]] = _none_whole


Trainers = Mapping[str, Trainer]
"""A trainer for each implementation, by its name."""
