"""Variables that LLaMA-Factory's launcher sets for the ranks that it starts."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.huggingface.companions import Companions
from simcore.recipes.huggingface.shards import Shards

__all__ = ["write_environment"]

_SOURCE: Final = "LLaMA-Factory ff6d4d12 launcher.py: unless OPTIM_TORCH=0"


def write_environment(draft: Draft, launch: Launch, beside: Companions) -> None:
    """Writes expandable segments where `llamafactory-cli` starts several ranks by torchrun.

    Not where accelerate or torchrun start `src/train.py` themselves. One rank is started by torchrun for DeepSpeed
    alone, which asks for it.
    """
    ranks = draft.answers.gpus.value if draft.answers.gpus else 1
    if beside.accelerate is None and draft.answers.launcher in ("", "llamafactory") and (
            ranks > 1 or launch.shards is Shards.ZERO):
        draft.infer("environment.expandable_segments", value=True, rule="llamafactory-cli starts ranks with "
                    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", source=_SOURCE)
