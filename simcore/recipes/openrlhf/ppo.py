"""PPO, GRPO and REINFORCE++ of OpenRLHF (`openrlhf/cli/train_ppo_ray.py`): the policy, and the step around it.

[Note: lengths]
Up to 0.10 a sequence has `prompt_max_len` and `generate_max_len` tokens, then `data.max_len` in all, of which
`rollout.max_new_tokens` are the answer's where it is given. Packs of sequences of full length are counted as rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.deepspeed import read_deepspeed, shard_over_ranks
from simcore.recipes.huggingface.named_model import read_named_model
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.machine import read_machine
from simcore.recipes.openrlhf.beside import read_engine, read_models
from simcore.recipes.openrlhf.sft import OF_DEEPSPEED, read_format, read_kernels, said
from simcore.recipes.openrlhf.strategy import RELEASE, configured
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows

__all__ = ["read_ppo"]

_CLI: Final = "cli/train_ppo_ray.py"
_ACTOR: Final = "trainer/ray/ppo_actor.py"
_ROWS: Final = (
    *OF_DEEPSPEED,
    Says("actor.optim", "", "text", words={None: None}, idle={"adam": "the default"}, what="the optimizer"),
    Says("critic.optim", "", "text", words={None: None}, idle={"adam": "the default"}, what="the critic's optimizer"),
    Off("train.enable_ema", "a second copy of the policy, of means"),
    Off("train.partial_rollout_enable", "generation beside training"),
    Off("train.async_enable", "the asynchronous trainer"),
    Says("data.max_images_per_prompt", "", idle={0: "no images"}, words={None: None}, what="images a prompt:"),
    Unmodelled(("actor.aux_loss_coef",), "the loss that balances experts is computed and not counted", (0, 0.0)),
    Unmodelled(("algo.dynamic_filtering_enable",), "prompts whose rewards are alike are answered again: a step is "
               "counted with as few as it trains on", (None, False)),
    Unmodelled(("train.agent_func_path",), "turns and tools: a sequence is one answer of full length", (None,)),
    Idle(("rollout.vllm_generate_batch_size",), "prompts that are handed over at once; all are answered in a step"),
    Idle(("actor.freeze_visual_encoder", "data.image_key"), "read with images alone"),
    Idle(("algo.*", "reward.*"), "numbers made of rewards and log-probabilities, on the CPU"),
    Idle(("actor.*", "critic.*"), "numbers of the loss and of the update"),
    Idle(("data.*", "eval.*"), "which prompts are read, and how; evaluation is not part of a step"),
    Idle(("rollout.top_p", "train.num_episodes", "train.ema_beta", "train.async_queue_size", "ds.value_head_prefix",
          "actor_init_on_gpu", "ptx_coef", "perf"), "the run around the steps"),
)


def read_ppo(reader: Reader, draft: Draft) -> tuple[Draft, Reader]:
    """Reads a recipe of the PPO trainer; returns the draft, and the reader of DeepSpeed's configuration."""
    draft = replace(draft, answers=replace(draft.answers, gpus=_ranks(reader, draft)))
    draft.infer("workload", "grpo", "train_ppo_ray", source=f"{RELEASE} {_CLI}")
    draft.infer("rl.trainer", "openrlhf", "the recipe's trainer", source=f"{RELEASE} {_CLI}")
    read_named_model(reader, draft, "actor.model_name_or_path")
    read_machine(draft, None)
    packing = read_kernels(reader, draft)
    draft.use(packing, why="packs of full sequences have the tokens of as many rows")
    strategy = Reader(configured(reader, draft, read_format(reader, draft), "actor.max_norm"))
    zero = read_deepspeed(strategy, draft)
    if zero.shards is Shards.ZERO:
        shard_over_ranks(draft, whole=zero.is_whole)
    _refuse_adapters(reader, draft)
    checkpoints = reader.flag("actor.gradient_checkpointing_enable")
    if checkpoints is not None:
        draft.put("training.recompute", checkpoints, "full" if checkpoints.value else "none")
    else:
        draft.default("training.recompute", "none", RELEASE, _CLI)
    _read_loss(reader, draft)
    length = _read_lengths(reader, draft)
    _read_batches(reader, draft, length)
    read_models(reader, draft)
    read_engine(reader, draft)
    read_rows(reader, draft, _ROWS)
    return draft, strategy


def _ranks(reader: Reader, draft: Draft) -> Answer:
    """Ranks of the policy, and the place of the argument that says it."""
    nodes, each = reader.integer("actor.num_nodes"), reader.integer("actor.num_gpus_per_node")
    draft.use(nodes, each, why="ranks of the policy")
    count = (nodes.value if nodes else 1) * (each.value if each else 8)
    where = next((one.where for one in (each, nodes) if one is not None), draft.path)
    given = draft.answers.gpus
    if given is not None and given.value != count:
        draft.fail(given.where, f"the recipe's policy has {count} ranks (actor.num_nodes x actor.num_gpus_per_node), "
                                f"got {given.value}")
    return Answer(count, where)


def _refuse_adapters(reader: Reader, draft: Draft) -> None:
    rank, packed = reader.integer("ds.lora.rank"), reader.flag("ds.load_in_4bit")
    if rank is not None and rank.value > 0:
        draft.refuse(rank, "adapters of the policy, under whose names vLLM is sent weights")
    else:
        draft.idle(rank, "no adapters")
    if packed is not None and packed.value:
        draft.refuse(packed, "a base in 4 bits of the policy")
    else:
        draft.idle(packed, "the default")
    draft.idle(reader.matching("ds.lora.*"), "of adapters")


def _read_loss(reader: Reader, draft: Draft) -> None:
    """Writes the head: a temperature divides logits in place, and an entropy in the loss has a gradient of its own."""
    heat, weight = reader.number("rollout.temperature"), reader.number("actor.entropy_coef")
    divides, weighs = heat is not None and heat.value != 1, weight is not None and weight.value != 0
    source = f"{RELEASE} models/actor.py forward, {_ACTOR} training_step"
    if divides and weighs and weight is not None:
        draft.use(heat, weight)
        draft.fail(weight.where, "one of the variables needed for gradient computation has been modified by an inplace "
                                 "operation: actor.entropy_coef with a rollout.temperature that is not 1 (models/"
                                 "utils.py log_probs_from_logits: logits.div_)")
        return
    name = "policy_fp32_entropy" if weighs else "policy_fp32_divided" if divides else "policy_fp32"
    draft.infer("training.loss", name, "temperature and entropy", *(one for one in (heat, weight) if one is not None),
                source=source)


def _read_lengths(reader: Reader, draft: Draft) -> int:
    """Writes lengths, see [Note: lengths]; returns the tokens of a sequence."""
    limit, new = reader.integer("data.max_len"), reader.integer("rollout.max_new_tokens")
    prompt, answer = reader.integer("prompt_max_len"), reader.integer("generate_max_len")
    if prompt is not None or answer is not None:
        first, last = prompt.value if prompt else 1024, answer.value if answer else 1024
        draft.infer("training.seq_len", first + last, "prompt_max_len + generate_max_len", prompt, answer,
                    source="OpenRLHF 0.8.9 cli/train_ppo_ray.py: max_model_len")
        draft.infer("rl.prompt_tokens", first, "a prompt of full length", prompt, source="prompt_max_len")
        draft.idle([one for one in (limit, new) if one is not None], "prompt_max_len and generate_max_len say it")
        draft.unmodelled_default("broadcast_to_vllm", "all of vLLM", "this release wakes its cache too while weights "
                                 "are sent, which is counted as in 0.11.0 (0.8.9 trainer/ppo_trainer.py)")
        return first + last
    length = limit.value if limit else 2048
    said(draft, "training.seq_len", limit, 2048)
    if new is not None and 0 < new.value < length:
        draft.infer("rl.prompt_tokens", length - new.value, "max_len without the answer", limit, new)
    else:
        draft.idle(new, "the answer may fill the sequence")
    return length


def _read_batches(reader: Reader, draft: Draft, length: int) -> None:
    for name, key, default in (("rollout.batch_size", "rl.prompts", 1024),
                               ("rollout.n_samples_per_prompt", "rl.generations", 1),
                               ("train.batch_size", "training.global_batch_size", 128)):
        said(draft, key, reader.integer(name), default)
    epochs = reader.integer("train.max_epochs")
    if epochs is not None and epochs.value > 1:
        draft.put("rl.epochs", epochs)
    else:
        draft.idle(epochs, "one epoch")
    _read_microbatches(reader, draft, length)


def _read_microbatches(reader: Reader, draft: Draft, length: int) -> None:
    """Writes sequences of a microbatch and of a pass: by count, or as many of full length as a row of tokens holds."""
    dynamic, ranks = reader.flag("train.dynamic_batch_enable"), draft.answers.gpus
    train, passing = reader.integer("train.max_tokens_per_gpu"), reader.integer("rollout.max_tokens_per_gpu")
    counts = reader.integer("train.micro_batch_size"), reader.integer("rollout.micro_batch_size")
    keys = "training.micro_batch_size", "rl.logprob_batch_size"
    if dynamic is None or not dynamic.value:
        draft.idle([one for one in (dynamic, train, passing) if one is not None], "without dynamic batches")
        for key, each in zip(keys, counts, strict=True):
            said(draft, key, each, 1)
        return
    draft.idle([one for one in counts if one is not None], "microbatches have as many sequences as tokens allow")
    for row in filter(None, (train, passing)):
        if row.value < 1:
            draft.fail(row.where, f"{row.key} {row.value}: expected a number of tokens, at least 1")
            draft.idle([one for one in (dynamic, train, passing) if one is not None], "of a batch that cannot be")
            return
    limits = train, passing or train
    whole = _value(draft.values, "training", "global_batch_size"), _value(draft.values, "rl", "prompts") * _value(
        draft.values, "rl", "generations")
    for key, limit, sequences in zip(keys, limits, whole, strict=True):
        share = max(1, sequences // (ranks.value if ranks else 1))
        most = max(1, (limit.value if limit else 16192) // length)
        count = max(number for number in range(1, most + 1) if share % number == 0)
        draft.infer(key, count, "sequences of full length in max_tokens_per_gpu, which share out evenly", limit,
                    dynamic, source=f"{RELEASE} utils/seqlen_balancing.py")


def _value(values: Mapping[str, Any], block: str, name: str) -> int:
    return int(values[block][name])
