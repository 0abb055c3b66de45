"""Refusals of TRL's GRPOTrainer, and of what is not described of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.registry import asked_adapter, framework_adapter, known_frameworks
from simcore.frameworks.trl_releases import release_of
from simcore.inputs.generation import Generation, Rl
from simcore.inputs.scenario import Scenario
from simcore.rl.trl.amounts import Amounts
from simcore.rl.trl.policy import summons_of

__all__ = ["KEYS", "TRANSFORMERS", "check"]

TRANSFORMERS: Final = "transformers"
"""Value of `generation.engine` for a policy that generates by itself."""
KEYS: Final = ("version", "epochs", "on_policy_ratio", "sync_reference", "reference_params", "gather_for_generation")
"""Keys of the block `rl` that this trainer reads, beside those that all read."""
_COMMON: Final = ("trainer", "prompts", "generations", "reference", "prompt_tokens", "mean_tokens",
                  "logprob_batch_size")
_TRAINER: Final = "TRL 1.16.0 trainer/grpo_trainer.py"
_VLLM: Final = "TRL 1.16.0 generation/vllm_generation.py"


def check(scenario: Scenario, rl: Rl, generation: Generation, amounts: Amounts) -> None:
    """Raises InputError, IllegalLayout or NotYet for a scenario that the trainer refuses, or that is not described."""
    if asked_adapter(scenario).summons is None:
        served = ", ".join(name for name in known_frameworks() if framework_adapter(name).summons)
        raise NotYet(Problem(scenario.where("framework"), f"not yet: grpo of TRL under {scenario.framework} (served: "
                             f"{served})"))
    _check_keys(scenario, rl)
    for problem in (*_of_training(scenario, rl), *_of_reference(scenario, rl), *_of_ratio(scenario, rl, generation,
                                                                                       amounts)):
        raise problem
    for problem in _of_release(scenario, rl, generation):
        raise problem
    for problem in _of_itself(scenario, rl, generation) if generation.engine == TRANSFORMERS else _of_vllm(
            scenario, generation):
        raise problem


def _check_keys(scenario: Scenario, rl: Rl) -> None:
    usual = Rl(prompts=1, generations=1)
    for name in Rl.model_fields:
        if name not in KEYS and name not in _COMMON and getattr(rl, name) != getattr(usual, name):
            raise InputError(Problem(scenario.where("rl", name), f"{name}: changes nothing with trainer: trl"))
    size = scenario.training.micro_batch_size
    if "logprob_batch_size" in rl.model_fields_set and rl.logprob_batch_size != size:
        raise IllegalLayout(Problem(scenario.where("rl", "logprob_batch_size"), f"logprob_batch_size: passes have the "
                                    f"{size:,} sequences of micro_batch_size", f"{_TRAINER}:2505 batch_size = "
                                    "per_device_train_batch_size"))


def _of_training(scenario: Scenario, rl: Rl) -> Iterator[InputError | IllegalLayout | NotYet]:
    training, mesh, own = scenario.training, scenario.mesh, release_of(rl.version).loss
    if mesh.cp > 1:
        yield IllegalLayout(Problem(scenario.where("mesh", "cp"), "cp: GRPOTrainer does not support sequence-dim "
                                    "parallelism", "TRL 1.16.0 trainer/grpo_config.py:1072"))
    for wrong, key, what in (
            (mesh.pp * mesh.tp * mesh.ep > 1, "mesh", "GRPO of TRL with pipeline, tensor or expert parallelism"),
            (training.loss not in ("auto", own), "training.loss", f"GRPO of TRL with another loss than {own}"),
            (training.lengths != "fixed", "training.lengths", "GRPO of TRL with packed or drawn lengths"),
            (training.images, "training.images", "GRPO of TRL over images"),
            (training.offload.part("activations")[1], "training.offload.activations", "GRPO of TRL with activations "
             "on the host"),
            (training.offload.part("params")[1], "training.offload.params", "GRPO of TRL with parameters on the host")):
        if wrong:
            yield NotYet(Problem(scenario.where(*key.split(".")), f"not yet: {what}"))


def _of_reference(scenario: Scenario, rl: Rl) -> Iterator[InputError | IllegalLayout | NotYet]:
    full, at = scenario.training.method == "full", scenario.where("rl", "reference")
    if rl.reference == "host":
        yield IllegalLayout(Problem(at, "reference: host: the reference model lies on the device, as the policy does",
                                    f"{_TRAINER}:1184 prepare_deepspeed, prepare_fsdp, prepare_model"))
    if rl.sync_reference and rl.reference == "none":
        yield IllegalLayout(Problem(scenario.where("rl", "sync_reference"), "sync_reference: there is nothing to "
                                    "synchronize without a reference model", f"{_TRAINER}:1193"))
    if rl.sync_reference and not full:
        yield IllegalLayout(Problem(scenario.where("rl", "sync_reference"), "sync_reference: true with adapters: there "
                                    "is no standalone `ref_model` instance to synchronize", f"{_TRAINER}:1199"))
    if rl.reference_params != "auto" and (rl.reference == "none" or not full):
        yield InputError(Problem(scenario.where("rl", "reference_params"), "reference_params: changes nothing without "
                                 "a reference model of its own"))


def _of_ratio(scenario: Scenario, rl: Rl, generation: Generation, amounts: Amounts) -> Iterator[IllegalLayout]:
    """The policy's own pass is left out where optimizer steps end with generations, and made elsewhere."""
    at, rule = scenario.where("rl", "on_policy_ratio"), f"{_TRAINER}:2642 generate_every"
    release = release_of(rl.version)
    aligned = not release.needs_scores(amounts.batch, amounts.generated, rl.epochs)
    if rl.on_policy_ratio and not aligned:
        yield IllegalLayout(Problem(at, "on_policy_ratio: true where sequences are older than an optimizer step: the "
                                    "policy's log-probabilities are kept", rule))
    if not rl.on_policy_ratio and aligned and (generation.engine == TRANSFORMERS or not release.corrects):
        yield IllegalLayout(Problem(at, "on_policy_ratio: false where each optimizer step has its own generation: the "
                                    "policy makes no pass of its own", rule))


def _of_release(scenario: Scenario, rl: Rl, generation: Generation) -> Iterator[IllegalLayout | NotYet]:
    """Settings that the release has not: a depth of sleep, the reference of some frameworks, FSDP 2."""
    release, level = release_of(rl.version), generation.sleep_level
    if generation.engine != TRANSFORMERS and "sleep_level" in generation.model_fields_set and level not in (
            0, release.sleeps):
        expected = f"{release.sleeps}, or 0 (vllm_enable_sleep_mode: false)" if release.sleeps else "0"
        yield IllegalLayout(Problem(scenario.where("generation", "sleep_level"), f"sleep_level: {level}: expected "
                                    f"{expected}", _VLLM if release.packs else f"TRL {release.name} trainer/"
                                    "grpo_trainer.py: vLLM never sleeps before 0.23, at level 1 up to 0.24"))
    summons = summons_of(scenario)
    at = scenario.where("framework")
    if not release.splits and summons.one_unit:
        yield NotYet(Problem(at, f"not yet: {scenario.framework} of TRL {release.name}, which sends vLLM no weights of "
                             "it, and has no such reference model (from 0.20 on)"))
    if not release.packs and summons.one_unit and rl.reference != "none" and scenario.training.method == "full":
        yield NotYet(Problem(at, f"not yet: a reference model of its own under {scenario.framework} in TRL "
                             f"{release.name}, which wraps it by FSDP 1"))
    if release.refers_within and rl.reference != "none" and (summons.by_unit or (
            scenario.training.method != "full" and summons.whole_as)):
        yield NotYet(Problem(at, f"not yet: a reference model within microbatches of TRL {release.name} under "
                             f"{scenario.framework}{' with adapters' * bool(summons.whole_as)}"))


def _of_itself(scenario: Scenario, rl: Rl, generation: Generation) -> Iterator[InputError | NotYet]:
    """Keys of an engine that a policy which generates by itself does not have."""
    usual = Generation()
    for name in Generation.model_fields:
        if name != "engine" and getattr(generation, name) != getattr(usual, name):
            yield InputError(Problem(scenario.where("generation", name), f"{name}: changes nothing with engine: "
                                     f"{TRANSFORMERS}"))
    gathers_all = summons_of(scenario).whole_as != ""
    if not rl.gather_for_generation and not gathers_all:
        yield InputError(Problem(scenario.where("rl", "gather_for_generation"), "gather_for_generation: changes "
                                 "nothing but under zero3"))
    if scenario.training.method == "qlora" and gathers_all:
        yield NotYet(Problem(scenario.where("framework"), "not yet: a packed base that is gathered to generate"))


def _of_vllm(scenario: Scenario, generation: Generation) -> Iterator[InputError | IllegalLayout | NotYet]:
    if generation.engine != "vllm":
        yield NotYet(Problem(scenario.where("generation", "engine"), f"not yet: {generation.engine} beside TRL "
                             f"(served: vllm, {TRANSFORMERS})"))
    if scenario.rl is not None and not scenario.rl.gather_for_generation:
        yield InputError(Problem(scenario.where("rl", "gather_for_generation"), "gather_for_generation: changes "
                                 "nothing beside vLLM"))
    if generation.colocated and scenario.world_size % generation.tp:
        yield IllegalLayout(Problem(scenario.where("generation", "tp"), f"tensor_parallel_size ({generation.tp}) must "
                                    f"divide world size ({scenario.world_size}) evenly", f"{_VLLM}:316"))
    for wrong, key, what in (
            (generation.max_loras > 0, "max_loras", "adapters in buffers of vLLM: TRL merges them into its weights"),
            (generation.quantization != "auto", "quantization", "weights of vLLM in few bits beside TRL"),
            (generation.colocated and generation.engines > 1, "engines", "several engines on GPUs that train")):
        if wrong:
            yield NotYet(Problem(scenario.where("generation", key), f"not yet: {what}"))
    method = scenario.training.method
    if method == "qlora":
        yield NotYet(Problem(scenario.where("training", "method"), "not yet: a packed base that is sent to vLLM"))
    if method == "lora" and summons_of(scenario).by_unit:
        yield NotYet(Problem(scenario.where("training", "method"), "not yet: adapters that are merged under FSDP 1"))
