"""Activations of an axolotl recipe: which are recomputed, and which wait on the host."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_checkpointing"]

_OFFLOADED: Final = ("loaders/model.py _apply_activation_checkpointing: with adapters all activations go to the host "
                     "instead of being recomputed, else the inputs of recomputed layers")
_OFF: Final = "utils/schemas/config.py"
_VALIDATION: Final = "utils/schemas/validation.py check_activation_offloading_wo_gc"
_FSDP: Final = "accelerate's FSDP checkpoints each wrapped layer"


def read_checkpointing(reader: Reader, draft: Draft) -> None:
    """Writes what is recomputed, and offload of activations; `training.method` is known by then."""
    names = ("gradient_checkpointing", "fsdp_config.activation_checkpointing",
             "fsdp_config.fsdp_activation_checkpointing")
    layers, offload = reader.take(names[0]), reader.take("activation_offloading")
    by_fsdp = [one for one in (reader.flag(name) for name in names[1:]) if one is not None]
    draft.idle(reader.matching("gradient_checkpointing_kwargs.*"), "reentrant or not: the same tensors are kept")
    if layers is not None and layers.value not in (True, False, "offload"):
        draft.refuse(layers, f"checkpoints of kind {layers.value}")
        draft.use(*by_fsdp, offload)
        return
    asked = (offload is not None and offload.value is not False) or (layers is not None and layers.value == "offload")
    if offload is not None and offload.value not in (True, False, "legacy"):
        draft.refuse(offload, f"activations that wait on {offload.value}")
        draft.use(layers, *by_fsdp)
        return
    if asked and not (layers is not None and layers.value):
        where = next(one.where for one in (offload, layers) if one is not None)
        draft.fail(where, f"activation_offloading requires gradient_checkpointing ({_VALIDATION})")
    recomputed = (layers is not None and bool(layers.value)) or any(one.value for one in by_fsdp)
    adapters = draft.values.get("training", {}).get("method", "full") != "full"
    if asked and adapters:
        draft.infer("training.offload.activations", "host", "activation offload", offload, layers, *by_fsdp,
                    source=_OFFLOADED)
        draft.infer("training.recompute", "none", "offload takes the place of recomputing", offload, layers,
                    source=_OFFLOADED)
    elif asked:
        draft.infer("training.offload.activations", "host", "activation offload", offload, layers, *by_fsdp,
                    source=_OFFLOADED)
        draft.infer("training.recompute", "full", "inputs of recomputed layers wait on the host", offload, layers,
                    *by_fsdp, source=_OFFLOADED)
    elif recomputed:
        rule = _FSDP if any(one.value for one in by_fsdp) else ""
        draft.infer("training.recompute", "full", "checkpoints of all layers", layers, *by_fsdp, source=rule)
        draft.idle(offload, "the default")
    else:
        draft.idle([one for one in (layers, offload, *by_fsdp) if one], "the default")
        if layers is None:
            draft.release_default("gradient_checkpointing", "false", "axolotl 067b021c", _OFF)
