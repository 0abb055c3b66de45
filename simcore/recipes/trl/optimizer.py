"""Optimizer of a TRL recipe, and which layers are recomputed."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.huggingface.optimizers import OPTIMIZERS, SOURCE
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, read_rows

__all__ = ["read_checkpointing", "read_optimizer"]

_TWICE: Final = "transformers 5.23.0 trainer.py create_accelerator_and_postprocess"


def read_optimizer(reader: Reader, draft: Draft, launch: Launch) -> None:
    """Writes the optimizer by its name; one that DeepSpeed's configuration names takes its place."""
    named = reader.text("optim")
    draft.idle(reader.matching("optim_args", "optim_target_modules"), "numbers of the update")
    if launch.zero is not None and launch.zero.has_optimizer:
        draft.idle(named, "DeepSpeed's configuration names an optimizer")
    elif named is not None and named.value not in OPTIMIZERS:
        draft.refuse(named, f"the optimizer {named.value}")
    elif launch.shards is Shards.ZERO and (named is None or named.value in ("adamw_torch", "adamw_torch_fused")):
        draft.put("training.optimizer.name", named, "adamw", "on the host it is DeepSpeed's own Adam")
    elif named is None:
        draft.default("training.optimizer", {"name": "adamw", "implementation": "fused"}, "transformers 5.23.0",
                      "training_args.py: adamw_torch_fused")
    else:
        draft.put("training.optimizer", named, OPTIMIZERS[named.value], SOURCE)


def read_checkpointing(reader: Reader, draft: Draft, launch: Launch) -> None:
    """Writes whether layers are recomputed; TRL does so by default, which FSDP's own checkpoints forbid."""
    asked = reader.flag("gradient_checkpointing") or reader.flag("activation_checkpointing")
    by_fsdp = [one for one in launch.checkpoints if one.value]
    draft.idle([one for one in launch.checkpoints if not one.value], "the default")
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        read_rows(reader, draft, [Off(f"{name}.selective", "layers that keep a part"),
                                  Idle((f"{name}.*", name), "reentrant or not: the same tensors are kept")])
    on = asked is None or asked.value
    if by_fsdp and on:
        draft.use(*by_fsdp, asked)
        draft.fail(by_fsdp[0].where, f"{by_fsdp[0].key} beside gradient_checkpointing, which TRL switches on unless it "
                                     f"is false: both at once are an error ({_TWICE})")
    elif by_fsdp:
        draft.infer("training.recompute", "full", "FSDP checkpoints each layer", *by_fsdp, asked)
    elif asked is None:
        draft.default("training.recompute", "full", "TRL 1.16.0", "trainer/base_config.py gradient_checkpointing")
    else:
        draft.put("training.recompute", asked, "full" if asked.value else "none")
