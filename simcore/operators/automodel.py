"""NeMo Automodel's own models: what its layers hold, compute and send."""

from __future__ import annotations

from simcore.operators.automodel_tensors import tensors

__all__ = ["tensors"]
