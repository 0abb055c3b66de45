"""GRPO of TRL: recipes that are read as such, rewards, and the reference model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.frameworks.trl_releases import NEWEST
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import read_rows
from simcore.recipes.trl.grpo.batches import Generated, read_generated
from simcore.recipes.trl.grpo.generation import read_generation
from simcore.recipes.trl.grpo.releases import OLDEST_NAMES, Turn
from simcore.recipes.trl.grpo.without_effect import WITHOUT_EFFECT

__all__ = ["begin_grpo", "read_grpo", "refuse_oldest"]

_FILTERS: Final = ("pass_rate_min", "pass_rate_max", "output_dataset_name", "dataset_start_index", "dataset_end_index",
                   "dataset_split")
"""Arguments of open-r1 scripts/pass_rate_filtering/compute_pass_rate.py, which has those of GRPO too."""
_LOSSES: Final = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")


def begin_grpo(reader: Reader, draft: Draft, own: Sequence[str], turn: Turn) -> None:
    """Writes the workload, whose step it is, and its release. `own`: arguments that GRPO has and `trl sft` has not."""
    first = next((one for name in own for one in reader.all() if one.path[0] == name), None)
    where = first.where if first is not None else draft.path
    draft.infer("workload", "grpo", "an argument of `trl grpo` (`trl rloo`, which is not read, may have it too)"
                if first is not None else "`trl grpo`", where=where)
    draft.infer("rl.trainer", "trl", "TRL's own loop", where=where)
    if turn.step.name != NEWEST:
        draft.infer("rl.version", turn.step.name, "the release that has all of these arguments", where=where)


def refuse_oldest(reader: Reader, draft: Draft) -> bool:
    """True for a recipe of a release before 0.18, or of no training, which is refused at its first such argument."""
    found = next((one for one in reader.all() if one.path[0] in (*OLDEST_NAMES, *_FILTERS)), None)
    if found is None:
        return False
    draft.refuse(found, "a script that draws a data set by rates of right answers" if found.path[0] in _FILTERS else
                 "GRPO of a release before TRL 0.18.0, which has no such argument", always=True)
    draft.idle([each for each in reader.matching("*") if each.path != found.path], "of a recipe that is refused")
    return True


def read_grpo(reader: Reader, draft: Draft, stored: str, turn: Turn) -> None:
    """Writes what GRPO has beside the arguments of all trainers; microbatch and global batch are written already.

    `stored`: format in which a second model rests where the policy is upcast, "" where it is not.
    """
    liger = reader.flag("use_liger_kernel")
    if turn.swaps_loss and liger is not None and liger.value:
        draft.fail(liger.where, f"not yet: use_liger_kernel: Liger's own loss of GRPO, which {turn.name} runs with its "
                                "layers")
    draft.refuse(reader.take("reward_model_name_or_path"), "a reward model beside the policy")
    kind = reader.text("loss_type")
    if kind is not None and kind.value not in _LOSSES:
        draft.fail(kind.where, f"Unknown loss type: {kind.value} (TRL 1.16.0 trainer/grpo_trainer.py)")
    draft.use(kind, why="a loss of one number a token, whichever it is")
    generated: Generated | None = read_generated(reader, draft, turn)
    _read_reference(reader, draft, stored, turn)
    read_generation(reader, draft, generated, turn)
    read_rows(reader, draft, WITHOUT_EFFECT)


def _read_reference(reader: Reader, draft: Draft, stored: str, turn: Turn) -> None:
    beta, synced = reader.number("beta"), reader.flag("sync_ref_model")
    on = (beta.value if beta is not None else turn.beta) != 0
    if beta is None:
        draft.default("rl.reference", "device" if on else "none", turn.name, f"trainer/grpo_config.py: beta "
                      f"{turn.beta}")
    else:
        draft.put("rl.reference", beta, "device" if on else "none")
    if synced is not None and synced.value:
        draft.put("rl.sync_reference", synced)
    else:
        draft.idle(synced, "the default")
    if on and stored and draft.values.get("training", {}).get("method", "full") == "full":
        draft.infer("rl.reference_params", stored, "the second model is read in this format, and not upcast", beta,
                    source="TRL 1.16.0 models/utils.py prepare_fsdp")
