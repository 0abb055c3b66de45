"""Refusals of OpenRLHF's PPO trainer, and of what is not described of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.registry import asked_adapter
from simcore.inputs.generation import Critic, Generation, Reward, Rl
from simcore.inputs.scenario import Scenario
from simcore.operators.shared.wide_losses import POLICY
from simcore.rl.trl.policy import summons_of

__all__ = ["KEYS", "check"]

KEYS: Final = ("optimizer_offload", "critic", "reward", "epochs", "generated_prompts")
"""Keys of the block `rl` that this trainer reads, beside those that all read."""
_COMMON: Final = ("trainer", "prompts", "generations", "reference", "prompt_tokens", "mean_tokens",
                  "logprob_batch_size")
_CLI: Final = "OpenRLHF 0.11.0 cli/train_ppo_ray.py"
_STRATEGY: Final = "OpenRLHF 0.11.0 utils/deepspeed/deepspeed.py"
_CRITIC: Final = "OpenRLHF 0.11.0 trainer/ray/ppo_critic.py"
Refusal = InputError | IllegalLayout | NotYet


def check(scenario: Scenario, rl: Rl, generation: Generation) -> None:
    """Raises InputError, IllegalLayout or NotYet for a scenario that is refused, or that is not described."""
    summons = asked_adapter(scenario).summons
    if summons is None or not summons.engines:
        raise IllegalLayout(Problem(scenario.where("framework"), f"grpo of OpenRLHF under {scenario.framework}: its "
                                    "models are engines of DeepSpeed", _STRATEGY))
    for problem in (*_of_keys(scenario, rl), *_of_sleep(scenario, rl), *_of_training(scenario),
                    *_of_models(scenario, rl, generation), *_of_engine(scenario, generation)):
        raise problem


def _of_keys(scenario: Scenario, rl: Rl) -> Iterator[Refusal]:
    usual = Rl(prompts=1, generations=1)
    for name in Rl.model_fields:
        if name not in KEYS and name not in _COMMON and getattr(rl, name) != getattr(usual, name):
            at = scenario.where("rl", name)
            yield (NotYet(Problem(at, "not yet: OpenRLHF's asynchronous trainer")) if name == "asynchronous" else
                   InputError(Problem(at, f"{name}: changes nothing with trainer: openrlhf")))
    if rl.prompt_tokens >= scenario.training.seq_len:
        yield InputError(Problem(scenario.where("rl", "prompt_tokens"), "prompt_tokens: expected fewer than the "
                                 f"{scenario.training.seq_len:,} tokens of a sequence, got {rl.prompt_tokens:,}"))
    if rl.generated_prompts is not None and rl.generated_prompts < rl.prompts:
        yield InputError(Problem(scenario.where("rl", "generated_prompts"), "generated_prompts: expected at least the "
                                 f"{rl.prompts:,} prompts that are kept, got {rl.generated_prompts:,}"))


def _of_sleep(scenario: Scenario, rl: Rl) -> Iterator[Refusal]:
    at = scenario.where("rl", "optimizer_offload")
    if rl.optimizer_offload and scenario.training.offload.part("optimizer")[1]:
        yield InputError(Problem(at, "optimizer_offload: changes nothing with an optimizer on the host (OpenRLHF "
                                 "0.11.0 utils/deepspeed/deepspeed_utils.py offload_deepspeed_states)"))
    if rl.optimizer_offload and not summons_of(scenario).sleeps:
        yield NotYet(Problem(at, f"not yet: sleep of OpenRLHF under {scenario.framework}"))


def _of_training(scenario: Scenario) -> Iterator[Refusal]:
    training, mesh = scenario.training, scenario.mesh
    if training.offload.part("params")[1]:
        yield IllegalLayout(Problem(scenario.where("training", "offload", "params"), "params: on the host: "
                                    "parameters of what is trained are on the device", f"{_STRATEGY} "
                                    "get_ds_train_config(offload=False)"))
    for wrong, key, what in (
            (mesh.cp > 1, "mesh.cp", "sequences that ranks share by ring-flash-attn"),
            (mesh.pp * mesh.tp * mesh.ep > 1, "mesh", "PPO of OpenRLHF with tensor, pipeline or expert parallelism"),
            (training.method != "full", "training.method", "PPO of OpenRLHF with adapters, whose names vLLM gets"),
            (training.loss not in ("auto", *POLICY), "training.loss",
             f"PPO of OpenRLHF with another loss than {', '.join(POLICY)}"),
            (not isinstance(training.lengths, str), "training.lengths", "PPO of OpenRLHF with drawn lengths"),
            (training.logprob_chunk_size is not None, "training.logprob_chunk_size",
             "log-probabilities in chunks of OpenRLHF"),
            (bool(training.images), "training.images", "PPO of OpenRLHF over images"),
            (training.scored_tokens is not None, "training.scored_tokens", "a part of tokens that OpenRLHF scores"),
            (training.offload.part("activations")[1], "training.offload.activations",
             "PPO of OpenRLHF with activations on the host"),
            (training.offload.part("optimizer")[0] == "nvme", "training.offload.optimizer",
             "PPO of OpenRLHF with states on NVMe")):
        if wrong:
            yield NotYet(Problem(scenario.where(*key.split(".")), f"not yet: {what}"))


def _of_models(scenario: Scenario, rl: Rl, generation: Generation) -> Iterator[Refusal]:
    if rl.reference == "host" and not summons_of(scenario).gathers:
        yield IllegalLayout(Problem(scenario.where("rl", "reference"), "reference: host: a reference model that is not "
                                    "sharded stays on the device", f"{_STRATEGY} get_ds_eval_config: stage 0, whose "
                                    "offload_param DeepSpeed does not read"))
    if rl.reference == "host":
        yield NotYet(Problem(scenario.where("rl", "reference"), "not yet: ref.offload of OpenRLHF"))
    for name, asked in (("critic", rl.critic), ("reward", rl.reward)):
        if asked is None:
            continue
        if not generation.colocated:
            yield NotYet(Problem(scenario.where("rl", name), f"not yet: {name}: a model on GPUs of its own (served: "
                                 "train.colocate_all)"))
        yield from _own(scenario, name, asked)


def _own(scenario: Scenario, name: str, asked: Critic | Reward) -> Iterator[Refusal]:
    """Keys besides the model, which are those of the policy."""
    for key in sorted(asked.model_fields_set - {"model"}):
        yield InputError(Problem(scenario.where("rl", name, key), f"{name}: {key}: all but the model is as the "
                                 f"policy's (OpenRLHF: one set of ds.* and train.* arguments; {_CRITIC})"))


def _of_engine(scenario: Scenario, generation: Generation) -> Iterator[Refusal]:
    if generation.engine != "vllm":
        yield NotYet(Problem(scenario.where("generation", "engine"), f"not yet: {generation.engine} beside OpenRLHF "
                             "(served: vllm)"))
    if generation.colocated and scenario.world_size % generation.tp:
        yield IllegalLayout(Problem(scenario.where("generation", "tp"), "actor_num_nodes * actor_num_gpus_per_node "
                                    "must be equal to vllm_num_engines * vllm_tensor_parallel_size, got "
                                    f"{scenario.world_size} and engines of {generation.tp}", _CLI))
    if generation.sleep_level == 2:
        yield IllegalLayout(Problem(scenario.where("generation", "sleep_level"), "sleep_level: 2: expected 1, or 0 "
                                    "(without vllm.enable_sleep)", "OpenRLHF 0.11.0 trainer/ray/vllm_engine.py sleep"))
    if not generation.colocated and generation.sleep_level and "sleep_level" in generation.model_fields_set:
        yield IllegalLayout(Problem(scenario.where("generation", "sleep_level"), "sleep_level: an engine on GPUs of "
                                    "its own is awake: vllm.enable_sleep is set to False", _CLI))
    for wrong, key, what in (
            (generation.max_loras > 0, "max_loras", "adapters in buffers of vLLM beside OpenRLHF"),
            (generation.quantization != "auto", "quantization", "weights of vLLM in few bits beside OpenRLHF"),
            (generation.colocated and generation.engines > 1, "engines", "several engines on GPUs that train: they "
             "are as many as fit")):
        if wrong:
            yield NotYet(Problem(scenario.where("generation", key), f"not yet: {what}"))
