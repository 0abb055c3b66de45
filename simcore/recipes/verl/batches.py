"""Sizes of a step of verl's reinforcement learning.

[Note: full length]
Sequences are counted at full length: `data.max_prompt_length` and `data.max_response_length`. Numbers of a step count
prompts, each with `rollout.n` answers (`workers/fsdp_workers.py`: ppo_mini_batch_size times n over the ranks).
Microbatches of varying size (`use_dynamic_bsz`) are as many as all tokens over the most of one, rounded up, and as
equal as can be, so that one may hold more than the most (`utils/seqlen_balancing.py` rearrange_micro_batches): they
are counted as the next number of sequences that divides.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import Problem
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Says, read_rows
from simcore.recipes.verl.actor import ACTOR, RELEASE, said
from simcore.recipes.verl.rollout import ROLLOUT

__all__ = ["read_batches", "read_size", "sizes", "split_of"]

_REF: Final = "actor_rollout_ref.ref"
_TOKENS: Final = 16384
"""Tokens of a microbatch of varying size, unless the recipe says so (`actor.ppo_max_token_len_per_gpu`)."""
_MORE: Final = 1.5
"""Most times by which a divisor may be more than the sequences of an equal cut."""
_PASSES: Final = ("rl.logprob_batch_size", "rl.critic.values_batch_size")
"""Sizes of passes that are not trained on, whose last microbatch may be smaller."""


def read_batches(reader: Reader, draft: Draft, gpus: int) -> None:
    """Writes lengths and batch sizes, see [Note: full length]. `gpus`: ranks that train."""
    length = _read_length(reader, draft)
    prompts, answers = reader.integer("data.train_batch_size"), reader.integer(f"{ROLLOUT}.n")
    said(draft, "rl.prompts", prompts, prompts.value if prompts else 1024)
    said(draft, "rl.generations", answers, answers.value if answers else 1)
    step, each = prompts.value if prompts else 1024, answers.value if answers else 1
    batch = reader.integer(f"{ACTOR}.ppo_mini_batch_size")
    mini = batch.value if batch else 256
    whole = mini * each
    if step < mini:
        draft.fail(prompts.where if prompts else draft.path, f"train_batch_size {step} ({step}) must be >= "
                   f"ppo_mini_batch_size ({mini}) ({RELEASE} workers/config/actor.py)")
    elif step % mini:
        where = prompts.where if prompts else draft.path
        draft.refused.append(Problem(where, "not yet: data.train_batch_size: a last batch of a step that is smaller "
                                            "than the others"))
    draft.infer("training.global_batch_size", whole, "ppo_mini_batch_size prompts with all their answers", batch,
                source=f"{RELEASE} workers/fsdp_workers.py __init__")
    dynamic = reader.flag(f"{ACTOR}.use_dynamic_bsz")
    is_dynamic = dynamic is not None and dynamic.value
    draft.use(dynamic, why="how microbatches are cut")
    most = reader.integer(f"{ACTOR}.ppo_max_token_len_per_gpu")
    most_tokens = (most.value if most else _TOKENS) * split_of(reader)
    read_size(draft, "training.micro_batch_size", sizes(reader, ACTOR, "ppo_micro_batch_size"), most, whole // gpus,
               (is_dynamic, length, gpus, most_tokens))
    draft.idle(most if not is_dynamic else None, "read with use_dynamic_bsz alone")
    policy = _scoring(reader, draft, ROLLOUT, (is_dynamic, most_tokens))
    read_size(draft, "rl.logprob_batch_size", sizes(reader, ROLLOUT, "log_prob_micro_batch_size"), policy[2],
               step * each // gpus, (policy[0], length, gpus, policy[1]))
    _read_reference(reader, draft, (is_dynamic, most_tokens), length, (gpus, step * each // gpus))


def _read_length(reader: Reader, draft: Draft) -> int:
    """Writes the longest sequence, and returns its tokens."""
    prompt, response = reader.integer("data.max_prompt_length"), reader.integer("data.max_response_length")
    first, rest = prompt.value if prompt else 512, response.value if response else 512
    answer = draft.answers.seq_len
    limit = reader.integer(f"{ROLLOUT}.max_model_len")
    length = answer.value if answer else min(first + rest, limit.value if limit else first + rest)
    if answer is not None:
        draft.answered("training.seq_len", answer)
    else:
        draft.infer("training.seq_len", length, "the longest prompt with the longest answer", prompt, response, limit)
    draft.infer("generation.max_model_len", length, "sequences end there, whatever the engine allows", prompt, response)
    if limit is None:
        draft.unmodelled_default(f"{ROLLOUT}.max_model_len", "the model's positions", "the engine does not start "
                                 "unless its cache holds one sequence as long")
    draft.infer("rl.prompt_tokens", min(first, length - 1), "the longest prompt", prompt)
    read_rows(reader, draft, (
        Says(f"{ROLLOUT}.prompt_length", "", idle={first: "the prompts' own"}, words={None: None},
             what="prompts of another length:"),
        Says(f"{ROLLOUT}.response_length", "", idle={rest: "the answers' own"}, words={None: None},
             what="answers of another length:")))
    return length


def split_of(reader: Reader) -> int:
    """Ranks that share a sequence: they have one batch, and a microbatch has as many times the tokens.

    Ulysses; of workers over Megatron context parallelism (`workers/actor/megatron_actor.py`:223, :806).
    """
    strategy = reader.look(f"{ACTOR}.strategy")
    by_megatron = strategy == "megatron" or (strategy is None and reader.names(f"{ACTOR}.megatron"))
    name = "megatron.context_parallel_size" if by_megatron else "ulysses_sequence_parallel_size"
    asked = reader.look(f"{ACTOR}.{name}")
    return asked if isinstance(asked, int) and asked > 1 else 1


def sizes(reader: Reader, block: str, name: str) -> list[Taken[int]]:
    """Keys that say the sequences of a microbatch: of a rank, and of all ranks together, as far as there are such."""
    found = (reader.integer(f"{block}.{key}") for key in (f"{name}_per_gpu", name))
    return [one for one in found if one is not None]


def _scoring(reader: Reader, draft: Draft, block: str, actor: tuple[bool, int]) -> tuple[bool, int, Taken[int] | None]:
    """(microbatches vary in size, tokens of one, the key that says so) of passes of log-probabilities."""
    varies = reader.flag(f"{block}.log_prob_use_dynamic_bsz")
    tokens = reader.integer(f"{block}.log_prob_max_token_len_per_gpu")
    draft.use(varies, why="how microbatches of log-probabilities are cut")
    is_varying = varies.value if varies is not None else actor[0]
    if not is_varying:
        draft.idle(tokens, "read with log_prob_use_dynamic_bsz alone")
        return False, 0, None
    return True, tokens.value * split_of(reader) if tokens else actor[1], tokens


def read_size(draft: Draft, key: str, stated: list[Taken[int]], tokens: Taken[int] | None, sequences: int,
              how: tuple[bool, int, int, int]) -> None:
    """Writes sequences of a microbatch under `key`, which are parts of a rank's `sequences`.

    `stated`: keys that say the size; `tokens`: the key that says the most tokens. `how`: (sizes vary, tokens of a
    sequence, ranks, most tokens of a microbatch).
    """
    varies, length, gpus, most = how
    if varies:
        equal, size = _equal(sequences, length, most), _varying(sequences, length, most)
        if not size:
            why = (f"{sequences} sequences in parts of at most {equal}, and no number near to it divides them" if equal
                   else f"expected at least the {length} of a sequence")
            draft.fail(tokens.where if tokens else draft.path, f"microbatches of {most} tokens: {why} ({RELEASE} "
                       "utils/seqlen_balancing.py)")
            draft.use(tokens)
            draft.idle(stated, "the tokens of a microbatch decide")
            return
        draft.infer(key, size, f"{sequences} sequences in equal parts of about {most} tokens are at most {equal}, "
                    f"counted as {size}", tokens, source=f"{RELEASE} utils/seqlen_balancing.py")
        draft.idle(stated, "the tokens of a microbatch decide")
    elif not stated:
        draft.fail(draft.path, f"{key}: expected a size of microbatches, or use_dynamic_bsz "
                   f"({RELEASE} workers/config/actor.py)")
    elif len(stated) > 1:
        draft.use(*stated)
        draft.fail(stated[1].where, f"{stated[1].key} and {stated[0].key}: expected one of them ({RELEASE} "
                   "workers/config/actor.py)")
    elif stated[0].key.endswith("_per_gpu") and key in _PASSES and stated[0].value > sequences > 0:
        draft.infer(key, sequences, "all sequences of a rank, which are fewer", stated[0],
                    source=f"{RELEASE} protocol.py split")
    elif stated[0].key.endswith("_per_gpu"):
        draft.put(key, stated[0])
    elif stated[0].value < gpus:
        draft.use(stated[0])
        draft.fail(stated[0].where, f"{stated[0].key} {stated[0].value}: expected at least the {gpus} ranks ({RELEASE} "
                   "workers/config/actor.py)")
    else:
        draft.infer(key, stated[0].value // gpus, "the size of all ranks over their number", stated[0])


def _equal(sequences: int, length: int, most: int) -> int:
    """Most sequences of `length` tokens in a part of an equal cut, whose parts have about `most` tokens; 0 for none."""
    if most < length or sequences < 1:
        return 0
    return -(-sequences // -(-sequences * length // most))


def _varying(sequences: int, length: int, most: int) -> int:
    """Sequences of a microbatch of about `most` tokens: the least divisor of at least an equal cut; 0 for none."""
    equal = _equal(sequences, length, most)
    found = next(size for size in range(max(1, equal), sequences + 1) if sequences % size == 0) if equal else 0
    return found if found <= _MORE * equal else 0


def _read_reference(reader: Reader, draft: Draft, actor: tuple[bool, int], length: int, ranks: tuple[int, int]) -> None:
    """Sizes of the reference policy's passes, which are counted as the policy's; larger ones are refused.

    `ranks`: how many there are, and the sequences of each in a step.
    """
    gpus, share = ranks
    varies, most, tokens = _scoring(reader, draft, _REF, actor)
    stated = sizes(reader, _REF, "log_prob_micro_batch_size")
    own: Any = most // max(1, length) if varies else stated[0].value // (
        1 if stated[0].key.endswith("_per_gpu") else gpus) if stated else 0
    own = min(own, share) if share > 0 else own
    counted = draft.values.get("rl", {}).get("logprob_batch_size", 0)
    has = draft.values.get("rl", {}).get("reference") in ("host", "device")
    if has and not varies and not stated:
        draft.fail(draft.path, f"{_REF}.log_prob_micro_batch_size_per_gpu: expected a size of microbatches, or "
                   f"log_prob_use_dynamic_bsz ({RELEASE} workers/config/actor.py)")
    keys = [*stated, *([tokens] if tokens else [])]
    if has and isinstance(counted, int) and own > counted:
        for one in keys[:1]:
            draft.refuse(one, f"passes of the reference policy with more sequences than the policy's {counted}")
        draft.idle(keys[1:], "of passes that are refused")
    else:
        draft.unmodelled([one for one in keys if has and own != counted],
                         "passes of the reference policy are counted with the policy's sequences")
        draft.idle([one for one in keys if not has or own == counted], "as the policy's" if has else "no such passes")
    read_rows(reader, draft, (
        Idle((f"{_REF}.fsdp_config.*", f"{_REF}.strategy", f"{_REF}.use_torch_compile", f"{_REF}.profiler.*",
              f"{_REF}.ulysses_sequence_parallel_size", f"{_REF}.entropy_*", f"{_REF}.rollout_n", f"{_REF}.megatron.*"),
             "FSDP keeps the reference policy on the host whatever they say (workers/fsdp_workers.py: CPUOffload)"),))
