"""The critic of verl's PPO over Megatron: block `critic`, laid out as the actor in the actor's processes.

Defaults are those of verl b178a3cd `trainer/config/_generated_ppo_megatron_trainer.yaml`; code: `workers/
megatron_workers.py:987` CriticWorker, `workers/critic/megatron_critic.py`. Model parallelism is set up once, by the
actor, so that the critic's own degrees are not read. Settings of Megatron-Core and of the optimizer are those of the
actor in a scenario: another value is refused by its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.errors import Problem
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.named_model import ask_for_model
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, On, Says, Unmodelled, read_rows
from simcore.recipes.verl.actor import ACTOR, MODEL, RELEASE
from simcore.recipes.verl.batches import read_size, sizes

__all__ = ["read_megatron_critic"]

_CRITIC: Final = "critic"
_MODEL: Final = "critic.model"
_AT: Final = "critic.megatron"
_CORE: Final = "override_transformer_config"
_DEFAULT_MODEL: Final = "deepseek-ai/deepseek-llm-7b-chat"
_TOKENS: Final = 32768
"""Tokens of a microbatch of varying size, unless the recipe says so."""
_DEFAULTS: Final = {"attention_backend": "flash", "use_distributed_optimizer": True, "dtype": "bfloat16",
                    "optimizer": "adam"}
_ALIKE: Final = ((f"{_AT}.{_CORE}", f"{ACTOR}.megatron.{_CORE}"),
                 (f"{_AT}.override_ddp_config", f"{ACTOR}.megatron.override_ddp_config"),
                 ("critic.optim.override_optimizer_config", f"{ACTOR}.optim.override_optimizer_config"),
                 (f"{_MODEL}.override_config", f"{MODEL}.override_config"))
"""Blocks of the critic, and of the actor, whose keys must have the same values."""
_OWN: Final = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
_ROWS: Final = (
    Says("critic.strategy", "", "text", idle={"megatron": "these workers"}, words={None: None}, what="a critic over"),
    Says(f"{_AT}.param_offload", "rl.critic.param_offload", "flag"),
    Says(f"{_AT}.optimizer_offload", "rl.critic.optimizer_offload", "flag"),
    Idle((f"{_AT}.grad_offload",), "gradients are freed with parameters (utils/megatron_utils.py:371)"),
    Idle((f"{_AT}.*_parallel_size",), "laid out as the actor: initialize_model_parallel runs once (workers/"
         "megatron_workers.py:1010)"),
    On(f"{_AT}.use_mbridge", "weights by verl's own converters (use_mbridge: false)"),
    On(f"{_AT}.vanilla_mbridge", "weights by Megatron-Bridge (vanilla_mbridge: false)"),
    Idle((f"{_AT}.sequence_parallel",), "mbridge cuts sequences wherever tensors are cut"),
    Idle((f"{_AT}.use_remove_padding",), "sequences are counted at full length, packed or not"),
    Idle((f"{_AT}.use_dist_checkpointing", f"{_AT}.dist_checkpointing_*", f"{_AT}.seed", f"{_AT}.forward_only",
          f"{_AT}.override_mcore_model_config", f"{_AT}._target_", "critic.load_weight"),
         "from where weights are read, or values"),
    Says(f"{_MODEL}.lora.rank", "", idle={0: "no adapters"}, words={None: None}, what="adapters of rank"),
    Idle((f"{_MODEL}.lora.*",), "of adapters, which the rank decides"),
    Unmodelled((f"{_MODEL}.external_lib",), "code that is imported before the model is made", (None,)),
    Idle((f"{_MODEL}.tokenizer_path", f"{_MODEL}.trust_remote_code", f"{_MODEL}._target_",
          f"{_MODEL}.use_remove_padding", f"{_MODEL}.enable_gradient_checkpointing", f"{_MODEL}.fsdp_config.*"),
         "from where files are read, or of workers over FSDP"),
    Idle(("critic.optim.*",), "values, not tensors"),
    Idle(("critic.rollout_n",), "answers of a prompt, which rollout.n says"),
    Idle(("critic.shuffle", "critic.data_loader_seed"), "the order of sequences"),
    Idle(("critic.cliprange_value", "critic.loss_agg_mode"), "numbers of a token's loss"),
    Idle(("critic.checkpoint.*", "critic.profiler.*", "critic.nccl_timeout", "critic._target_"),
         "the run around the steps"),
    Says("critic.ppo_epochs", "", idle={1: "one pass over a step's sequences"}, words={None: None},
         what="passes over a step's sequences:"),
)


def read_megatron_critic(reader: Reader, draft: Draft, copies: int) -> None:
    """Writes the critic, behind the actor and its batches. `copies`: data-parallel ones of the actor."""
    path = reader.text(f"{_MODEL}.path")
    if path is None:
        draft.default("rl.critic.model", _DEFAULT_MODEL, RELEASE, "trainer/config/_generated_ppo_megatron_trainer.yaml")
    elif path.value == reader.look(f"{MODEL}.path"):
        draft.idle(path, "the actor's")
    elif not ask_for_model(draft, path, f"{_MODEL}.path", "rl.critic.model"):
        draft.put("rl.critic.model", path)
    _read_recompute(reader, draft)
    for own, actors in _ALIKE:
        _read_alike(reader, draft, own, actors)
    for own, actors in ((f"{_AT}.use_distributed_optimizer", f"{ACTOR}.megatron.use_distributed_optimizer"),
                        (f"{_AT}.dtype", f"{ACTOR}.megatron.dtype"),
                        ("critic.optim.optimizer", f"{ACTOR}.optim.optimizer")):
        _as_actors(reader, draft, own, actors)
    _read_sizes(reader, draft, copies)
    read_rows(reader, draft, _ROWS)


def _read_recompute(reader: Reader, draft: Draft) -> None:
    kind, method, count = (reader.take(f"{_AT}.{_CORE}.{name}") for name in _OWN[:3])
    modules = reader.take(f"{_AT}.{_CORE}.{_OWN[3]}")
    layers = 1 if count is None or count.value is None else count.value
    if kind is None or kind.value is None:
        draft.idle([one for one in (kind, method, count, modules) if one], "nothing is recomputed")
    elif kind.value == "full" and method is not None and (method.value, layers) == ("uniform", 1):
        draft.infer("rl.critic.recompute", "full", "recompute_method, recompute_num_layers", kind, method, count)
        draft.idle(modules, "of granularity selective")
    else:
        for taken in (kind, method, count, modules):
            draft.refuse(taken, "a critic that recomputes otherwise than layer by layer")


def _paths(reader: Reader, block: str) -> Iterator[str]:
    """Keys below a block, with dots, as the recipe says them; those of recomputation are told apart."""
    for one in reader.all():
        name = one.key.removeprefix(f"{block}.")
        if name != one.key and name not in _OWN:
            yield name


def _read_alike(reader: Reader, draft: Draft, own: str, actors: str) -> None:
    for name in sorted({*_paths(reader, own), *_paths(reader, actors)}):
        _as_actors(reader, draft, f"{own}.{name}", f"{actors}.{name}")
    draft.idle(reader.take(own) if not reader.names(own) else None, "nothing is overridden")


def _as_actors(reader: Reader, draft: Draft, own: str, actors: str) -> None:
    usual = _DEFAULTS.get(own.rpartition(".")[2])
    taken, said, there = reader.take(own), reader.look(own), reader.look(actors)
    if (usual if said is None else said) == (usual if there is None else there):
        draft.idle(taken, "as the actor's")
    elif taken is not None:
        draft.refuse(taken, f"a critic with another value than the actor's {there}")
    else:
        draft.refused.append(Problem(reader.document.where(tuple(actors.split("."))),
                                     f"not yet: {own}: a critic without the actor's {there}"))


def _read_sizes(reader: Reader, draft: Draft, copies: int) -> None:
    """Writes batch sizes; passes that make values have the microbatches of training."""
    training, rl = draft.values["training"], draft.values["rl"]
    each, mini = rl["generations"], reader.integer("critic.ppo_mini_batch_size")
    batch = training["global_batch_size"] if mini is None else mini.value * each
    if mini is not None:
        draft.infer("rl.critic.global_batch_size", batch, "ppo_mini_batch_size prompts with all their answers", mini,
                    source=f"{RELEASE} workers/megatron_workers.py:1047")
    dynamic = reader.flag("critic.use_dynamic_bsz")
    draft.use(dynamic, why="how the critic's microbatches are cut")
    varies = bool(reader.look(f"{ACTOR}.use_dynamic_bsz") if dynamic is None else dynamic.value)
    most, passed = (reader.integer(f"critic.{name}_max_token_len_per_gpu") for name in ("ppo", "forward"))
    tokens, whole = most.value if most else _TOKENS, rl["prompts"] * each
    stated = sizes(reader, _CRITIC, "ppo_micro_batch_size")
    read_size(draft, "rl.critic.micro_batch_size", stated, most, batch // copies,
              (varies, training["seq_len"], copies, tokens))
    read_size(draft, "rl.critic.values_batch_size", stated[:1] if not varies else [], passed or most, whole // copies,
              (varies, training["seq_len"], copies, passed.value if passed else tokens))
    draft.idle([one for one in (most, passed) if one and not varies], "read with use_dynamic_bsz alone")
    draft.idle(sizes(reader, _CRITIC, "forward_micro_batch_size"), "workers over Megatron do not read it")
