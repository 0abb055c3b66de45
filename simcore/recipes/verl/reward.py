"""The reward model of verl's loop: block `reward_model`, engines of vLLM on the policy's GPUs that score sequences.

Defaults are those of verl b178a3cd `trainer/config/_generated_ppo_trainer.yaml`; code:
`experimental/reward_loop/reward_model.py`. The older worker over FSDP (`use_reward_loop: false`) is refused by name.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, On, Says, read_rows
from simcore.recipes.verl.actor import MODEL, RELEASE, said

__all__ = ["read_reward"]

_REWARD: Final = "reward_model"
_ENGINE: Final = "reward_model.rollout"
_YAML: Final = "trainer/config/_generated_ppo_trainer.yaml"
_NUMBERS: Final = (("tensor_model_parallel_size", "tp", 2), ("max_num_seqs", "max_num_seqs", 1024),
                   ("max_num_batched_tokens", "max_num_batched_tokens", 8192))
"""Whole numbers of the engine with their keys and defaults."""
_DEFAULT: Final = "FsfairX-LLaMA3-RM-v0.1"
_DECODERS: Final = {_DEFAULT: "llama-3-8b", "Skywork-Reward-Llama-3.1-8B": "llama-3.1-8b",
                    "Skywork-Reward-V2-Llama-3.2-3B": "llama-3.2-3b"}
"""Published reward models, by their repositories' names, with the model that their card says they were trained from."""
_ONE: Final = {1: "one"}
_ROWS: Final = (
    On(f"{_REWARD}.use_reward_loop", "rewards by a model of FSDP's, in the older worker"),
    Off(f"{_REWARD}.enable_resource_pool", "a reward model on GPUs of its own"),
    Off(f"{_REWARD}.launch_reward_fn_async", "rewards beside other phases"),
    On(f"{_ENGINE}.free_cache_engine", "a reward model that does not sleep"),
    Says(f"{_ENGINE}.dtype", "", "text", idle={"bfloat16": "as it is simulated"}, words={None: None},
         what="an engine in"),
    Says(f"{_ENGINE}.data_parallel_size", "", idle=_ONE, words={None: None}, what="an engine over copies:"),
    Says(f"{_ENGINE}.expert_parallel_size", "", idle=_ONE, words={None: None}, what="an engine over experts:"),
    Says(f"{_ENGINE}.enforce_eager", "rl.reward.enforce_eager", "flag"),
    Idle((f"{_ENGINE}.*",), "how requests come to the engine; sequences are counted at full length"),
    Idle((f"{_REWARD}.model.*", f"{_REWARD}.micro_batch_size*", f"{_REWARD}.max_length", f"{_REWARD}.use_dynamic_bsz",
          f"{_REWARD}.forward_max_token_len_per_gpu", f"{_REWARD}.strategy", f"{_REWARD}.n_gpus_per_node",
          f"{_REWARD}.nnodes", f"{_REWARD}.ulysses_sequence_parallel_size"), "read by the older worker alone"),
)
_AROUND: Final = (Idle(("reward_model.*", "reward_manager.*", "custom_reward_function.*"),
                       "rewards by functions, on the host"),)


def read_reward(reader: Reader, draft: Draft) -> None:
    """Writes the reward model, if there is one: its engine, and the model."""
    enabled = reader.flag(f"{_REWARD}.enable")
    if enabled is None or not enabled.value:
        draft.idle(enabled, "the default")
        read_rows(reader, draft, _AROUND)
        return
    draft.use(enabled, why="a reward model scores sequences")
    if reader.look("custom_reward_function.path") is not None:
        draft.refuse(reader.take("custom_reward_function.path"), "a reward model that a function asks to generate")
    path = reader.text(f"{_REWARD}.model.path")
    model = draft.answers.settings.get("rl.reward.model")
    if model is not None:
        draft.idle(path, f"the reward model is given as {model}")
    elif path is not None and path.value == reader.look(f"{MODEL}.path"):
        draft.put("rl.reward.model", path, draft.answers.settings.get("model"))
    else:
        named = path.value.rpartition("/")[2] if path else _DEFAULT
        known = _DECODERS.get(named)
        if known is not None:
            draft.infer("rl.reward.model", known, f"{named} has the decoder of {known}, by its model card", path)
        else:
            draft.put("rl.reward.model", path)
    name = reader.text(f"{_ENGINE}.name")
    if name is None and reader.look(f"{_REWARD}.use_reward_loop") is not False:
        draft.fail(enabled.where, f"{_ENGINE}.name: a mandatory value is missing ({RELEASE} {_YAML}: ???)")
    elif name is not None and name.value != "vllm":
        draft.refuse(name, f"a reward model in {name.value} (served: vllm)")
    else:
        draft.idle(name, "as it is simulated")
    for key, ours, default in _NUMBERS:
        taken = reader.integer(f"{_ENGINE}.{key}")
        said(draft, f"rl.reward.{ours}", taken, taken.value if taken else default)
    share = reader.number(f"{_ENGINE}.gpu_memory_utilization")
    said(draft, "rl.reward.gpu_memory_utilization", share, share.value if share else 0.5)
    read_rows(reader, draft, (*_ROWS, *_AROUND))
