"""Sharding of verl's actor: block `actor_rollout_ref.actor.fsdp_config`, by FSDP 1 or FSDP 2.

Code: verl b178a3cd `workers/fsdp_workers.py` _build_model_optimizer, `utils/fsdp_utils.py`. FSDP 2 makes units of
layers, and of the embedding where the head is not tied to it; it reads neither `use_orig_params` nor
`forward_prefetch`, and of `wrap_policy` the names of classes alone.
"""

from __future__ import annotations

from typing import Final

from simcore.errors import InputError
from simcore.models.graph import model_config
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Row, Says, read_rows
from simcore.recipes.verl.formats import FORMATS

__all__ = ["ACTOR", "is_hosted", "is_second", "is_tied", "read_mixed", "read_sharding"]

ACTOR: Final = "actor_rollout_ref.actor"
_FSDP: Final = f"{ACTOR}.fsdp_config"
_RELEASE: Final = "verl b178a3cd"
_YAML: Final = "trainer/config/_generated_ppo_trainer.yaml"
_WORKERS: Final = "workers/fsdp_workers.py _build_model_optimizer"
_PARTS: Final = ("params", "gradients", "optimizer")
_AWAY: Final[tuple[Row, ...]] = tuple(Says(f"{_FSDP}.{name}", f"rl.{name}", "flag")
                                      for name in ("param_offload", "optimizer_offload"))
_FIRST: Final[tuple[Row, ...]] = (
    *_AWAY, *(Says(f"{_FSDP}.{name}", f"framework_options.{name}", "flag") for name in (
        "forward_prefetch", "use_orig_params")), Idle((f"{_FSDP}.offload_policy",), "read under FSDP2 alone"))
_SECOND: Final[tuple[Row, ...]] = (
    Idle((f"{_FSDP}.forward_prefetch", f"{_FSDP}.use_orig_params"), "FSDP 1 alone reads it"),)
_HOSTED: Final[tuple[Row, ...]] = (
    Idle((f"{_FSDP}.param_offload", f"{_FSDP}.optimizer_offload"), "offload_policy turns it off"),)


def is_second(reader: Reader) -> bool:
    """True for an actor of FSDP 2."""
    return bool(reader.look(f"{ACTOR}.strategy") == "fsdp2")


def is_hosted(reader: Reader) -> bool:
    """True for an actor that FSDP 2 keeps on the host (`offload_policy`)."""
    return is_second(reader) and bool(reader.look(f"{_FSDP}.offload_policy"))


def is_tied(draft: Draft, key: str = "") -> bool:
    """True for a model whose head is its embedding, and for one that is not known. `key`: of a critic's model."""
    own = draft.values.get("rl", {}).get("critic", {}).get("model") if key else None
    model = draft.answers.settings.get(key or "model") or own or draft.answers.settings.get(
        "model", draft.values.get("model"))
    try:
        return bool(model_config(str(model), None, "").get("tie_word_embeddings", False))
    except InputError:
        return True


def read_sharding(reader: Reader, draft: Draft) -> None:
    """Writes the framework with its units, and what it keeps on the host."""
    strategy, second = reader.text(f"{ACTOR}.strategy"), is_second(reader)
    if strategy is not None and strategy.value not in ("fsdp", "fsdp2"):
        draft.refuse(strategy, f"verl's workers over {strategy.value} (served: fsdp, fsdp2)", always=True)
    if second:
        draft.put("framework", strategy, "fsdp2")
    else:
        draft.idle(strategy, "the default")
        draft.default("framework", "fsdp1", _RELEASE, f"{_YAML}: actor.strategy fsdp")
    (_read_second if second else _read_first)(reader, draft)
    _read_units(reader, draft, second=second)


def _read_first(reader: Reader, draft: Draft) -> None:
    resharded = reader.flag(f"{_FSDP}.reshard_after_forward")
    if resharded is not None and not resharded.value:
        draft.put("framework_options.sharding_strategy", resharded, "SHARD_GRAD_OP")
    else:
        draft.idle(resharded, "the default")
    read_rows(reader, draft, _FIRST)


def _read_second(reader: Reader, draft: Draft) -> None:
    resharded, policy = reader.flag(f"{_FSDP}.reshard_after_forward"), reader.flag(f"{_FSDP}.offload_policy")
    if resharded is not None:
        draft.put("framework_options.reshard_after_forward", resharded)
    else:
        draft.default("framework_options.reshard_after_forward", value=True, release=_RELEASE, source=_YAML)
    if not is_tied(draft):
        draft.default("framework_options.wrap", "separate_embedding", _RELEASE,
                      "utils/fsdp_utils.py apply_fsdp2: of a head that is not tied")
    if draft.values["training"].get("recompute") == "full":
        draft.default("framework_options.recompute_by", "transformers", _RELEASE, _WORKERS)
    if policy is not None and policy.value:
        draft.infer("training.offload", dict.fromkeys(_PARTS, "host"), "CPUOffloadPolicy of the actor", policy,
                    source=f"{_RELEASE} {_WORKERS}")
    else:
        draft.idle(policy, "the default")
    read_rows(reader, draft, _SECOND)
    read_rows(reader, draft, _HOSTED if is_hosted(reader) else _AWAY)


def _read_units(reader: Reader, draft: Draft, *, second: bool) -> None:
    units = f"{_FSDP}.wrap_policy"
    few, whole = reader.integer(f"{units}.min_num_params"), reader.flag(f"{units}.disable")
    for one, what in ((few, "units by their size"), (whole, "the whole model as one unit")):
        if one is not None and one.value and not second:
            draft.refuse(one, what)
        else:
            draft.idle(one, "FSDP 2 makes units by names of classes alone (utils/fsdp_utils.py apply_fsdp2)"
                       if one is not None and one.value else "layers are units")
    named = reader.words(f"{units}.transformer_layer_cls_to_wrap")
    if named is not None and named.value:
        draft.refuse(named, "units by the names of their classes, in place of the model's own")
    else:
        draft.idle(named, "the model's own: its layers")


def read_mixed(reader: Reader, draft: Draft, block: str, key: str) -> None:
    """Writes to `key` the format of reductions that `mixed_precision` of the FSDP settings `block` says.

    Left out, as `_build_model_optimizer` has it: parameters are gathered in bf16, gradients reduced in fp32. Buffers
    keep fp32, which FSDP 2 never casts.
    """
    params, reduce, buffers = (reader.text(f"{block}.mixed_precision.{name}")
                               for name in ("param_dtype", "reduce_dtype", "buffer_dtype"))
    formats = [FORMATS.get(one.value) if one else None for one in (params, reduce, buffers)]
    if params is not None and formats[0] != "bf16":
        draft.refuse(params, f"parameters that are gathered in {params.value}")
    else:
        draft.idle(params, "as it is simulated")
    if reduce is not None and (formats[1] not in ("fp32", "bf16") or (not key and formats[1] != "fp32")):
        draft.refuse(reduce, f"gradients that are reduced in {reduce.value}")
    elif key and reduce is not None:
        draft.put(key, reduce, formats[1])
    else:
        draft.idle(reduce, "the default")
        if key:
            draft.default(key, "fp32", _RELEASE, _WORKERS)
    if buffers is not None and formats[2] != "fp32" and not is_second(reader):
        draft.refuse(buffers, f"buffers in {buffers.value}")
    else:
        draft.idle(buffers, "buffers are small, and FSDP 2 does not cast them")
