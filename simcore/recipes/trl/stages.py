"""Trainings of TRL that are neither of `trl sft` nor of `trl grpo`, by the arguments that only their recipes have.

No recipe says by which command it is run: `trl dpo --config FILE` and `trl sft --config FILE` read one kind of file.
TRL 1.16.0 `trainer/grpo_config.py`, `dpo_config.py`, `kto_config.py`, `reward_config.py`; 0.19.1 `orpo_config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["refuse_stage"]

_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "trl rloo, or another trainer that generates": (
        "num_generations", "reward_funcs", "max_completion_length", "reward_weights", "scale_rewards"),
    "trl kto": ("desirable_weight", "undesirable_weight"),
    "trl dpo, or another method of preferences": ("beta", "max_prompt_length", "precompute_ref_log_probs", "rpo_alpha",
                                                  "ref_model_name_or_path", "sync_ref_model", "reference_free"),
    "trl reward": ("center_rewards_coefficient",),
}
"""Arguments that no configuration of `trl sft` has, by the command that has them; the first that fits is named."""


def refuse_stage(reader: Reader, draft: Draft) -> bool:
    """True if the recipe is of a training that is not read, which is refused with its first such argument."""
    names = reader.names()
    command, found = next(((command, name) for command, known in _ARGUMENTS.items() for name in known
                           if name in names), ("", ""))
    if not found:
        return False
    (one,) = [each for each in reader.all() if each.path[0] == found][:1]
    draft.refuse(one, f"an argument of {command} (read: `trl sft`, `trl grpo`)", always=True)
    draft.idle([each for each in reader.matching("*") if each.path != one.path], "of a recipe that is refused")
    return True
