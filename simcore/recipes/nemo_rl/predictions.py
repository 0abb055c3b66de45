"""Multi-token prediction of a policy that trains by Megatron: keys `mtp_*` of `policy.megatron_cfg`.

NeMo RL 7ea279ab `models/megatron/setup.py` _apply_mtp_config writes them over the model's configuration; the modules'
own loss is made inside the model, in training and in passes of log-probabilities (Megatron-LM main
`models/hybrid/hybrid_model.py`, compute_mtp_loss).
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.nemo_rl.policy import family_in
from simcore.recipes.reader import Reader

__all__ = ["read_predictions"]

_LIGHTNING: Final = "Bridge 067f987d recipes/nemotronh/h100/nemotron_3_nano.py:268"
_HYBRID: Final = ("nemotron_h", "")
"""Families of which one module may predict several tokens; \"\": it is not known yet which model it is."""


def read_predictions(reader: Reader, draft: Draft, at: str, kind: str) -> None:
    """Writes the modules that predict further tokens into `model.overrides`, and whether they are detached.

    `at`: block of the workers; `kind`: sft, dpo, grpo, or distillation, beside whose teacher they are refused.
    """
    count, repeats = reader.integer(f"{at}.mtp_num_layers"), reader.flag(f"{at}.mtp_use_repeated_layer")
    draft.idle(reader.matching(f"{at}.mtp_loss_scaling_factor"), "a factor of a loss")
    apart = reader.flag(f"{at}.mtp_detach_heads")
    if count is None or not count.value:
        draft.idle([one for one in (count, repeats, apart) if one], "no modules of multi-token prediction")
        return
    if kind == "distillation":
        draft.refuse(count, "multi-token prediction beside a teacher")
        draft.idle([one for one in (repeats, apart) if one], "of the modules of mtp_num_layers")
        return
    name = reader.text("policy.model_name")
    if isinstance(draft.values.get("model"), str):
        draft.leave_out("model")
        draft.put("model.config", name)
    draft.put("model.overrides.mtp_num_layers", count)
    if name is not None and "lightning" in name.value.casefold():
        draft.infer("model.overrides.mtp_hybrid_override_pattern", "*E", "layers of a module of Lightning", name,
                    source=_LIGHTNING)
    draft.put("framework_options.mtp_detach_heads", apart if apart is not None and apart.value else None)
    draft.idle(apart if apart is not None and not apart.value else None, "the default")
    if repeats is not None and repeats.value and count.value > 1 and family_in(draft) not in _HYBRID:
        draft.refuse(repeats, "one layer of multi-token prediction for all depths")
    elif repeats is not None and family_in(draft) in _HYBRID:
        draft.put("model.overrides.mtp_use_repeated_layer", repeats)
    else:
        draft.use(repeats, why="off, or of one depth, as without it")
