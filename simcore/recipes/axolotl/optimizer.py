"""Optimizers of axolotl's recipes: those of transformers by their names, and the few of its own that are served."""

from __future__ import annotations

from typing import Final

from simcore.recipes.axolotl.sharding import Sharding
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.low_rank.trainer import LOW_RANK, read_low_rank
from simcore.recipes.huggingface.optimizers import (
    OPTIMIZERS,
    SOURCE,
    holds_states_on_host,
    read_clipping,
    read_decay,
    write_optimizer,
    write_wide_states,
)
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.reader import Reader, Taken

__all__ = ["read_optimizer"]

_BATCHES: Final = ("its step over DTensors is torch's here; axolotl's DistMuon (axolotl-contribs-mit 0.0.6 muon/"
                   "dist_muon.py) exchanges a matrix a rank at a time, up to three such batches at once: more bytes")
_UNHANDLED: Final = {"ao_adamw_4bit": "adamw_torch_4bit", "ao_adamw_8bit": "adamw_torch_8bit",
                      "lion_pytorch": "lion_32bit"}
"""Names for which axolotl's builder has no optimizer (any more), and transformers' own.

Two are in its schema (`utils/schemas/enums.py`), one is read as any text (dropped by axolotl fa7c79b3).
"""


def read_optimizer(reader: Reader, draft: Draft, sharding: Sharding) -> None:
    """Writes the optimizer; one that has another kind of states is refused, one of DeepSpeed's own goes before it."""
    named = reader.text("optimizer")
    read_clipping(reader, draft, "max_grad_norm")
    zero = sharding.zero
    if named is not None and named.value in LOW_RANK and not (zero and zero.has_optimizer):
        read_low_rank(reader, draft, named)
        return
    draft.idle(reader.matching("optim_target_modules"), "read by GaLore and APOLLO alone")
    if named is not None and named.value == "muon":
        _read_muon(draft, named, sharding)
    elif zero is not None and zero.has_optimizer:
        draft.idle(named, "DeepSpeed's configuration names an optimizer")
    elif zero is not None and (named is None or named.value in OPTIMIZERS):
        write_optimizer(draft, zero, named, "axolotl 067b021c", "utils/schemas/training.py optimizer")
        read_decay(reader, draft, named.value if named and not holds_states_on_host(draft) else "", "weight_decay")
    elif named is None:
        draft.default("training.optimizer", {"name": "adamw", "implementation": "fused"}, "axolotl 067b021c",
                      "utils/schemas/training.py optimizer: adamw_torch_fused")
    elif named.value in OPTIMIZERS:
        draft.put("training.optimizer", named, {**OPTIMIZERS[named.value]}, SOURCE)
        read_decay(reader, draft, named.value, "weight_decay")
        write_wide_states(draft, sharding.shards, "transformers 5.14.1")
    elif named.value in _UNHANDLED:
        draft.use(named)
        draft.fail(named.where, f"Unhandled optimizer: {named.value} (core/builders/base.py _configure_optimizer): "
                                f"{_UNHANDLED[named.value]} is transformers' name for it")
    else:
        draft.refuse(named, f"the optimizer {named.value}")
    draft.idle(reader.matching("optim_args", "optim_args.*"), "numbers of the update")


def _read_muon(draft: Draft, named: Taken[str], sharding: Sharding) -> None:
    """Writes Muon over shards of FSDP 2; the schema refuses it over other shards."""
    if sharding.zero is not None:
        rule = "Muon optimizer is currently incompatible with DeepSpeed"
    elif sharding.shards is Shards.FLAT:
        rule = "Muon optimizer is only compatible with FSDP2. Set fsdp_version: 2 to use Muon with FSDP."
    elif sharding.shards is Shards.NONE:
        draft.refuse(named, "axolotl's Muon of whole matrices, which leaves out parameters of one dimension")
        return
    else:
        draft.put("training.optimizer", named, {"name": "muon"}, SOURCE)
        draft.unmodelled_default("DistMuon", "a matrix a rank", _BATCHES)
        write_wide_states(draft, sharding.shards, "transformers 5.14.1")
        return
    draft.use(named)
    draft.fail(named.where, f"{rule} (axolotl 0.19.0 utils/schemas/validation.py check_muon_deepspeed_fsdp)")
