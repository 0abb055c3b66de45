"""Model, batches and lengths of a policy.

[Note: full length]
Sequences are counted at full length, as in the scenarios of NeMo RL that are shipped: `max_total_sequence_length`.
Packs (`sequence_packing`) and microbatches of varying size (`dynamic_batching`) hold up to `train_mb_tokens` tokens,
which are as many sequences of full length as fit.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.modules import family_of
from simcore.recipes.huggingface.named_model import ask_for_model
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows

__all__ = ["family_in", "read_batches", "read_model"]

_NAME: Final = "policy.model_name"
_OVERRIDES: Final = "policy.hf_config_overrides"
_SCALED: Final = f"{_OVERRIDES}.rope_scaling"
_NO_FIELDS: Final = ("router_aux_loss_coef", "rope_theta", "rope_scaling", "rope_parameters", "use_cache")
_INSIDE: Final = ("text_config", "vision_config")
"""Configurations inside that of a model with a vision tower."""
_PRECISIONS: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_KINDS: Final = {"sequence_packing": "packs", "dynamic_batching": "microbatches of varying size"}
_PIN: Final = "models/policy/lm_policy.py"
_UNREAD: Final = "no line of the release reads it"
_OF_MODES: Final = {
    "dynamic_batching.sequence_length_round": "a microbatch is padded to a multiple of it, but not beyond the longest "
    "sequence that there may be (distributed/batched_data_dict.py:805), and each is counted as that",
    "sequence_packing.sequence_length_round": f"{_UNREAD}: packs are padded to make_sequence_length_divisible_by "
    f"({_PIN}:341)",
    "sequence_packing.algorithm": "which sequences share a pack",
    "sequence_packing.microbatch_order": "in which order packs run"}
"""Reasons of settings of packs and of microbatches of varying size."""
_ROWS: Final = (
    Says("policy.precision", "training.precision.compute", "text", _PRECISIONS, what="products in"),
    Off("policy.reward_model_cfg.enabled", "training of a reward model"),
    Off("policy.draft.enabled", "a draft model that is trained beside the policy"),
    Unmodelled(("policy.router_replay.enabled",), "numbers of each token's experts lie on the devices of engine and "
               "policy, 4 bytes for each layer and choice: left out", (False, None)),
    Off("policy.activation_checkpointing_enabled", "checkpointing by a key that nothing reads"),
    Off("policy.fsdp_offload_enabled", "offload under FSDP 1, the worker of releases up to 0.2", "off"),
)


def family_in(draft: Draft) -> str:
    """Family (`model_type`) of the model, "" if it is not known."""
    model = draft.answers.settings.get("model", draft.values.get("model"))
    return family_of(model.get("config", "") if isinstance(model, dict) else model or "")


def read_model(reader: Reader, draft: Draft) -> None:
    """Writes the model, with the fields of its configuration that the recipe changes."""
    name = reader.text(_NAME)
    for key in ("quant_cfg", "quant_calib_data", "disable_modelopt_layer_spec"):
        draft.refuse(reader.take(f"policy.{key}"), "training that is aware of quantisation (ModelOpt)")
    draft.idle(reader.matching("policy.quant_*"), "settings of ModelOpt alone")
    fields = [field for field in reader.names(_OVERRIDES) if field not in (*_NO_FIELDS, *_INSIDE)]
    for key in (f"{_OVERRIDES}.{inside}.{field}" for inside in _INSIDE for field in reader.names(
            f"{_OVERRIDES}.{inside}") if field not in _NO_FIELDS):
        draft.refuse(reader.take(key), "fields of a configuration inside that of the model")
    if (given := draft.answers.settings.get("model")) is not None:
        draft.idle(name, f"--set model={given} says which model it is")
        draft.idle(reader.matching(f"{_OVERRIDES}.*"), "--set model says which model it is")
    elif ask_for_model(draft, name, _NAME):
        draft.idle(reader.matching(f"{_OVERRIDES}.*"), "the model is asked for")
    elif name is not None:
        longest = _stretched(reader)
        draft.put("model.config" if fields or longest else "model", name)
        for field in fields:
            draft.put(f"model.overrides.{field}", reader.take(f"{_OVERRIDES}.{field}"))
        if longest:
            draft.infer("model.overrides.max_position_embeddings", longest, "positions before YaRN times its factor, "
                        "as vLLM's limit and table have them (config/model.py _get_and_verify_max_len)",
                        *(reader.take(f"{_SCALED}.{one}") for one in (
                            "original_max_position_embeddings", "factor", "rope_type", "type")))
    read_rows(reader, draft, (*_ROWS, Idle((f"{_OVERRIDES}.*",), "frequencies, and terms of the loss"),
                              Idle((_OVERRIDES,), "nothing is overridden")))


def _stretched(reader: Reader) -> int | None:
    """Positions that YaRN makes of the model's; None without it, or where a recipe leaves its numbers open."""
    kind = reader.look(f"{_SCALED}.rope_type") or reader.look(f"{_SCALED}.type")
    before, factor = reader.look(f"{_SCALED}.original_max_position_embeddings"), reader.look(f"{_SCALED}.factor")
    is_said = isinstance(before, int) and isinstance(factor, (int, float)) and kind == "yarn"
    return int(before * factor) if is_said else None


def read_batches(reader: Reader, draft: Draft, kind: str) -> None:
    """Writes lengths and batch sizes; under DPO they count pairs."""
    limit, answer = reader.integer("policy.max_total_sequence_length"), draft.answers.seq_len
    if answer is not None:
        draft.answered("training.seq_len", answer)
        draft.idle(limit, f"{answer.where} says how long sequences are")
        draft.idle(reader.take("policy.make_sequence_length_divisible_by"), "sequences have full length")
    elif limit is None:
        draft.ask("training.seq_len", "--seq-len N", "tokens of a sequence (policy.max_total_sequence_length)")
        draft.idle(reader.take("policy.make_sequence_length_divisible_by"), "the length is asked for")
    else:
        _read_length(reader, draft, limit)
    draft.put("training.global_batch_size", reader.integer("policy.train_global_batch_size"))
    _read_size(reader, draft, "train", "training.micro_batch_size")
    if kind in ("grpo", "ppo"):
        _read_size(reader, draft, "logprob", "rl.logprob_batch_size")
    else:
        draft.idle(reader.matching("policy.logprob_batch_size", "policy.*.logprob_mb_tokens"),
                   "there is no pass of log-probabilities with batches of its own")
    fused = reader.flag("policy.sequence_packing.fuse_loss")
    if fused is not None and fused.value and reader.look("policy.megatron_cfg.enabled") is True:
        draft.unmodelled(fused, "log-probabilities of a whole pack at once (algorithms/loss/wrapper.py:151): the loss "
                                "is counted over all tokens of a microbatch in any case")
    else:
        draft.idle(fused, "log-probabilities sequence by sequence, or workers of DTensor, which do not read it")
    _read_modes(reader, draft)


def _read_modes(reader: Reader, draft: Draft) -> None:
    """Lists settings of packs and of microbatches of varying size, and what upstream asserts of both."""
    on = {mode: reader.look(f"policy.{mode}.enabled") is True for mode in _KINDS}
    where = reader.document.where(("policy", "dynamic_batching", "enabled"))
    if all(on.values()):
        draft.fail(where, f"Dynamic Batching is exclusive of Sequence Packing. Please disable Sequence Packing to use "
                          f"Dynamic Batching (NeMo RL 7ea279ab {_PIN}:327)")
    stages = reader.look("policy.megatron_cfg.pipeline_model_parallel_size")
    by_megatron = reader.look("policy.megatron_cfg.enabled") is True
    if on["dynamic_batching"] and by_megatron and isinstance(stages, int) and stages > 1:
        draft.fail(where, "Dynamic batching is only supported for single pipeline parallel stage (NeMo RL 7ea279ab "
                          f"{_PIN}:311)")
    for mode, is_on in on.items():
        draft.idle(reader.matching(f"policy.{mode}.enabled"), "off" if not is_on else "its size says how it is counted")
        rest = [one for one in reader.matching(f"policy.{mode}.*") if is_on or one.value is not None]
        for one in rest:
            why = _OF_MODES.get(f"{mode}.{one.path[-1]}", "how sequences come together")
            draft.idle(one, why if is_on or why.startswith(_UNREAD) else f"read with policy.{mode}.enabled alone")


def _read_length(reader: Reader, draft: Draft, limit: Taken[int]) -> None:
    """Length of sequences: the longest, made divisible."""
    multiple = reader.integer("policy.make_sequence_length_divisible_by")
    if multiple is None or multiple.value < 1 or not limit.value % multiple.value:
        draft.put("training.seq_len", limit)
        draft.idle(multiple, "it divides the longest sequence")
        return
    longest = -(-limit.value // multiple.value) * multiple.value
    draft.infer("training.seq_len", longest, f"the longest sequence, padded to a multiple of {multiple.value}", limit,
                multiple, source="data/llm_message_utils.py batched_message_log_to_flat_message")


def _read_size(reader: Reader, draft: Draft, purpose: str, key: str) -> None:
    """Writes sequences of a microbatch, see [Note: full length]. `purpose`: "train" or "logprob"."""
    name = "train_micro_batch_size" if purpose == "train" else "logprob_batch_size"
    stated = reader.integer(f"policy.{name}")
    mode = next((mode for mode in _KINDS if reader.look(f"policy.{mode}.enabled") is True), "")
    tokens = reader.integer(f"policy.{mode}.{purpose}_mb_tokens") if mode else None
    length = draft.values.get("training", {}).get("seq_len", 0)
    if mode and purpose == "train":
        draft.unmodelled(reader.flag(f"policy.{mode}.enabled"),
                         f"{_KINDS[mode]} are counted as sequences of full length")
    if tokens is None or not length:
        draft.put(key, stated)
        draft.use(tokens, why="a microbatch is as long as a sequence")
    elif tokens.value < length or tokens.value % length:
        draft.refuse(tokens, f"{_KINDS[mode]} of {tokens.value} tokens, no multiple of the {length} of a sequence")
        draft.idle(stated, f"{tokens.key} decides")
    else:
        draft.infer(key, tokens.value // length, f"sequences of full length in {tokens.value} tokens", tokens,
                    source=f"{_PIN} {mode}_args")
        draft.idle(stated, f"{tokens.key} decides")
