"""Layers of a LLaMA-Factory recipe that are recomputed: all, unless it says otherwise."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.reader import Reader

__all__ = ["read_checkpointing"]

_RELEASE: Final = "LLaMA-Factory ff6d4d12"
_ON: Final = "model/model_utils/checkpointing.py prepare_model_for_training: unless disable_gradient_checkpointing"
_HOST: Final = f"{_RELEASE} model/model_utils/checkpointing.py get_unsloth_gradient_checkpointing_func"


def read_checkpointing(reader: Reader, draft: Draft, launch: Launch) -> None:
    """Writes whether layers are recomputed, and whether their inputs wait on the host (`use_unsloth_gc`)."""
    disabled, asked = reader.flag("disable_gradient_checkpointing"), reader.flag("gradient_checkpointing")
    host = reader.flag("use_unsloth_gc")
    draft.idle(reader.matching("use_reentrant_gc", "gradient_checkpointing_kwargs", "gradient_checkpointing_kwargs.*"),
               "reentrant or not: the same tensors are kept")
    on = disabled is None or not disabled.value or (asked is not None and asked.value)
    by_fsdp = [one for one in launch.checkpoints if one.value]
    draft.idle([one for one in launch.checkpoints if not one.value], "the default")
    if by_fsdp and on:
        draft.use(*by_fsdp, disabled, asked)
        draft.fail(by_fsdp[0].where, f"not yet: {by_fsdp[0].key} beside LLaMA-Factory's own checkpoints, which "
                                     "disable_gradient_checkpointing: true switches off")
    elif by_fsdp:
        draft.infer("training.recompute", "full", "FSDP checkpoints each layer", *by_fsdp, disabled, asked)
    elif disabled is None and asked is None:
        draft.default("training.recompute", "full", _RELEASE, _ON)
    else:
        draft.infer("training.recompute", "full" if on else "none", "checkpoints of all layers" if on else
                    "checkpoints are switched off", disabled, asked, source=f"{_RELEASE} {_ON}")
    if host is not None and host.value and on:
        draft.infer("training.offload.activations", "host", "inputs of recomputed layers wait on the host", host,
                    source=_HOST)
    else:
        draft.idle(host, "the default" if on else "no layer is recomputed")
