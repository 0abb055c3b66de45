"""Optimizers of axolotl's recipes: those of transformers by their names, and the few of its own that are served."""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_optimizer"]

_EIGHT: Final = {"name": "adamw", "moments": "int8"}
_SERVED: Final[dict[str, dict[str, Any]]] = {
    "adamw_torch": {"name": "adamw", "implementation": "foreach"},
    "adamw_torch_fused": {"name": "adamw", "implementation": "fused"},
    "adamw_bnb_8bit": {**_EIGHT, "implementation": "bitsandbytes"},
    "adamw_8bit": {**_EIGHT, "implementation": "bitsandbytes"},
    "paged_adamw_8bit": {**_EIGHT, "implementation": "bitsandbytes", "paged": True},
    "paged_adamw_32bit": {"name": "adamw", "implementation": "bitsandbytes", "paged": True},
    "adamw_torch_8bit": {**_EIGHT, "implementation": "torchao"},
    "ao_adamw_8bit": {**_EIGHT, "implementation": "torchao"},
    "sgd": {"name": "sgd"},
    "muon": {"name": "muon"},
}
_SOURCE: Final = ("transformers 5.23.0 trainer_optimizer.py: adamw_torch_8bit is of torchao, "
                  "adamw_bnb_8bit of bitsandbytes")


def read_optimizer(reader: Reader, draft: Draft) -> None:
    """Writes the optimizer; one that has another kind of states is refused."""
    named = reader.text("optimizer")
    if named is None:
        draft.default("training.optimizer", {"name": "adamw", "implementation": "fused"}, "transformers 5.23.0",
                      "training_args.py: adamw_torch_fused")
    elif named.value in _SERVED:
        draft.put("training.optimizer", named, _SERVED[named.value], _SOURCE)
    else:
        draft.refuse(named, f"the optimizer {named.value}")
    draft.idle(reader.matching("optim_args", "optim_args.*"), "numbers of the update")
