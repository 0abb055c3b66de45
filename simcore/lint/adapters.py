"""Modules that get LoRA adapters, as the framework's own matcher finds them among the layers of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from simcore.errors import RankscopeError
from simcore.frameworks.adapted import NOTHING_ADAPTED
from simcore.frameworks.common.lora import name_adapters
from simcore.frameworks.registry import framework_adapter
from simcore.lint.finding import Found
from simcore.lint.rule import Example, Rule
from simcore.lint.subject import Subject
from simcore.models.graph import ModelGraph
from simcore.program.record_layers import record_layers
from simcore.results.lora_coverage import adapted_modules, modules_without_gradient
from simcore.simulation.simulation import placed_simulation

__all__ = ["RULES"]

_TARGETS: Final = "training.lora.target_modules"
_EXCLUDED: Final = "training.lora.exclude_modules"
_HEAD: Final = "lm_head"
_MLP: Final = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "linear_fc1", "linear_fc2")
"""Names of linear layers that routed experts have in checkpoints."""
_COUNTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
"""Fields with the number of routed experts, by family."""


def _find_unmatched(subject: Subject) -> Iterator[Found]:
    simulation = subject.legal
    nothing = [problem for problem in subject.illegal() if problem.rule == NOTHING_ADAPTED]
    names = ", ".join(_examples_of(simulation.job.graph)) if simulation else ""
    for target in simulation.job.unmatched_targets if simulation else ():
        yield Found(subject.where(_TARGETS), f"target {target!r} matches no module of the model",
                    f"names of the model's modules, such as {names}", "error")
    for problem in nothing:
        yield Found(subject.where(_TARGETS), problem.message, "names that the model's modules have")


def _examples_of(graph: ModelGraph) -> list[str]:
    paths = [spec.path.rpartition(".")[2] for specs in graph.tensors for spec in specs
             if spec.module == "linear" and spec.path]
    return list(dict.fromkeys(paths))[:6]


def _find_without_gradient(subject: Subject) -> Iterator[Found]:
    for module, layers in _bypassed(subject).items():
        yield Found(_place(subject), f"the adapter on {module} ({layers} layers) gets no gradient: a fused kernel "
                    "takes the module's weight itself, so that the adapter is stored, stepped and never learns",
                    f"exclude {module.rpartition('.')[2]} from the targets")


def _bypassed(subject: Subject) -> dict[str, int]:
    """Adapted modules whose weight a fused kernel reads, with their numbers of layers."""
    if subject.legal is None or subject.scenario is None:
        return {}
    graph, framework = subject.legal.job.graph, subject.legal.framework
    if not any(spec.component == "mamba" for specs in graph.tensors for spec in specs) or not _adapted(subject):
        return {}
    if not framework.strategy.unit_sync:  # gradients of layers are not recorded there: PEFT's layers are the same
        by_peft = framework_adapter(subject.scenario.framework).lora_tensors is name_adapters
        return {path: count for path, count in _adapted(subject).items() if by_peft and path.endswith("mixer.out_proj")}
    try:
        simulation = placed_simulation(subject.scenario)
        stages = {plan.stage: plan for plan in simulation.plans}.values()
        return modules_without_gradient((plan, record_layers(plan, simulation.workload(plan))) for plan in stages)
    except RankscopeError:  # layers of which only the placement is served
        return {}


def _adapted(subject: Subject) -> dict[str, int]:
    if subject.legal is None or subject.scenario is None or subject.scenario.training.method == "full":
        return {}
    return adapted_modules(subject.legal.job.graph)


def _place(subject: Subject) -> str:
    """Place of the key that chooses modules: targets, else what is excluded, else the method."""
    keys = (_TARGETS, _EXCLUDED, "training.method")
    return subject.where(next((key for key in keys if subject.says(key) is not None), keys[-1]))


def _find_head(subject: Subject) -> Iterator[Found]:
    """Adapters on the output head that no target names: it was not excluded."""
    targets = subject.says(_TARGETS) or ()
    if _HEAD in _adapted(subject) and not any(_HEAD in str(target) for target in targets):
        size = subject.config.get("vocab_size", "the vocabulary's")
        yield Found(_place(subject), f"the output head gets an adapter ({size} outputs), which no target names",
                    f"name {_HEAD} among the targets if it is meant, else exclude it")


def _find_skipped_experts(subject: Subject) -> Iterator[Found]:
    """Routed experts without adapters although targets are named like their linear layers."""
    if not _adapted(subject) or subject.legal is None:
        return
    graph = subject.legal.job.graph
    numbers = _parameters(graph)
    experts = numbers["routed_experts"]
    targets = [str(target) for target in subject.says(_TARGETS) or ()]
    asked = ["all linear layers"] if _asks_for_all(subject) else [
        target for target in targets if any(fnmatchcase(name, target.rpartition(".")[2]) for name in _MLP)]
    if experts and not numbers["expert_adapters"] and asked and not _has_linear_experts(graph):
        share = 100 * experts / sum(numbers.values())
        yield Found(_place(subject), f"{', '.join(asked)} reach no routed expert: experts are one 3-d parameter, "
                    f"{share:.0f}% of the model, which stays frozen without adapters",
                    "name the experts if they are meant (Automodel: '*experts'; PEFT: target_parameters)")


def _asks_for_all(subject: Subject) -> bool:
    """True if a recipe asks for adapters on every linear layer, by a key of its own."""
    words = subject.look("lora_target_modules", "target_modules")
    return (subject.look("lora_target_linear", "peft.match_all_linear") is True
            or words in ("all-linear", ["all-linear"]))


def _parameters(graph: ModelGraph) -> Counter[str]:
    numbers: Counter[str] = Counter()
    for layer in graph.layers:
        for spec in graph.tensors[layer.kind]:
            numbers[spec.component] += spec.numel * spec.copies * spec.is_owned
            is_adapter = spec.module == "adapter" and "experts" in spec.path.split(".")  # and not shared_experts
            numbers["expert_adapters"] += is_adapter and spec.component != "expert_adapters"
    return numbers


def _has_linear_experts(graph: ModelGraph) -> bool:
    """True if each routed expert is a module of linear layers, which targets reach as any other."""
    return any(spec.component == "routed_experts" and spec.module == "linear"
               for specs in graph.tensors for spec in specs)


def _find_router(subject: Subject) -> Iterator[Found]:
    """Targets that are the name of a router, which looks like the gate of an MLP."""
    routed = any(subject.config.get(name) for name in _COUNTS)
    for target in subject.says(_TARGETS) or ():
        if routed and str(target).rpartition(".")[2] in ("gate", "router"):
            yield Found(subject.where(_TARGETS), f"target {target!r} is the router of experts, and not the gate of an "
                        "MLP", "gate_proj, if the MLP is meant")


_TUNE: Final = "adapter: lora\nlora_r: 16\nlora_alpha: 32\n"
_PEFT: Final = ("model: {{_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, "
                "pretrained_model_name_or_path: {model}}}\n"
                "peft: {{_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 8, {keys}}}\n")
_NANO: Final = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
_QWEN: Final = "Qwen/Qwen3-8B"
_MATCHER: Final = "Automodel 0.7.0 components/_peft/module_matcher.py"
_PEFTS: Final = "PEFT 0.21.2 tuners/tuners_utils.py check_target_module_exists: ends of paths"

RULES: Final = (
    Rule("lora-target-matches-nothing", "error", "A target of the adapters fits no module of the model.",
         f"{_PEFTS}; {_MATCHER}: whole paths or patterns",
         Example("axolotl", f"{_TUNE}lora_target_modules: [q_proj, query]\n",
                 f"{_TUNE}lora_target_modules: [q_proj, v_proj]\n"), _find_unmatched),
    Rule("lora-without-gradient", "warning", "An adapter is on a module whose weight a fused kernel reads: it never "
         "learns.", "mamba-ssm ops/triton/ssd_combined.py: F.linear(out, outproj_weight)",
         Example("automodel", _PEFT.format(model=_NANO, keys="target_modules: ['*out_proj', '*q_proj']"),
                 _PEFT.format(model=_NANO, keys="target_modules: ['*in_proj', '*q_proj']")), _find_without_gradient),
    Rule("lora-adapts-head", "warning", "The output head gets an adapter that no target names.",
         f"{_MATCHER}: with exclusions alone, or match_all_linear, every linear layer is adapted, lm_head among them",
         Example("automodel", _PEFT.format(model=_QWEN, keys="exclude_modules: ['*o_proj']"),
                 _PEFT.format(model=_QWEN, keys="exclude_modules: ['*o_proj', lm_head]")), _find_head),
    Rule("lora-skips-experts", "note", "Targets that are named like the linear layers of experts reach none of them.",
         f"transformers 5.23 integrations/moe.py: experts are one parameter; {_MATCHER}: routed experts by name alone",
         Example("automodel", _PEFT.format(model="Qwen/Qwen3-30B-A3B", keys="target_modules: ['*up_proj', '*q_proj']"),
                 _PEFT.format(model="Qwen/Qwen3-30B-A3B", keys="target_modules: ['*q_proj', '*v_proj']")),
         _find_skipped_experts),
    Rule("lora-target-router", "warning", "A target is the name of a router of experts.",
         "transformers 5.23 models/qwen3_moe/modeling_qwen3_moe.py: `gate` of a sparse block is the router, "
         "`gate_proj` the linear layer of an MLP",
         Example("axolotl", f"base_model: Qwen/Qwen3-30B-A3B\n{_TUNE}lora_target_modules: [gate, q_proj]\n",
                 f"base_model: Qwen/Qwen3-30B-A3B\n{_TUNE}lora_target_modules: [q_proj]\n"), _find_router),
)
