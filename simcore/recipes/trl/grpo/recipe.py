"""GRPO of TRL: recipes that are read as such, rewards, and the reference model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import read_rows
from simcore.recipes.trl.grpo.batches import Generated, read_generated
from simcore.recipes.trl.grpo.generation import read_generation
from simcore.recipes.trl.grpo.without_effect import WITHOUT_EFFECT

__all__ = ["begin_grpo", "read_grpo", "refuse_older"]

_OLDER: Final = ("max_prompt_length", "vllm_device", "vllm_dtype", "vllm_max_model_len", "vllm_guided_decoding_regex",
                 "vllm_enable_prefix_caching", "use_liger_loss", "wandb_log_unique_prompts", "ref_model_init_kwargs")
"""Arguments of GRPO that ended before TRL 1.16.0."""
_LOSSES: Final = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")


def begin_grpo(reader: Reader, draft: Draft, own: Sequence[str]) -> None:
    """Writes the workload, and whose step it is. `own`: arguments that GRPO has and `trl sft` has not."""
    first = next((one for name in own for one in reader.all() if one.path[0] == name), None)
    where = first.where if first is not None else draft.path
    draft.infer("workload", "grpo", "an argument of `trl grpo` (`trl rloo`, which is not read, may have it too)"
                if first is not None else "`trl grpo`", where=where)
    draft.infer("rl.trainer", "trl", "TRL's own loop", where=where)


def refuse_older(reader: Reader, draft: Draft, older: frozenset[str]) -> bool:
    """True for a recipe of an older release, whose loss is another; it is refused at its first such argument.

    `older`: arguments of transformers' Trainer and of TRL that no newer release has.
    """
    found = next((one for one in reader.all() if one.path[0] in older or one.path[0] in _OLDER), None)
    if found is None:
        return False
    draft.refuse(found, "GRPO of a release before TRL 1.16.0, which has no such argument, and whose loss makes whole "
                        "logits", always=True)
    draft.idle([each for each in reader.matching("*") if each.path != found.path], "of a recipe that is refused")
    return True


def read_grpo(reader: Reader, draft: Draft, stored: str) -> None:
    """Writes what GRPO has beside the arguments of all trainers; microbatch and global batch are written already.

    `stored`: format in which a second model rests where the policy is upcast, "" where it is not.
    """
    draft.refuse(reader.take("reward_model_name_or_path"), "a reward model beside the policy")
    kind = reader.text("loss_type")
    if kind is not None and kind.value not in _LOSSES:
        draft.fail(kind.where, f"Unknown loss type: {kind.value} (TRL 1.16.0 trainer/grpo_trainer.py)")
    draft.use(kind, why="a loss of one number a token, whichever it is")
    generated: Generated | None = read_generated(reader, draft)
    _read_reference(reader, draft, stored)
    read_generation(reader, draft, generated)
    read_rows(reader, draft, WITHOUT_EFFECT)


def _read_reference(reader: Reader, draft: Draft, stored: str) -> None:
    beta, synced = reader.number("beta"), reader.flag("sync_ref_model")
    on = beta is not None and beta.value != 0
    if beta is None:
        draft.default("rl.reference", "none", "TRL 1.16.0", "trainer/grpo_config.py: beta 0.0")
    else:
        draft.put("rl.reference", beta, "device" if on else "none")
    if synced is not None and synced.value:
        draft.put("rl.sync_reference", synced)
    else:
        draft.idle(synced, "the default")
    if on and stored and draft.values.get("training", {}).get("method", "full") == "full":
        draft.infer("rl.reference_params", stored, "the second model is read in this format, and not upcast", beta,
                    source="TRL 1.16.0 models/utils.py prepare_fsdp")
