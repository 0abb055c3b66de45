"""Variables of LLaMA-Factory: those that its launcher sets for the ranks, and those that choose another program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.huggingface.companions import Companions
from simcore.recipes.huggingface.shards import Shards

__all__ = ["ALLOCATOR", "check_programs", "ray_at", "write_environment"]

ALLOCATOR: Final = "PYTORCH_CUDA_ALLOC_CONF"
"""Variable that the launcher sets for the ranks over the user's."""
_SOURCE: Final = "LLaMA-Factory ff6d4d12 launcher.py: unless OPTIM_TORCH=0"
_PROGRAMS: Final[Mapping[str, str]] = {
    "USE_V1": "the rewrite, whose FSDP and batches are its own (cli.py)", "USE_MCA": "layers of Megatron (launcher.py)",
    "USE_MEGATRON_BRIDGE": "layers of Megatron (hparams/parser.py)",
    "USE_KT": "experts that are computed on the host (KTransformers, launcher.py)"}
"""Variables that choose other programs, each with what they are and the file that asks for it."""
_RAY: Final = "USE_RAY"
_ON: Final = ("true", "y", "1")
"""Words that switch a variable on (`extras/misc.py` is_env_enabled)."""


def check_programs(draft: Draft) -> None:
    """Refuses variables of the launch script that choose another program."""
    for name, what in _PROGRAMS.items():
        if where := _on_at(draft.answers, name):
            draft.fail(where, f"not yet: {name}: {what}")


def ray_at(answers: Answers) -> str:
    """Place at which a launch script has Ray start the ranks; "" if it does not."""
    return _on_at(answers, _RAY)


def write_environment(draft: Draft, launch: Launch, beside: Companions) -> None:
    """Writes expandable segments where `llamafactory-cli` starts several ranks by torchrun.

    Not where accelerate or torchrun start `src/train.py` themselves, nor under Ray. One rank is started by torchrun
    for DeepSpeed alone, which asks for it.
    """
    ranks = draft.answers.gpus.value if draft.answers.gpus else 1
    if beside.accelerate is None and draft.answers.launcher in ("", "llamafactory") and not ray_at(draft.answers) and (
            ranks > 1 or launch.shards is Shards.ZERO):
        draft.infer("environment.expandable_segments", value=True, rule="llamafactory-cli starts ranks with "
                    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", source=_SOURCE)


def _on_at(answers: Answers, name: str) -> str:
    value, where = answers.exported.get(name, ("", ""))
    return where if value.lower() in _ON else ""
