"""Optimizers by the names that transformers has for them, and which of the engine's they are."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["OPTIMIZERS", "SOURCE"]

_EIGHT: Final = {"name": "adamw", "moments": "int8"}
OPTIMIZERS: Final[dict[str, dict[str, Any]]] = {
    "adamw_torch": {"name": "adamw", "implementation": "foreach"},
    "adamw_torch_fused": {"name": "adamw", "implementation": "fused"},
    "adamw_bnb_8bit": {**_EIGHT, "implementation": "bitsandbytes"},
    "adamw_8bit": {**_EIGHT, "implementation": "bitsandbytes"},
    "paged_adamw_8bit": {**_EIGHT, "implementation": "bitsandbytes", "paged": True},
    "paged_adamw_32bit": {"name": "adamw", "implementation": "bitsandbytes", "paged": True},
    "adamw_torch_8bit": {**_EIGHT, "implementation": "torchao"},
    "sgd": {"name": "sgd"},
}
"""Settings of `training.optimizer` by the value of `optim`."""
SOURCE: Final = ("transformers 5.23.0 trainer_optimizer.py: adamw_torch_8bit is of torchao, "
                 "adamw_bnb_8bit of bitsandbytes")
