"""Optimizers by the names that transformers has for them, and which of the engine's they are."""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.reader import Reader, Taken

__all__ = ["CLIP", "OPTIMIZERS", "SOURCE", "named_optimizer", "read_clipping", "write_wide_states"]

_EIGHT: Final = {"name": "adamw", "moments": "int8"}
OPTIMIZERS: Final[dict[str, dict[str, Any]]] = {
    "adamw_torch": {"name": "adamw", "implementation": "foreach"},
    "adamw_torch_fused": {"name": "adamw", "implementation": "fused"},
    "adamw_bnb_8bit": {**_EIGHT, "implementation": "bitsandbytes"},
    "adamw_8bit": {**_EIGHT, "implementation": "bitsandbytes"},
    "paged_adamw_8bit": {**_EIGHT, "implementation": "bitsandbytes", "paged": True},
    "paged_adamw_32bit": {"name": "adamw", "implementation": "bitsandbytes", "paged": True},
    "adamw_torch_8bit": {**_EIGHT, "implementation": "torchao"},
    "adamw_torch_4bit": {"name": "adamw", "moments": "int4", "implementation": "torchao"},
    "adafactor": {"name": "adafactor"},
    "sgd": {"name": "sgd"},
}
"""Settings of `training.optimizer` by the value of `optim`."""
SOURCE: Final = ("transformers 5.23.0 trainer_optimizer.py: adamw_torch_8bit and 4bit are of torchao, "
                 "adamw_bnb_8bit of bitsandbytes")

CLIP: Final = "the norm is taken and gradients are multiplied whatever it says: both are timed, but under ZeRO"


def named_optimizer(reader: Reader, draft: Draft) -> Taken[str] | None:
    """Returns the value of `optim`, for which older releases have a flag too; None where the recipe has neither.

    transformers 4.57 `training_args.py`, __post_init__: `adafactor: true` takes the place of whatever `optim` says.
    """
    flag = reader.flag("adafactor")
    if flag is not None and flag.value:
        draft.idle(reader.matching("optim"), "adafactor goes before it")
        return Taken("adafactor", flag.path, flag.where, flag.reader)
    draft.idle(flag, "the default")
    return reader.text("optim")


def write_wide_states(draft: Draft, shards: Shards, release: str) -> None:
    """Writes that embeddings keep states in 32 bits beside 8-bit ones of bitsandbytes, where each GPU has a copy.

    Nothing where no embedding trains, or another library or another way to shard has the states.
    """
    training, optimizer = draft.values.get("training", {}), draft.values.get("training", {}).get("optimizer", {})
    in_8_bits = (optimizer.get("moments"), optimizer.get("implementation")) == ("int8", "bitsandbytes")
    trains = training.get("method", "full") == "full" or "embed_tokens" in training.get("lora", {}).get(
        "modules_to_save", ())
    if in_8_bits and shards is Shards.NONE and trains:
        draft.default("framework_options.wide_embedding_states", value=True, release=release,
                      source="trainer.py create_optimizer: register_module_override")


def read_clipping(reader: Reader, draft: Draft, key: str) -> None:
    """Lists the norm at which gradients are clipped.

    transformers 5.23.0 `trainer.py` _get_grad_norm: where it is 0 or less they are clipped at infinity, by the same
    kernels. Under ZeRO DeepSpeed does it (0.19.6 `stage_1_and_2.py`, `stage3.py`, unscale_and_clip_grads): the norm is
    taken and gradients are divided by the scale of the loss in any case.
    """
    draft.idle(reader.take(key), CLIP)
