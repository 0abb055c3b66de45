"""GaLore and APOLLO by LLaMA-Factory's own switches (ff6d4d12 `train/trainer_utils.py`, `hparams/parser.py`).

`galore_target: all` takes every linear layer but the head (`model/model_utils/misc.py`, find_all_linear_modules); other
names take all linear layers whose names hold one of them.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.huggingface.low_rank.trainer import INTERVAL, LAYERWISE, write_settings
from simcore.recipes.huggingface.modules import family_of, linears_of
from simcore.recipes.huggingface.optimizers import read_clipping
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.reader import Reader, Taken

__all__ = ["read_low_rank_switch"]

_RELEASE: Final = "LLaMA-Factory ff6d4d12"
_CREATE: Final = f"{_RELEASE} train/trainer_utils.py"
_EIGHT: Final = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit")
_NAMES: Final = ("galore", "apollo")


def read_low_rank_switch(reader: Reader, draft: Draft, launch: Launch, method: str) -> bool:
    """Writes GaLore or APOLLO, and returns True, if the recipe switches one of them on, with the Trainer's `optim`."""
    switches = {name: reader.flag(f"use_{name}") for name in _NAMES}
    on = [name for name, said in switches.items() if said is not None and said.value]
    for name, said in switches.items():
        if name not in on:
            draft.idle(said, "the default")
            draft.idle(reader.matching(f"{name}_*"), "of an optimizer that is not asked for")
    if not on:
        return False
    name, said = on[0], switches[on[0]]
    draft.put("training.optimizer.name", said, name, f"{_CREATE} _create_{name}_optimizer")
    where = said.where if said else draft.path
    if len(on) > 1:
        draft.use(switches[on[1]], why="beside another optimizer")
        draft.idle(reader.matching(f"{on[1]}_*"), "beside another optimizer")
        draft.fail(where, "Cannot use GaLore, APOLLO or BAdam together.")
    if method != "full":
        draft.fail(where, "Cannot use LoRA with GaLore, APOLLO or BAdam together.")
    if launch.shards is Shards.ZERO:
        draft.fail(where, "GaLore and APOLLO are incompatible with DeepSpeed yet.")
    _read_base(reader, draft, name, where)
    _read_settings(reader, draft, name)
    read_clipping(reader, draft, "max_grad_norm")
    draft.idle(reader.matching("optim_target_modules", "optim_args"), "LLaMA-Factory makes the optimizer itself")
    return True


def _read_base(reader: Reader, draft: Draft, name: str, where: str) -> None:
    """The Trainer's `optim`, which chooses the form of the moments."""
    named = reader.text("optim")
    if named is not None and (named.value in _EIGHT or named.value == "adafactor") and name == "galore":
        draft.refuse(named, f"{name} with the moments of {named.value}")
    elif named is not None and named.value == "adamw_torch":
        draft.use(named, why="moments as the gradient is stored")
    else:
        draft.use(named, why="not one of its optimizers")
        given = named.value if named else "adamw_torch_fused, the Trainer's default with torch 2.8 or later"
        draft.fail(named.where if named else where, f"Unknown optim: {given} ({_CREATE} _create_{name}_optimizer: "
                                                    "adamw_torch)")


def _read_settings(reader: Reader, draft: Draft, name: str) -> None:
    rank = reader.integer(f"{name}_rank")
    if rank is None:
        draft.default("training.optimizer.low_rank.rank", 16, _RELEASE, f"hparams/finetuning_args.py {name}_rank")
    else:
        draft.put("training.optimizer.low_rank.rank", rank)
    _read_targets(reader, draft, name)
    for key in ("proj_type", *(("proj", "scale_type") if name == "apollo" else ())):
        said = reader.text(f"{name}_{key}")
        if said is not None:
            write_settings(draft, {key: said.value}, said)
    draft.idle(reader.take(f"{name}_update_interval"), INTERVAL)
    draft.idle(reader.take(f"{name}_scale"), "a number of the update")
    front = reader.flag("apollo_scale_front") if name == "apollo" else None
    draft.idle(front, "apollo-torch 1.0.3 reads it beside its groups of parameters, and LLaMA-Factory says it in them")
    by_layer = reader.flag(f"{name}_layerwise")
    if by_layer is not None and by_layer.value:
        draft.put(LAYERWISE, by_layer, value=True, source=f"{_CREATE} _create_{name}_optimizer")
    else:
        draft.idle(by_layer, "the default")


def _read_targets(reader: Reader, draft: Draft, name: str) -> None:
    """Names that linear layers hold, separated by commas, or all of the language model's."""
    said: Taken[Any] | None = reader.words(f"{name}_target")
    words = [one.strip() for word in (said.value if said else ["all"]) for one in word.split(",")]
    key, family = "training.optimizer.low_rank.target_modules", family_of(
        draft.answers.settings.get("model") or draft.values.get("model"))
    if words != ["all"]:
        draft.put(key, said, words)
    elif family and linears_of(family):
        draft.infer(key, list(linears_of(family)), "every linear layer but the head", said,
                    source=f"{_RELEASE} model/model_utils/misc.py find_all_linear_modules")
    elif family:
        draft.use(said, why="all linear layers")
        draft.fail(draft.path, f"not yet: {name}_target: all linear layers of the family {family}")
    else:  # the model is unknown, which is told in any case
        draft.use(said, why="layers of a model that is not known")
