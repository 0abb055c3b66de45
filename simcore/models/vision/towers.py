"""The vision tower of a model by its name, as recipes ask for it before there is a scenario."""

from __future__ import annotations

from simcore.errors import InputError
from simcore.models.blocks import LayerKind
from simcore.models.graph import architecture_of, model_config
from simcore.models.vision_blocks import VisionPart

__all__ = ["tower_of"]


def tower_of(name: str) -> tuple[tuple[str, LayerKind], ...]:
    """Parts of the model's vision tower, each with its path; () for a model without one, or an unknown one."""
    try:
        parts = architecture_of(model_config(name, None, "")).parts
    except InputError:
        return ()
    return tuple((path, kind) for path, kind in parts if isinstance(kind.block, VisionPart))
