"""Optimizers by the names that transformers has for them, and which of the engine's they are."""

from __future__ import annotations

from typing import Any, Final

from simcore.inputs.optimizers import DECAYED
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.zero import Zero
from simcore.recipes.reader import Reader, Taken

__all__ = ["CLIP", "OPTIMIZERS", "SOURCE", "holds_states_on_host", "named_optimizer", "read_clipping",
           "read_decay", "read_own", "stops_on_host", "write_optimizer", "write_wide_states"]

_EIGHT: Final = {"name": "adamw", "moments": "int8"}
_BNB: Final[dict[str, Any]] = {"implementation": "bitsandbytes"}
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
    "lion_32bit": {"name": "lion", **_BNB},
    "lion_8bit": {"name": "lion", **_BNB, "moments": "int8"},
    "paged_lion_32bit": {"name": "lion", **_BNB, "paged": True},
    "paged_lion_8bit": {"name": "lion", **_BNB, "moments": "int8", "paged": True},
    "ademamix": {"name": "ademamix", **_BNB},
    "ademamix_8bit": {"name": "ademamix", **_BNB, "moments": "int8"},
    "paged_ademamix_32bit": {"name": "ademamix", **_BNB, "paged": True},
    "paged_ademamix_8bit": {"name": "ademamix", **_BNB, "moments": "int8", "paged": True},
    "rmsprop": {"name": "rmsprop", "implementation": "foreach"},
    "rmsprop_bnb": {"name": "rmsprop", **_BNB},
    "rmsprop_bnb_32bit": {"name": "rmsprop", **_BNB},
    "rmsprop_bnb_8bit": {"name": "rmsprop", **_BNB, "moments": "int8"},
    "adagrad": {"name": "adagrad", "implementation": "foreach"},
}
"""Settings of `training.optimizer` by the value of `optim`."""
SOURCE: Final = ("transformers 5.23.0 trainer_optimizer.py: adamw_torch_8bit and 4bit are of torchao, "
                 "adamw_bnb_8bit, lion, ademamix and rmsprop_bnb of bitsandbytes")

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


def read_decay(reader: Reader, draft: Draft, name: str, key: str) -> None:
    """Writes the weight decay of an optimizer of `DECAYED`, whose step makes a copy of gradients for it.

    `name`: the optimizer's, as it was written; `key`: of the weight decay.
    """
    if name in DECAYED and reader.look(key) not in (None, 0):
        draft.put("training.optimizer.weight_decay", reader.number(key))


def stops_on_host(draft: Draft, named: Taken[str]) -> bool:
    """Returns True, and fails, if accelerate makes another optimizer of `named` for the host, at which it stops."""
    stops = named.value in ("lion_32bit", "paged_lion_32bit", "adagrad")
    if stops:
        draft.use(named)
        draft.fail(named.where, f"{named.value} with states on the host: accelerate makes DeepSpeed's own of it and "
                   "hands over adamw_mode, an unexpected keyword argument (accelerate 1.15.0 utils/deepspeed.py "
                   "map_pytorch_optim_to_deepspeed)")
    return stops


def read_own(draft: Draft, kind: Taken[str], *keys: Taken[bool] | None, on_host: bool) -> bool:
    """Returns True if DeepSpeed's configuration names Lion or Adagrad, and writes the kernel of Lion.

    `keys`: Adam's alone, which other optimizers stop at. `on_host`: states are there, by classes of their own.
    """
    if kind.value.lower() not in ("lion", "adagrad"):
        return False
    for key in (key for key in keys if key is not None):
        draft.use(key)
        draft.fail(key.where, f"{key.key}: {kind.value} takes no such argument (deepspeed 0.19.6 runtime/engine.py "
                              "_configure_basic_optimizer)")
    if kind.value.lower() == "lion" and not on_host:
        draft.default("training.optimizer.implementation", "fused", "deepspeed 0.19.6", "ops/lion/fused_lion.py")
    return True


def read_clipping(reader: Reader, draft: Draft, key: str) -> None:
    """Lists the norm at which gradients are clipped.

    transformers 5.23.0 `trainer.py` _get_grad_norm: where it is 0 or less they are clipped at infinity, by the same
    kernels. Under ZeRO DeepSpeed does it (0.19.6 `stage_1_and_2.py`, `stage3.py`, unscale_and_clip_grads): the norm is
    taken and gradients are divided by the scale of the loss in any case.
    """
    draft.idle(reader.take(key), CLIP)


def write_optimizer(draft: Draft, zero: Zero | None, named: Taken[str] | None, release: str, source: str) -> None:
    """Writes the optimizer that the trainer hands to ZeRO; with states on the host it is DeepSpeed's Adam for CPUs.

    Unless `zero`, the configuration, says that the trainer's is kept: torch's, fused or a loop. Rule: accelerate 1.15.0
    `accelerator.py` _prepare_deepspeed, `utils/deepspeed.py` map_pytorch_optim_to_deepspeed. `named`: one of
    `OPTIMIZERS`, None where the recipe has none; `release`, `source`: of the default.
    """
    kept = zero is not None and zero.keeps_optimizer
    on_host = holds_states_on_host(draft) and not kept
    if named is None and kept:
        draft.default("training.optimizer", {"name": "adamw", "implementation": "fused"}, release, source)
    elif named is None:
        if not on_host:
            draft.release_default("optim", "adamw_torch_fused", release, source)
    elif on_host:
        if not stops_on_host(draft, named):
            draft.infer("training.optimizer.name", "adamw", "states on the host have DeepSpeed's own Adam, whatever "
                        "the trainer's optimizer is", named, source="accelerate 1.15.0 utils/deepspeed.py")
    elif kept and OPTIMIZERS[named.value]["name"] != "adamw":
        draft.refuse(named, f"{named.value} on the host as it is")
    elif kept:
        said = {**OPTIMIZERS[named.value]}
        loop = {"implementation": "for_loop"} if said.get("implementation") == "foreach" else {}  # on a CPU
        draft.put("training.optimizer", named, said | loop, SOURCE)
    elif named.value == "adamw_torch_fused":
        draft.put("training.optimizer.name", named, "adamw")
    else:
        draft.put("training.optimizer", named, {**OPTIMIZERS[named.value]}, SOURCE)


def holds_states_on_host(draft: Draft) -> bool:
    """True if the optimizer's states are kept in host memory, as DeepSpeed's configuration has been read to say."""
    return "optimizer" in draft.values.get("training", {}).get("offload", {})
