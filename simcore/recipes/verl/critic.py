"""The critic of verl's PPO over FSDP: block `critic`, a model of values beside the actor on the same ranks.

Defaults are those of verl b178a3cd `trainer/config/_generated_ppo_trainer.yaml`; code: `workers/fsdp_workers.py:1176`.

[Note: what is the actor's] The critic is wrapped as the actor is, but for `reshard_after_forward`, which its FSDP 1
never reads (fsdp_workers.py:1414), and attention, which is flash-attention 2 whatever `override_config` says
(`utils/model.py:629`). Rows of full length are the same with and without padding.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import Problem
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.named_model import ask_for_model
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Row, Says, Unmodelled, read_rows
from simcore.recipes.verl.actor import ACTOR, MODEL, RELEASE, read_recompute, read_stored
from simcore.recipes.verl.batches import read_size, sizes, split_of
from simcore.recipes.verl.megatron_critic import read_megatron_critic
from simcore.recipes.verl.sharding import is_hosted, is_second, is_tied, read_mixed

__all__ = ["has_critic", "read_critic"]

_CRITIC: Final = "critic"
_MODEL: Final = "critic.model"
_FSDP: Final = "critic.model.fsdp_config"
_DEFAULT_MODEL: Final = "deepseek-ai/deepseek-llm-7b-chat"
_TOKENS: Final = 32768
"""Tokens of a microbatch of varying size, unless the recipe says so."""
_AS_ACTORS: Final = (("use_orig_params", False), ("forward_prefetch", False), ("fsdp_size", -1))
_AS_SECOND: Final = (("offload_policy", False), ("reshard_after_forward", True), ("fsdp_size", -1))
"""Settings of FSDP that must be the actor's, with their defaults."""
_ROWS: Final = (
    Idle((f"{_FSDP}.grad_offload",), "a key of releases up to 0.2: gradients are freed behind each step"),
    Says(f"{_FSDP}.wrap_policy.min_num_params", "", idle={0: "layers are units"}, words={None: None},
         what="units by their size:"),
    Off(f"{_FSDP}.wrap_policy.disable", "the whole model as one unit"),
    Idle((f"{_FSDP}.dtype", f"{_FSDP}.seed", f"{_FSDP}.full_determinism", f"{_FSDP}.use_torch_compile",
          f"{_FSDP}.ulysses_sequence_parallel_size", f"{_FSDP}.entropy_*", f"{_FSDP}.strategy",
          f"{_FSDP}.forward_only"), "of verl's newer workers, or values"),
    Says("critic.optim.optimizer_impl", "", "text", idle={"torch.optim": "the default"}, words={None: None},
         what="an optimizer of"),
    Unmodelled(("critic.optim.override_optimizer_config", "critic.optim.override_optimizer_config.*"),
               "arguments of the optimizer are those of torch's defaults", (None,)),
    Idle(("critic.optim.*",), "values, not tensors"),
    Says(f"{_MODEL}.lora_rank", "", idle={0: "no adapters"}, words={None: None}, what="adapters of rank"),
    Idle((f"{_MODEL}.lora_alpha", f"{_MODEL}.target_modules"), "of adapters, which the rank decides"),
    Idle((f"{_MODEL}.use_remove_padding",), "rows are of full length"),
    Off(f"{_MODEL}.enable_activation_offload", "activations on the host"),
    Off(f"{_MODEL}.tiled_mlp.enabled", "an MLP in tiles"),
    Off(f"{_MODEL}.freeze_vision_tower", "a tower beside text"),
    Idle((f"{_MODEL}.tiled_mlp.num_shards",), "read with tiled_mlp.enabled alone"),
    Idle((f"{_MODEL}.override_config.attn_implementation",), "flash_attention_2 whatever it says (utils/model.py:629)"),
    Unmodelled((f"{_MODEL}.external_lib",), "code that is imported before the model is made", (None,)),
    Idle((f"{_MODEL}.use_shm", f"{_MODEL}.tokenizer_path", f"{_MODEL}.trust_remote_code", f"{_MODEL}._target_"),
         "from where files are read"),
    Idle(("critic.rollout_n",), "answers of a prompt, which rollout.n says"),
    Idle(("critic.shuffle", "critic.data_loader_seed"), "the order of sequences"),
    Idle(("critic.cliprange_value", "critic.loss_agg_mode", "critic.grad_clip"), "numbers of a token's loss"),
    Idle(("critic.checkpoint.*", "critic.profiler.*", "critic.nccl_timeout", "critic._target_"),
         "the run around the steps"),
)
_AWAY: Final[tuple[Row, ...]] = tuple(Says(f"{_FSDP}.{name}", f"rl.critic.{name}", "flag")
                     for name in ("param_offload", "optimizer_offload"))
_HOSTED: Final[tuple[Row, ...]] = (
    Idle((f"{_FSDP}.param_offload", f"{_FSDP}.optimizer_offload"), "offload_policy turns it off"),)
_OF_FIRST: Final[tuple[Row, ...]] = (
    Idle((f"{_FSDP}.use_orig_params", f"{_FSDP}.forward_prefetch"), "FSDP 1 alone reads it"),)
_OF_SECOND: Final[tuple[Row, ...]] = (
    Idle((f"{_FSDP}.offload_policy", f"{_FSDP}.reshard_after_forward"), "read under FSDP2 alone"),)
_WITHOUT: Final = (Idle(("critic.*",), "no critic: the estimator of advantages has none"),)


def has_critic(reader: Reader) -> bool:
    """True if the trainer has a critic (verl b178a3cd `trainer/ppo/utils.py` need_critic)."""
    asked = reader.look("critic.enable")
    return asked if isinstance(asked, bool) else reader.look("algorithm.adv_estimator") in (None, "gae")


def read_critic(reader: Reader, draft: Draft, gpus: int, *, by_megatron: bool) -> None:
    """Writes the critic, behind the actor and its batches; nothing without a critic.

    `gpus`: ranks that train with data of their own; `by_megatron`: the workers are those of Megatron.
    """
    enabled, estimator = reader.flag("critic.enable"), reader.look("algorithm.adv_estimator")
    if not has_critic(reader):
        if enabled is not None and estimator in (None, "gae"):
            draft.use(enabled)
            draft.fail(enabled.where, "critic.enable false: gae takes its advantages from a critic's values "
                       f"({RELEASE} trainer/ppo/core_algos.py compute_gae_advantage_return)")
        else:
            draft.idle(enabled, "as the estimator of advantages asks")
        read_rows(reader, draft, _WITHOUT)
        return
    draft.use(enabled, why="there is a critic")
    if by_megatron:
        read_megatron_critic(reader, draft, gpus)
        return
    _read_model(reader, draft)
    _read_as_actors(reader, draft)
    _read_sizes(reader, draft, gpus)
    read_rows(reader, draft, _ROWS)


def _read_model(reader: Reader, draft: Draft) -> None:
    path, actors = reader.text(f"{_MODEL}.path"), reader.look(f"{MODEL}.path")
    if path is None:
        draft.default("rl.critic.model", _DEFAULT_MODEL, RELEASE, "trainer/config/_generated_ppo_trainer.yaml")
    elif path.value == actors:
        draft.idle(path, "the actor's")
    elif not ask_for_model(draft, path, f"{_MODEL}.path", "rl.critic.model"):
        draft.put("rl.critic.model", path)
    read_stored(reader, draft, _FSDP, "rl.critic.params")
    read_mixed(reader, draft, _FSDP, "")
    read_recompute(reader, draft, _MODEL, "rl.critic.recompute")
    names = reader.names(f"{_MODEL}.override_config")
    for name in (name for name in names if name != "attn_implementation"):
        draft.refuse(reader.take(f"{_MODEL}.override_config.{name}"), "a field of the model's configuration")
    draft.idle(reader.take(f"{_MODEL}.override_config") if not names else None, "nothing is overridden")
    classes = reader.words(f"{_FSDP}.wrap_policy.transformer_layer_cls_to_wrap")
    if classes is not None and classes.value:
        draft.refuse(classes, "units by the names of their classes, in place of the model's own")
    else:
        draft.idle(classes, "the model's own: its layers")


def _read_as_actors(reader: Reader, draft: Draft) -> None:
    """Refuses an optimizer or settings of FSDP other than the actor's, which the scenario has once."""
    second = is_second(reader)
    strategy = reader.text("critic.strategy")
    _as_actors(draft, strategy, strategy.value if strategy else "fsdp", "fsdp2" if second else "fsdp",
               "critic.strategy")
    read_rows(reader, draft, _HOSTED if is_hosted(reader) else _AWAY)
    for name, default in _AS_SECOND if second else _AS_ACTORS:
        taken, actors = reader.take(f"{_FSDP}.{name}"), reader.look(f"{ACTOR}.fsdp_config.{name}")
        _as_actors(draft, taken, default if taken is None else taken.value, default if actors is None else actors,
                   f"{_FSDP}.{name}")
    split = reader.integer("critic.ulysses_sequence_parallel_size")
    _as_actors(draft, split, split.value if split else 1, split_of(reader), "critic.ulysses_sequence_parallel_size")
    optimizer, actors = reader.text("critic.optim.optimizer"), reader.look(f"{ACTOR}.optim.optimizer")
    _as_actors(draft, optimizer, optimizer.value if optimizer else "AdamW", actors or "AdamW", "critic.optim.optimizer")
    read_rows(reader, draft, _OF_FIRST if second else _OF_SECOND)
    if second and is_tied(draft, "rl.critic.model") != is_tied(draft):
        draft.refused.append(Problem(draft.path, "not yet: critic.model.path: a critic whose embedding is a unit "
                                                 "beside an actor whose is none, or the reverse"))
    options = draft.values["framework_options"]
    for name, own in (("attn_implementation", "flash_attention_2"), ("sharding_strategy", "FULL_SHARD")):
        _as_actors(draft, None, own, options.get(name, own), f"critic.model: {name}")


def _as_actors(draft: Draft, taken: Taken[Any] | None, own: Any, actors: Any, key: str) -> None:
    if own == actors:
        draft.idle(taken, "as the actor's")
    elif taken is not None:
        draft.refuse(taken, f"a critic with another value than the actor's {actors}")
    else:
        draft.refused.append(Problem(draft.path, f"not yet: {key}: a critic with {own} beside an actor with {actors}"))


def _read_sizes(reader: Reader, draft: Draft, gpus: int) -> None:
    """Writes batch sizes; those of passes that make values are those of training unless they are said."""
    training, rl = draft.values["training"], draft.values["rl"]
    length, each = training["seq_len"], rl["generations"]
    mini, whole = reader.integer("critic.ppo_mini_batch_size"), rl["prompts"] * each
    batch = training["global_batch_size"] if mini is None else mini.value * each
    if mini is not None:
        draft.infer("rl.critic.global_batch_size", batch, "ppo_mini_batch_size prompts with all their answers", mini,
                    source=f"{RELEASE} workers/fsdp_workers.py:1232")
    dynamic = reader.flag("critic.use_dynamic_bsz")
    draft.use(dynamic, why="how the critic's microbatches are cut")
    varies = bool(reader.look(f"{ACTOR}.use_dynamic_bsz") if dynamic is None else dynamic.value)
    most, passed = (reader.integer(f"critic.{name}_max_token_len_per_gpu") for name in ("ppo", "forward"))
    tokens = (most.value if most else _TOKENS) * split_of(reader)
    stated = sizes(reader, _CRITIC, "ppo_micro_batch_size")
    read_size(draft, "rl.critic.micro_batch_size", stated, most, batch // gpus, (varies, length, gpus, tokens))
    own = sizes(reader, _CRITIC, "forward_micro_batch_size")
    read_size(draft, "rl.critic.values_batch_size", own or (stated[:1] if not varies else []), passed or most,
              whole // gpus, (varies, length, gpus, passed.value * split_of(reader) if passed else tokens))
    draft.idle([one for one in (most, passed) if one and not varies], "read with use_dynamic_bsz alone")
    read_rows(reader, draft, (Says("critic.ppo_epochs", "", idle={1: "one pass over a step's sequences"},
                                   words={None: None}, what="passes over a step's sequences:"),))
