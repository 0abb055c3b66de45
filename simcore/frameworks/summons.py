"""Parameters that trainers make whole outside of a pass, to send weights, generate and sync; states that sleep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Summons"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summons:
    """Way in which a framework makes parameters whole outside of a pass, where transformers' Trainer trains with it.

    `gathers`: they are gathered, each alone unless `by_unit` says with its unit; False where ranks hold them whole.
    `whole_as`: framework whose ranks hold a model as it is once all parameters are gathered at once, "" where they
    never are. `one_unit`: a second model is one unit, which its passes gather whole. `placed_late`: the model comes to
    the device when the framework shards it, and not before. `sleeps`: what leaves the device between trainings if the
    trainer asks for it: "states" of the optimizer, "all" but parameters in 16 bits, "" where nothing can. `engines`: a
    model is an engine of DeepSpeed.
    """

    gathers: bool = True
    by_unit: bool = False
    whole_as: str = ""
    one_unit: bool = False
    placed_late: bool = False
    sleeps: Literal["", "states", "all"] = ""
    engines: bool = False
