"""Trainings of TRL beside `trl sft`: by what a recipe of another is known, and which of them are read.

No recipe says by which command it is run: `trl dpo --config FILE` and `trl sft --config FILE` read one kind of file.
What starts it does, else the arguments that one training alone has, else the recipe's file and folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.launch.trl import COMMANDS
from simcore.recipes.reader import Reader

__all__ = ["GRPO", "KTO", "REWARD", "SFT", "arguments_of", "is_of_sft", "refuse_stage", "stage_of"]

SFT: Final = "sft"
GRPO: Final = "grpo"
REWARD: Final = "reward"
KTO: Final = "kto"
_READ: Final = (SFT, "dpo", REWARD, GRPO, KTO)
_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "rloo": ("rloo_k", "reward_clip_range", "normalize_advantages"),
    "gkd": ("teacher_model_name_or_path", "lmbda"),
    GRPO: ("num_generations", "reward_funcs", "max_completion_length", "reward_weights", "scale_rewards"),
    KTO: ("desirable_weight", "undesirable_weight"),
    "dpo": ("beta", "max_prompt_length", "precompute_ref_log_probs", "rpo_alpha", "ref_model_name_or_path",
            "sync_ref_model", "reference_free", "f_divergence_type", "ld_alpha", "use_weighting", "loss_weights",
            "label_smoothing"),
    REWARD: ("center_rewards_coefficient",),
}
"""Arguments that no configuration of `trl sft` has, by the training that has them; the first that fits is named."""
_OTHERS: Final = ("orpo", "cpo", "simpo", "online_dpo", "xpo", "nash_md", "ppo", "gkd", "bco", "prm")
"""Trainings that no command starts any more."""
_ALIKE: Final = ("dpo", KTO, REWARD, *_OTHERS)
"""Trainings whose arguments a recipe may not tell apart."""
_WORDS: Final = re.compile(rf"(?<![a-z])({'|'.join((*_OTHERS, *COMMANDS))})(?![a-z])")


def stage_of(names: frozenset[str], draft: Draft) -> str:
    """Training that a recipe with these top-level `names` is of, such as `dpo`."""
    started = _WORDS.search(draft.answers.program.rpartition("/")[2].lower())
    if started is not None:
        return started[1]
    found = next((stage for stage, known in _ARGUMENTS.items() for name in known if name in names), "")
    path = PurePath(draft.path)
    named = _WORDS.search(path.stem.lower()) or _WORDS.search(path.parent.name.lower())
    if named is not None and named[1] in _ALIKE and found in ("", *_ALIKE):
        return named[1]
    return found or SFT


def arguments_of(stage: str) -> tuple[str, ...]:
    """Arguments that recipes of a training have and those of `trl sft` have not."""
    return _ARGUMENTS.get(stage, ())


def is_of_sft(names: frozenset[str]) -> bool:
    """True if none of a recipe's top-level `names` is an argument of another training than `trl sft`."""
    return not any(name in names for known in _ARGUMENTS.values() for name in known)


def refuse_stage(reader: Reader, draft: Draft, stage: str) -> bool:
    """True if the recipe is of a training that is not read, which is refused with its first argument."""
    if stage in _READ:
        return False
    names = reader.names()
    known = arguments_of(stage) or arguments_of("dpo")
    found = next((name for name in known if name in names), "model_name_or_path")
    (one,) = [each for each in reader.all() if each.path[0] == found][:1]
    draft.refuse(one, f"{'an argument' if stage in _ARGUMENTS else 'a recipe'} of trl {stage} (read: "
                      f"{', '.join(f'`trl {each}`' for each in _READ)})", always=True)
    draft.idle([each for each in reader.matching("*") if each.path != one.path], "of a recipe that is refused")
    return True
