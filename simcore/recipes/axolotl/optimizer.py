"""Optimizers of axolotl's recipes: those of transformers by their names, and the few of its own that are served."""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.axolotl.sharding import Sharding
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.deepspeed import write_optimizer
from simcore.recipes.huggingface.optimizers import OPTIMIZERS, SOURCE, read_clipping, write_wide_states
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.reader import Reader

__all__ = ["read_optimizer"]

_SERVED: Final[dict[str, dict[str, Any]]] = {
    **OPTIMIZERS,
    "muon": {"name": "muon"},
}
_BATCHES: Final = ("its step over DTensors is torch's here; axolotl's DistMuon (axolotl-contribs-mit 0.0.6 muon/"
                   "dist_muon.py) exchanges a matrix a rank at a time, up to three such batches at once: more bytes")
_UNHANDLED: Final = ("ao_adamw_4bit", "ao_adamw_8bit")
"""Names in axolotl's schema (`utils/schemas/enums.py`) for which its builder has no optimizer."""


def read_optimizer(reader: Reader, draft: Draft, sharding: Sharding) -> None:
    """Writes the optimizer; one that has another kind of states is refused, one of DeepSpeed's own goes before it."""
    named = reader.text("optimizer")
    read_clipping(reader, draft, "max_grad_norm")
    zero = sharding.zero
    if named is not None and named.value == "muon" and (rule := _refusal_of_muon(sharding)):
        draft.use(named)
        draft.fail(named.where, f"{rule} (axolotl 0.19.0 utils/schemas/validation.py check_muon_deepspeed_fsdp)")
    elif zero is not None and zero.has_optimizer:
        draft.idle(named, "DeepSpeed's configuration names an optimizer")
    elif zero is not None and (named is None or named.value in OPTIMIZERS):
        write_optimizer(draft, zero, named, "axolotl 067b021c", "utils/schemas/training.py optimizer")
    elif named is None:
        draft.default("training.optimizer", {"name": "adamw", "implementation": "fused"}, "axolotl 067b021c",
                      "utils/schemas/training.py optimizer: adamw_torch_fused")
    elif named.value == "muon" and sharding.shards is Shards.NONE:
        draft.refuse(named, "axolotl's Muon of whole matrices, which leaves out parameters of one dimension")
    elif named.value in _SERVED:
        draft.put("training.optimizer", named, _SERVED[named.value], SOURCE)
        if named.value == "muon":
            draft.unmodelled_default("DistMuon", "a matrix a rank", _BATCHES)
        write_wide_states(draft, sharding.shards, "transformers 5.14.1")
    elif named.value in _UNHANDLED:
        draft.use(named)
        draft.fail(named.where, f"Unhandled optimizer: {named.value} (core/builders/base.py _configure_optimizer): "
                                f"{named.value.replace('ao_adamw', 'adamw_torch')} is transformers' name for it")
    else:
        draft.refuse(named, f"the optimizer {named.value}")
    draft.idle(reader.matching("optim_args", "optim_args.*"), "numbers of the update")


def _refusal_of_muon(sharding: Sharding) -> str:
    """Words of axolotl's schema against its Muon, "" where it runs."""
    if sharding.zero is not None:
        return "Muon optimizer is currently incompatible with DeepSpeed"
    if sharding.shards is Shards.FLAT:
        return "Muon optimizer is only compatible with FSDP2. Set fsdp_version: 2 to use Muon with FSDP."
    return ""
