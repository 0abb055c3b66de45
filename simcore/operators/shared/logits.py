"""Operators on logits between the output projection and the loss: a number that divides them, a cap.

transformers 5.23: `models/granite` and `models/granitemoehybrid` divide, `models/gemma2` and `models/gemma3` divide by
the cap, take tanh and multiply by the cap.
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import Head, LayerKind
from simcore.operators.shared import aten
from simcore.recording.tape import Tape, Tensor

__all__ = ["CAP", "changes_logits", "finished_logits"]

CAP: Final = (aten.mul_scalar, aten.tanh, aten.mul_scalar)
"""Steps of `cap * tanh(x / cap)`, each of which makes a new tensor; upstream's variable drops the one before."""


def changes_logits(kind: LayerKind) -> bool:
    """True if the head of a model multiplies its logits or keeps them below a cap."""
    return kind.scaled or (isinstance(kind.block, Head) and kind.block.capped)


def finished_logits(tape: Tape, kind: LayerKind, logits: Tensor) -> Tensor:
    """Logits as the loss gets them, in the shape and type of `logits`; `kind`: the head."""
    for step in CAP if isinstance(kind.block, Head) and kind.block.capped else ():
        logits = step(tape, logits)
    return aten.mul_scalar(tape, logits) if kind.scaled else logits
