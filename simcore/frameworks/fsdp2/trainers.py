"""What the trainer of each implementation sets, refuses and cuts under FSDP2."""

from __future__ import annotations

from types import ModuleType

from simcore.frameworks.common import llmfoundry as _llmfoundry
from simcore.frameworks.common import transformers as _transformers
from simcore.frameworks.fsdp2 import hub as _hub
from simcore.frameworks.fsdp2 import kempnerforge as _kempnerforge
from simcore.frameworks.fsdp2 import torchtitan as _torchtitan

__all__ = ["CODES"]

CODES: dict[str, ModuleType] = {"hf": _transformers, "hub": _hub, "torchtitan": _torchtitan,
                                "kempnerforge": _kempnerforge, "llmfoundry": _llmfoundry}
"""What the trainer of each implementation sets, refuses and cuts."""
