"""Options of FSDP as accelerate's plugin takes them, in versions 1 and 2.

[Note: who says FULL_SHARD] Under version 1 the plugin sets `sharding_strategy` to FULL_SHARD where no file does, and
the model is wrapped with it; `reshard_after_forward`, which stands for it in newer files, is asked only without it and
so never (accelerate 1.15.0 `utils/dataclasses.py` __post_init__, `accelerator.py` prepare_model).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from simcore.models.vision.towers import tower_of
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, read_rows
from simcore.recipes.world import share_out

__all__ = ["Plugin", "read_plugin", "share_ranks", "wrap_adapters"]

_PREFIXES: Final = ("", "fsdp_")
"""Options stand with or without a prefix, which both the launcher and transformers take away or add."""
_LAST: Final = "accelerator.py no_sync, in which transformers' Trainer runs all microbatches but the last"
_WHOLE: Final = "under version 1 sharding_strategy decides, FULL_SHARD where no file says it"
_STRATEGIES: Final = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
_NUMBERED: Final = {1: "FULL_SHARD", 2: "SHARD_GRAD_OP", 3: "NO_SHARD", 4: "HYBRID_SHARD", 5: "HYBRID_SHARD_ZERO2"}
_OF_TAILS: Final = ("accelerate", "trl")
"""Formats that are read as of accelerate 1.15.0; axolotl puts a function of its own in the place of accelerate's."""
_CLASSES: Final = ("transformer_layer_cls_to_wrap", "transformer_cls_names_to_wrap")
_IS_PART: Final = re.compile(r"(Moe|MoE|Moe?Block|MLP|Mlp|Attention|Experts)\b")
_OF_TOWER: Final = re.compile(r"Vision|Siglip|Pixtral|CLIP")
_FILES: Final = ("state_dict_type", "final_state_dict_type", "cpu_ram_efficient_loading", "sync_module_states",
                 "transformer_layer_cls_to_wrap", "cpu_offload_pin_memory", "min_num_params",
                 "transformer_cls_names_to_wrap", "version", "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt")


@dataclass(frozen=True, slots=True)
class Plugin:
    """Block of options, and what its reader takes where an option is not said.

    `at`: dotted key of the block, with a full stop behind it; `wrap`: the policy by which units are made;
    `use_orig_params`: of version 1; `release`, `source`: where these defaults are from.
    `drops`: options that the program which reads the block does not pass on, and `dropped_in` its file.
    """

    at: str
    wrap: str
    use_orig_params: bool
    release: str
    source: str
    drops: tuple[str, ...] = ()
    dropped_in: str = ""


def read_plugin(reader: Reader, draft: Draft, plugin: Plugin, *, second: bool) -> list[Taken[bool]]:
    """Writes `framework_options` and offload of FSDP, and returns what asks it to checkpoint layers.

    `second`: version 2. The version itself, and the ranks, are the caller's.
    """
    draft.idle(reader.matching(*(f"{plugin.at}{prefix}{name}" for prefix in _PREFIXES for name in plugin.drops)),
               f"is dropped by the program that reads the block ({plugin.dropped_in})")
    _read_wrap(reader, draft, plugin, second=second)
    _read_offload(reader, draft, plugin)
    if second:
        _read_second(reader, draft, plugin)
    else:
        _read_first(reader, draft, plugin)
    draft.default("framework_options.sync_gradients", "last", "accelerate 1.15.0", _LAST)
    checkpoints = _flags(reader, plugin, "activation_checkpointing")
    draft.refuse(_either(reader, plugin, "ignored_modules"), "modules that FSDP leaves alone")
    read_rows(reader, draft, [
        *(Off(f"{plugin.at}{prefix}activation_checkpointing_offload", "inputs of layers that wait on the host")
          for prefix in _PREFIXES),
        Idle(tuple(f"{plugin.at}{prefix}{name}" for prefix in _PREFIXES for name in _FILES),
             "files, start of the run, or as it is simulated: each layer is a unit")])
    return checkpoints


def wrap_adapters(draft: Draft) -> None:
    """Writes that adapters under FSDP 1 are units of their own, as the Trainer has them by PEFT's policy."""
    draft.infer("framework_options.wrap", "layers_adapters", "PEFT's policy wraps each matrix that trains",
                source="transformers 5.23.0 distributed/fsdp.py update_fsdp_plugin_peft")


def share_ranks(reader: Reader, draft: Draft, copies: str = "", shards: str = "",
                shared: Taken[int] | None = None) -> None:
    """Writes ranks that shard, and copies of them; `copies`, `shards`: keys that may say how many of each.

    `shared`: ranks that share a sequence, over which FSDP cuts too; None for one.
    """
    replicate, shard = (reader.integer(key) if key else None for key in (copies, shards))
    draft.put("mesh.dp_replicate", replicate)
    if draft.answers.gpus is None:
        draft.use(shard, why="must be the GPUs over copies of the shards")
        draft.ask("mesh.dp_shard", "--gpus N", "number of GPUs")
        return
    found = share_out(draft, draft.answers.gpus, {copies: replicate} | ({shared.key: shared} if shared
                      else {}), "mesh.dp_shard", "GPUs over copies of the shards",
                      "accelerate's FSDP shards over all ranks of a replica")
    draft.use(shard, why="must be the GPUs over copies of the shards")
    if shard is not None and found is not None and shard.value not in (found, -1) and not (
            draft.refused or draft.barred):
        draft.fail(shard.where, f"{shards} {shard.value} x copies of them are not the {draft.answers.gpus.value} GPUs "
                                f"of {draft.answers.gpus.where}")


def _read_wrap(reader: Reader, draft: Draft, plugin: Plugin, *, second: bool) -> None:
    wrap = _either(reader, plugin, "auto_wrap_policy")
    policy = plugin.wrap if wrap is None else str(wrap.value).upper()
    if policy == "TRANSFORMER_BASED_WRAP":
        draft.idle(wrap, "each layer is a unit")
        for name in _CLASSES:
            named = _either(reader, plugin, name)
            if named is not None and _IS_PART.search(str(named.value)):
                draft.refuse(named, f"units that are parts of a layer ({named.value})")
            elif named is not None and second and _leaves_tower(draft, named):
                draft.infer("framework_options.wrap_tower", "root", "the decoder's layers alone are named", named,
                            source="accelerate 1.15.0 utils/fsdp_utils.py fsdp2_prepare_auto_wrap_policy")
            else:
                draft.idle(named, "the layers, of which each is a unit")
    elif policy == "NO_WRAP" and not second:
        if wrap is not None:
            draft.put("framework_options.wrap", wrap, "root", plugin.source)
        else:
            draft.default("framework_options.wrap", "root", plugin.release, plugin.source)
    elif wrap is not None:
        draft.refuse(wrap, f"units by {policy}")
    else:
        draft.fail(reader.document.path, "not yet: FSDP 2 without auto_wrap_policy, where all of the "
                                         f"model is one unit ({plugin.release})")


def _leaves_tower(draft: Draft, named: Taken[Any]) -> bool:
    """True if the model has a vision tower, and no class that is named is one of its layers."""
    return bool(tower_of(draft.named_model)) and not _OF_TOWER.search(str(named.value))


def _read_offload(reader: Reader, draft: Draft, plugin: Plugin) -> None:
    asked = [*_flags(reader, plugin, "offload_params"), *_flags(reader, plugin, "cpu_offload")]
    for one in asked:
        if not one.value:
            draft.idle(one, "the default")
            continue
        for part in ("params", "gradients", "optimizer"):
            draft.infer(f"training.offload.{part}", "host", f"{one.key} moves all three", one)


def _read_second(reader: Reader, draft: Draft, plugin: Plugin) -> None:
    for name in ("backward_prefetch", "use_orig_params", "sharding_strategy"):
        draft.idle(_either(reader, plugin, name), "a key of FSDP 1")
    for one in (*_flags(reader, plugin, "forward_prefetch"), *_flags(reader, plugin, "limit_all_gathers")):
        draft.idle(one, "a key of FSDP 1")
    _write_tail(draft)
    said = _flags(reader, plugin, "reshard_after_forward")
    for one in said:
        draft.put("framework_options.reshard_after_forward", one)
    if not said:
        draft.default("framework_options.reshard_after_forward", value=True, release=plugin.release,
                      source=plugin.source)


def _write_tail(draft: Draft) -> None:
    """Writes the units of embedding and head, which accelerate makes from 1.15.0 on; older programs do not."""
    if draft.format in _OF_TAILS:
        draft.default("framework_options.wrap", "embedding_tail", "accelerate 1.15.0",
                      "utils/fsdp_utils.py fsdp2_prepare_model")


def _read_first(reader: Reader, draft: Draft, plugin: Plugin) -> None:
    draft.idle(_either(reader, plugin, "reshard_after_forward"), _WHOLE)
    sharding = _either(reader, plugin, "sharding_strategy")
    if sharding is not None:
        name = _NUMBERED.get(sharding.value, str(sharding.value).upper())
        if name == _STRATEGIES[0]:
            draft.idle(sharding, "the default")
        elif name in _STRATEGIES:
            draft.put("framework_options.sharding_strategy", sharding, name)
        else:
            draft.refuse(sharding, f"the strategy {name}, whose copies are machines")
    backward = _either(reader, plugin, "backward_prefetch")
    if backward is not None:
        draft.put("framework_options.backward_prefetch", backward, str(backward.value).upper())
    else:
        draft.default("framework_options.backward_prefetch", "NO_PREFETCH", plugin.release, plugin.source)
    for one in _flags(reader, plugin, "limit_all_gathers"):
        if one.value:
            draft.idle(one, "the default")
        else:
            draft.refuse(one, "gathers that nothing limits, as far ahead as the host is")
    for one in _flags(reader, plugin, "forward_prefetch"):
        draft.put("framework_options.forward_prefetch", one)
    said = _flags(reader, plugin, "use_orig_params")
    for one in said:
        draft.put("framework_options.use_orig_params", one)
    if not said:
        draft.default("framework_options.use_orig_params", plugin.use_orig_params, plugin.release, plugin.source)


def _either(reader: Reader, plugin: Plugin, name: str) -> Taken[Any] | None:
    found = (reader.take(f"{plugin.at}{prefix}{name}") for prefix in _prefixes(plugin, name))
    return next((one for one in found if one is not None), None)


def _flags(reader: Reader, plugin: Plugin, name: str) -> list[Taken[bool]]:
    """The switch, with or without the prefix; empty if it is not said."""
    found = (reader.flag(f"{plugin.at}{prefix}{name}") for prefix in _prefixes(plugin, name))
    return [one for one in found if one is not None]


def _prefixes(plugin: Plugin, name: str) -> tuple[str, ...]:
    """Prefixes with which an option may stand; none for one that is dropped."""
    return () if name in plugin.drops else _PREFIXES
