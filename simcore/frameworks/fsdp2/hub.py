"""Trainers of layers whose experts are modules, under plain FSDP2: a model's own repository's, and transformers 4's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.common import transformers as _transformers
from simcore.frameworks.common.expert_modules import FOUR, HUB, Layers
from simcore.frameworks.common.qlora import STORAGE_OPTION
from simcore.frameworks.common.trainer import Trainer

__all__ = ["FOUR_TRAINER", "HUB_TRAINER"]

_FILE: Final = "the model's modeling_nemotron_h.py"
_OPTIONS: dict[str, tuple[Any, ...]] = {name: _transformers.OPTIONS[name] for name in (
    "wrap", "reshard_after_forward", "set_last_reshard", "sync_gradients", "prefetch", "optimizer_in_bwd",
    STORAGE_OPTION)}


def _trainer(layers: Layers, options: dict[str, tuple[Any, ...]]) -> Trainer:
    return replace(_transformers.TRAINER, options={**_OPTIONS, **options, **layers.options}, check=layers.check,
                   layer_options=layers.layer_options, serves_muon=False)


_LOSS: Final = ("hf", f"{_FILE}: CrossEntropyLoss of fp32 logits")
HUB_TRAINER: Final = replace(_trainer(HUB, {}), defaults=replace(_transformers.DEFAULTS, loss=_LOSS))
FOUR_TRAINER: Final = _trainer(FOUR, {"recompute_by": _transformers.OPTIONS["recompute_by"]})
