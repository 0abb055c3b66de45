"""Layers of a TRL recipe that are recomputed."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, read_rows
from simcore.recipes.trl.grpo.defaults import Release

__all__ = ["read_checkpointing"]

_TWICE: Final = "transformers 5.23.0 trainer.py create_accelerator_and_postprocess"


def read_checkpointing(reader: Reader, draft: Draft, launch: Launch, release: Release) -> None:
    """Writes whether layers are recomputed; TRL 1.16.0 does so by default, which FSDP's own checkpoints forbid."""
    asked, older = reader.flag("activation_checkpointing"), reader.flag("gradient_checkpointing")
    if asked is not None:
        draft.idle(older, f"{asked.key} goes before it (transformers 5.23.0 training_args.py)")
    asked = asked or older
    by_fsdp = [one for one in launch.checkpoints if one.value]
    draft.idle([one for one in launch.checkpoints if not one.value], "the default")
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        read_rows(reader, draft, [Off(f"{name}.selective", "layers that keep a part"),
                                  Idle((f"{name}.*", name), "reentrant or not: the same tensors are kept")])
    on = release.recomputes if asked is None else asked.value
    if by_fsdp and on:
        draft.use(*by_fsdp, asked)
        draft.fail(by_fsdp[0].where, f"{by_fsdp[0].key} beside gradient_checkpointing, which TRL switches on unless it "
                                     f"is false: both at once are an error ({_TWICE})")
    elif by_fsdp:
        draft.infer("training.recompute", "full", "FSDP checkpoints each layer", *by_fsdp, asked)
    elif asked is None:
        draft.default("training.recompute", "full" if on else "none", release.name, "gradient_checkpointing")
    else:
        draft.put("training.recompute", asked, "full" if asked.value else "none")
