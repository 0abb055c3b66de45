"""DPO and reward models of OpenRLHF (`openrlhf/cli/train_dpo.py`, `train_rm.py`), over DeepSpeed's ZeRO.

[Note: pairs as one batch] Both trainers pass chosen and rejected sequences through the model as one batch
(`trainer/dpo_trainer.py`, `trainer/rm_trainer.py` concatenated_forward): batches of the command line count pairs. The
reference of DPO is a model of its own, also beside adapters (`cli/train_dpo.py` ref_model). A reward model has a linear
without a bias behind the decoder, whose value at the last token counts (`models/model.py` _get_reward_model).
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.openrlhf.sft import Batches, read_zero_training
from simcore.recipes.openrlhf.strategy import RELEASE
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Row, read_rows

__all__ = ["read_dpo", "read_rewards"]

_DPO: Final = Batches("cli/train_dpo.py", length=512, micro=8, pairs=True)
_RM: Final = Batches("cli/train_rm.py", length=512, micro=1, pairs=True)
_ROWS: Final[tuple[Row, ...]] = (
    Idle(("model.beta", "model.ipo_enable", "model.label_smoothing", "model.nll_loss_coef"),
         "of one number a token or less"),
)
_ROWS_OF_RM: Final[tuple[Row, ...]] = (
    Idle(("model.loss_type", "model.margin_loss_enable", "model.compute_fp32_loss_enable"),
         "of one number a sequence"),
    Idle(("ds.value_head_prefix",), "a name"),
)


def read_dpo(reader: Reader, draft: Draft) -> Reader:
    """Reads a recipe of DPO; returns the reader of DeepSpeed's configuration."""
    strategy = read_zero_training(reader, draft, _DPO)
    if (draft.values.get("training") or {}).get("method", "full") != "full":
        draft.fail(draft.path, f"not yet: a reference model of its own beside adapters ({RELEASE} cli/train_dpo.py)")
    named, own = reader.text("ref.model_name_or_path"), reader.look("model.model_name_or_path")
    if named is not None and named.value not in ("", own):
        draft.refuse(named, "a reference model of another name than the policy's")
    else:
        draft.idle(named, "the policy's own, which is the default")
    read_rows(reader, draft, [Off("ref.offload", "a reference model on the host")])
    draft.default("training.loss", "preference_fp32", RELEASE, "trainer/dpo_trainer.py concatenated_forward")
    read_rows(reader, draft, _ROWS)
    return strategy


def read_rewards(reader: Reader, draft: Draft) -> Reader:
    """Reads a recipe of a reward model; returns the reader of DeepSpeed's configuration."""
    strategy = read_zero_training(reader, draft, _RM)
    draft.default("training.loss", "rewards", RELEASE, "trainer/rm_trainer.py concatenated_forward")
    read_rows(reader, draft, _ROWS_OF_RM)
    return strategy
