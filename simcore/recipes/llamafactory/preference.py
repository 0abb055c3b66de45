"""Training by preferences (`stage: dpo`, `kto`): LLaMA-Factory's own trainers.

ff6d4d12 `train/dpo/trainer.py`: dropout is off, chosen and rejected sequences of a microbatch pass together, with
adapters the reference is the model without them; ORPO and SimPO (`pref_loss`) have none. `train/kto/trainer.py`: no
pairs, but a further pass of each model over completions of other prompts.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.trainer import double_batches, turn_off_dropout
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, read_rows

__all__ = ["write_preference"]

_RELEASE: Final = "LLaMA-Factory ff6d4d12"
_TRAINER: Final = f"{_RELEASE} train/dpo/trainer.py"
_ALONE: Final = ("orpo", "simpo")
_KTO: Final = "kto"
_NUMBERS: Final = Idle(("pref_beta", "pref_ftx", "pref_bco_weight", "simpo_gamma", "dpo_label_smoothing", "ld_alpha",
                        "kto_chosen_weight", "kto_rejected_weight"), "numbers of the loss")


def write_preference(reader: Reader, draft: Draft, stage: str) -> None:
    """Writes what the trainer of `stage`, if it is of preferences, makes of a recipe that is read for next tokens."""
    if stage not in ("dpo", _KTO):
        return
    training, where = draft.values.get("training", {}), draft.path
    kind = reader.text("pref_loss")
    if stage == _KTO:
        draft.idle(kind, "of stage dpo")
    elif kind is not None and kind.value not in ("sigmoid", "hinge", "ipo", "kto_pair", *_ALONE):
        draft.use(kind)
        draft.fail(kind.where, "pref_loss: expected sigmoid, hinge, ipo, kto_pair, orpo or simpo, got "
                               f"{kind.value} ({_RELEASE} hparams/finetuning_args.py)")
        return
    named, whole = reader.text("ref_model"), training.get("method", "full") == "full"
    if named is not None and whole and named.value == reader.look("model_name_or_path"):
        draft.use(named, why="the reference is the model before it is trained")
    else:
        draft.refuse(named, "a reference model of its own")
    for key in ("ref_model_adapters", "ref_model_quantization_bit"):
        draft.refuse(reader.take(key), "a reference model of its own")
    if reader.look("neat_packing"):
        draft.fail(where, f"`neat_packing` cannot be set as True except SFT ({_RELEASE} hparams/parser.py:423)")
    read_rows(reader, draft, [_NUMBERS])
    if stage == _KTO:
        draft.infer("training.loss", "kto_softmax", "logits of all passes", where=where,
                    source=f"{_RELEASE} train/kto/trainer.py forward")
        turn_off_dropout(draft, where, f"{_RELEASE} train/kto/trainer.py: disable_dropout")
        return
    alone = kind is not None and kind.value in _ALONE
    draft.infer("training.loss", "preference_softmax_alone" if alone else "preference_softmax",
                "pref_loss: no reference" if alone else "logits of pairs, and of the reference", kind, where=where,
                source=f"{_TRAINER} concatenated_forward")
    double_batches(draft, where, f"{_RELEASE} data/collator.py PairwiseDataCollatorWithPadding")
    turn_off_dropout(draft, where, f"{_TRAINER}: disable_dropout")
