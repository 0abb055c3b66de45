"""Every key of a scenario in every workload: it changes the result, is told to have no effect, or is refused.

    python -m silent FILE         (with PYTHONPATH=.:tests) the full product, written to FILE, silent keys printed

A combination is a key, a workload with its method, a framework. Each is tried in several scenarios, so that a key that
matters only beside another one is tried beside it, and with several values. `tests/silent.json` holds what came out.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from simcore.errors import RankscopeError
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario, scenario_schema
from simcore.inputs.without_effect import reason
from simcore.operators.registry import IMPLEMENTATIONS
from simcore.simulate import simulate

__all__ = ["Combination", "combinations", "keys", "outcome", "tried", "witnessed"]

Tree = dict[str, Any]
LEFT_OUT: Final = ("name", "search", "sweep", "workload", "framework", "training.method")
"""Keys that make the combinations, and those that are no question."""


class Combination(NamedTuple):
    """A key where it is asked."""

    workload: str
    method: str
    framework: str
    key: str

    @property
    def place(self) -> str:
        """Workload, method and framework, as the file has them."""
        return f"{self.workload}/{self.method}/{self.framework}"


# ---- keys and their values -------------------------------------------------------------------------------------------
@cache
def schema_keys() -> dict[str, dict[str, Any]]:
    """Key -> its schema, nested ones with dots; blocks are there with each of their keys."""
    schema = scenario_schema()
    return dict(_walk(schema, schema["$defs"], ""))


def _walk(block: dict[str, Any], known: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in block["properties"].items():
        branches = field.get("oneOf") or field.get("anyOf") or [field]
        inner = [known[branch["$ref"].rpartition("/")[2]] for branch in branches if "$ref" in branch]
        if not inner or len(branches) > len(inner):
            yield f"{prefix}{name}", field
        for found in inner:
            yield from _walk(found, known, f"{prefix}{name}.")


def keys(framework: str) -> tuple[str, ...]:
    """All keys of a scenario, and the options of a framework."""
    return (*(key for key in schema_keys() if key not in (*LEFT_OUT, "framework_options")),
            *(f"framework_options.{name}" for name in options(framework)))


@cache
def options(framework: str) -> dict[str, tuple[Any, ...]]:
    """Options of a framework around any implementation, with their values or types."""
    if framework not in known_frameworks():  # an engine
        return {}
    adapter = framework_adapter(framework)
    return {name: known for one in adapter.implementations for name, known in adapter.options(one).items()}


NUMBERS: Final = (2, 4, 1, 3, 8, 16, 512)
SHARES: Final = (0.5, 0.9, 2.0, 16.0)
OWN: Final[dict[str, tuple[Any, ...]]] = {
    "model": ("qwen2.5-1.5b", "llama-3.2-1b"), "model.config": ("llama-3.2-3b", "qwen3-30b-a3b"),
    "model.overrides": ({"num_hidden_layers": 3},), "implementation": tuple(IMPLEMENTATIONS),
    "framework_version": ("0.16.1", "main 2026-08-22", "0.9"),
    "topology": ("dgx-a100",), "topology.file": ("dgx-a100",), "topology.num_nodes": (4, 8),
    "topology.gpus_per_node": (4, 2), "topology.power_limit": ("500 W", "300 W"),
    "training.recompute": ("full", ["self_attn"], ["mlp"], ["core_attn"]),
    "training.recompute.modules": (["core_attn"], ["mlp"], ["self_attn"]),
    "training.pipeline.schedule": ("gpipe", "zb_h1", "interleaved_zb", "zbv"),
    "training.pipeline.layers": ([1, 3], [3, 1]), "training.lengths": ("packed",),
    "training.lengths.observed": ([10, 30],), "training.lengths.mean": (60, 120), "training.lengths.max": (200, 150),
    "training.lengths.draws": (5, 40), "training.lengths.seed": (1, 2, 3), "training.routing.seed": (1, 2, 3),
    "training.routing.draws": (5, 40), "training.routing.imbalance": (1.5, 2.0),
    "training.routing.capacity_factor": (1.5, 0.5), "training.routing.pad": (False,),
    "training.packed_length": (64, 128), "training.seq_len": (128, 512),
    "training.image_height": (392,), "training.image_width": (392,),
    "training.num_tokens": (10**9,), "training.frozen": (["model.embed_tokens"], ["*mlp*"]),
    "training.lora.target_modules": (["q_proj"], ["linear_qkv"]),
    "training.lora.exclude_modules": (["*q_proj*"], ["*qkv*"]), "training.lora.modules_to_save": (["lm_head"],),
    "training.global_batch_size": (16, 32, 8), "training.optimizer.momentum": (0.9, 0.0),
    "training.optimizer.weight_decay": (0.1, 0.0),
    "training.optimizer.low_rank.target_modules": (["q_proj"], ["down_proj"]),
    "training.offload.params": ("host", "nvme"), "training.offload.optimizer": ("host", "nvme"),
    "training.offload.gradients": ("host", "nvme"), "training.offload.activations": ("host",),
    "training.sequence_parallel": (False, True), "environment.cublas_workspace_config": (":4096:8", ":16:8"),
    "limits.usable_memory": ("1 GiB", "20 GiB"), "limits.max_fill": (0.01, 0.5),
    "generation.engine": ("sglang",), "generation.max_model_len": (200, 128), "rl.prompt_tokens": (64,),
    "rl.mean_tokens": (100, 150), "rl.steps_ahead": (2, 8),
    "generation.kv_cache_memory": ("1 GiB", "20 GiB"), "generation.unquantized": (["q_proj"],),
    "rl.generated_prompts": (2**12, 64), "rl.critic": ({"micro_batch_size": 1},), "rl.critic.model": ("qwen3-0.6b",),
    "rl.critic.framework_options": ({"attention_backend": "unfused"},), "rl.critic.mesh": ({"dp_shard": 4},),
    "teacher.model": ("llama-3.2-3b",), "teacher.framework_options": ({"attention_backend": "unfused"},),
    "rl.reward": ({"model": "qwen3-0.6b"},), "rl.reward.model": ("qwen3-0.6b",)}
"""Values of keys for which those of their type say little."""


OF_TYPES: Final[dict[type, tuple[Any, ...]]] = {
    bool: (True, False), int: (2, 1, 4, 2**20, 2**28), float: SHARES, str: (), list: ([], [4, 1]), dict: ({},)}


def values(key: str, framework: str) -> Iterator[Any]:
    """Values to try for a key, beside the one that a scenario has."""
    if key.startswith("framework_options."):
        for one in options(framework)[key.removeprefix("framework_options.")]:
            yield from OF_TYPES.get(one, ()) if isinstance(one, type) else (one,)
        return
    if key in OWN:
        yield from OWN[key]
        return
    field = schema_keys()[key]
    for branch in field.get("oneOf") or field.get("anyOf") or [field]:
        yield from branch.get("enum", ()) or ([branch["const"]] if "const" in branch else ())
        kind = branch.get("type") if "enum" not in branch and "const" not in branch else ""
        yield from {"integer": NUMBERS, "number": SHARES, "boolean": (True, False)}.get(kind or "", ())


# ---- scenarios to try them in ----------------------------------------------------------------------------------------
DENSE: Final = {"config": "llama-3.2-1b", "overrides": {"num_hidden_layers": 4}}
EXPERTS: Final = {"config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 4}}
HYBRID: Final = {"config": "nemotron-3-nano-30b-a3b", "overrides": {}}
DRAWN: Final = {"mean": 100, "max": 256, "seed": 0, "draws": 20, "distribution": "lognormal", "sigma": 1.0}
RANDOM: Final = {"seed": 0, "draws": 20, "concentration": 10.0}
RL: Final[Tree] = {"prompts": 4, "generations": 4, "logprob_batch_size": 1, "reference": "host"}
GENERATION: Final[Tree] = {"tp": 2, "gpu_memory_utilization": 0.5, "max_model_len": 256}
TRAIN: Final[Tree] = {"seq_len": 256, "micro_batch_size": 2, "global_batch_size": 16}


SHARDED: Final[Tree] = {"dp_shard": 4}
COPIES: Final[dict[str, Tree]] = {"ddp": {"dp_replicate": 4}, "zero0": {"dp_replicate": 4}}
"""Meshes of frameworks that shard nothing."""


def _layout(framework: str) -> Tree:
    return COPIES.get(framework, SHARDED)


def bases(workload: str, method: str, framework: str) -> Iterator[Tree]:
    """Scenarios of a combination, before a key is set; the framework refuses some of them."""
    first = {"train": _trains, "dpo": _trains, "grpo": _grpos, "distillation": _distils,
             "serve": _serves}[workload](framework)
    rl = {"rl": RL, "generation": GENERATION} if workload == "grpo" else {}
    on_host = ON_HOST.get(framework, ()) if workload == "train" else ()
    for base in (*first, *on_host, *(one | rl for one in PAGED.get(framework, ()))):
        tree: Tree = {"name": "k", "workload": workload, "framework": framework,
                      "topology": {"file": "dgx-h100", "num_nodes": 2}} | deepcopy(base)
        if workload != "serve":
            tree["training"] = {**TRAIN, "method": method, **tree.get("training", {})}
        yield tree


_MEGATRON: Final[tuple[Tree, ...]] = (
    {"training": {"precision": {"compute": "fp8"}}},
    {"training": {"precision": {"compute": "fp8"}}, "framework_options": {"fp8_recipe": "blockwise"}},
    {"framework_options": {"attention_backend": "unfused"}},
    {"framework_options": {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn"]}})
_ON_HOST: Final[tuple[Tree, ...]] = tuple(
    {"model": DENSE, "mesh": {"dp_shard": 4}, "framework_version": "main 2026-08-22",
     "training": {"offload": {"activations": "host"}}, "framework_options": options}
    for options in ({"cpu_offloading_num_layers": 1},
                    {"fine_grained_activation_offloading": True, "offload_modules": ["core_attn"]}))
ON_HOST: Final[dict[str, tuple[Tree, ...]]] = {"megatron": _ON_HOST, "megatron_fsdp": _ON_HOST}
"""Settings beside which options about activations on the host matter; last, as results have the number of a setting."""
_PAGED: Final[tuple[Tree, ...]] = ({
    "model": EXPERTS, "mesh": {"dp_shard": 4, "ep": 4, "etp": 1}, "framework_version": "main 2026-08-22",
    "topology": "dgx-b200",
    "training": {"seq_len": 2048, "precision": {"compute": "fp8"}, "routing": "balanced"},
    "framework_options": {
        "fp8_recipe": "mxfp8", "use_transformer_engine_op_fuser": True, "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep", "moe_expert_rank_capacity_factor": 1.5, "moe_paged_stash": True}},)
_IMAGES: Final[tuple[Tree, ...]] = ({
    "model": "gemma-3-4b", "mesh": {"dp_shard": 8}, "framework_options": {"attn_implementation": "eager"},
    "training": {"seq_len": 1024, "images": 3, "frozen": ["model.vision_tower"]}}, {
    "model": "qwen2.5-vl-3b", "mesh": {"dp_shard": 8},
    "training": {"seq_len": 1024, "images": 2, "image_height": 448, "image_width": 476, "frozen": ["model.visual"]}})
_BY_TE: Final[tuple[Tree, ...]] = ({
    "model": DENSE, "mesh": {"dp_shard": 4}, "training": {"optimizer": {"implementation": "te", "master": "fp32"}}}, {
    "model": DENSE, "mesh": {"dp_shard": 4}, "training": {"optimizer": {"implementation": "flashoptim"}}}, {
    "model": DENSE, "mesh": {"dp_shard": 4}, "training": {"optimizer": {"name": "muon", "implementation": "dion"}}})
_PROJECTED: Final[tuple[Tree, ...]] = ({  # a small table, so that a projected matrix sets the peak of the step
    "model": {"config": "llama-3.2-1b", "overrides": {"num_hidden_layers": 4, "vocab_size": 512}},
    "mesh": {"dp_replicate": 4},
    "training": {"optimizer": {"name": "apollo", "low_rank": {"rank": 32, "target_modules": ["mlp"]}}}},)
_OF_MAIN: Final[tuple[Tree, ...]] = (
    {"model": DENSE, "mesh": {"dp_shard": 4}, "framework_version": "main 2026-08-22"},
    {"model": EXPERTS, "mesh": {"dp_shard": 4, "ep": 2}, "framework_version": "main 2026-08-22"},
    {"model": {"config": "llama-3-8b", "overrides": {"num_hidden_layers": 4}}, "mesh": {"pp": 2, "dp_shard": 2},
     "framework_version": "main 2026-08-22", "framework_options": {"deallocate_pipeline_outputs": False}},
    {"model": HYBRID, "mesh": {"dp_shard": 4, "ep": 4}, "framework_version": "main 2026-08-22"},
    {"model": DENSE, "mesh": {"dp_shard": 2, "cp": 2}, "framework_version": "main 2026-08-22"},
    {"model": DENSE, "mesh": {"dp_shard": 4}, "framework_version": "main 2026-08-22",
     "framework_options": {"attention_backend": "unfused"}})
_BOTH: Final[Tree] = {"model": DENSE, "mesh": {"cp": 4}, "framework_options": {
    "cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [2, 2]}}
PAGED: Final[dict[str, tuple[Tree, ...]]] = {"megatron": (*_PAGED, _BOTH), "megatron_fsdp": (
    *_PAGED, *_OF_MAIN, _BOTH | {"framework_version": "main 2026-08-22"}),
                                             "automodel": (*_IMAGES, *_BY_TE),
                                             "ddp": _PROJECTED}
"""Jobs with options that matter in them alone; they come last, so that others keep their numbers."""
OPTIONS_BESIDE: Final[dict[str, tuple[Tree, ...]]] = {
    "automodel": ({"framework_options": {"enable_fsdp2_prefetch": True}},), "megatron": _MEGATRON,
    "megatron_fsdp": _MEGATRON}
"""Settings beside which other options of a framework matter."""
OF_HYBRIDS: Final[dict[str, Tree]] = {"automodel": {"lora": {"rank": 8}}}
"""Layers of a hybrid that are trained, all of them in other frameworks."""


def _by_verl(**given: Any) -> Tree:
    return {"model": DENSE, "mesh": SHARDED, "training": {"loss": "flash"}, "rl": RL | {"trainer": "verl"},
            "generation": GENERATION | {"sleep_level": 2}} | given


_TRL: Final[Tree] = {"trainer": "trl", "prompts": 8, "generations": 4, "prompt_tokens": 64, "reference": "device"}


def _by_trl(framework: str) -> tuple[Tree, ...]:
    """Steps of TRL's trainer: beside vLLM, and of a policy that generates by itself."""
    both: Tree = {"model": DENSE, "mesh": _layout(framework),
                  "training": {"micro_batch_size": 4, "global_batch_size": 32}}
    return (both | {"rl": _TRL, "generation": {"max_model_len": 256}},
            both | {"rl": _TRL | {"on_policy_ratio": True}, "generation": {"engine": "transformers"}})


_LOGITS: Final[Tree] = {"model": DENSE, "mesh": SHARDED, "rl": RL | {"logprob_batch_size": 4},
                        "generation": GENERATION}
"""Scenario in which logits are the most of a pass."""
STEPS_BESIDE: Final[dict[str, tuple[Tree, ...]]] = {
    "fsdp1": (_by_verl(),
              _by_verl(model=HYBRID, mesh={"dp_shard": 8}, generation=GENERATION | {"sleep_level": 2, "tp": 4}),
              _by_verl(rl=RL | {"trainer": "verl", "critic": {"micro_batch_size": 1}}),
              _by_verl(rl=RL | {"trainer": "verl", "reward": {"model": "llama-3.2-1b", "tp": 2}})),
    "automodel": (_LOGITS,), "fsdp2": (_LOGITS,),
    "megatron": ({"model": DENSE, "mesh": SHARDED, "rl": RL | {"critic": {"micro_batch_size": 1}},
                  "generation": GENERATION},)}
"""Steps of reinforcement learning beside which other keys matter; last, as results have the number of a setting."""


TRL: Final = ("ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")


def _trains(framework: str) -> Iterator[Tree]:
    mesh = _layout(framework)
    yield {"model": DENSE, "mesh": mesh}
    yield {"model": DENSE, "mesh": mesh, "training": {"recompute": "full"}}
    yield {"model": EXPERTS, "mesh": mesh | {"ep": 2}}
    yield {"model": EXPERTS, "mesh": mesh | {"ep": 2}, "training": {"routing": RANDOM}}
    yield {"model": EXPERTS, "mesh": mesh | {"ep": 2}, "training": {"routing": {"imbalance": 1.2}}}
    yield {"model": EXPERTS, "mesh": mesh | {"ep": 2}, "training": {"routing": {
        "capacity_factor": 1.5, "pad": True}}}
    yield {"model": DENSE, "mesh": mesh, "training": {"lengths": DRAWN}}
    yield {"model": DENSE, "mesh": mesh, "training": {"lengths": {"observed": [50, 100, 250], "seed": 0, "draws": 20}}}
    yield {"model": DENSE, "mesh": mesh, "training": {"lengths": "packed", "packed_length": 32}}
    yield {"model": DENSE, "mesh": mesh, "training": {"lengths": "packed", "packed_length": 32},
           "framework_options": {"attn_implementation": "flash_attention_2"}}
    yield {"model": DENSE, "mesh": mesh, "training": {"precision": {"params": "fp32"}}}
    yield {"model": DENSE, "mesh": mesh, "training": {"seq_len": 16, "micro_batch_size": 1}}
    for beside in OPTIONS_BESIDE.get(framework, ()):
        yield {"model": DENSE, "mesh": mesh} | beside
    yield {"model": DENSE, "mesh": mesh | {"tp": 2}}
    yield {"model": DENSE, "mesh": mesh | {"pp": 2}}
    yield {"model": DENSE, "mesh": mesh | {"cp": 2}}
    yield {"model": EXPERTS, "mesh": mesh | {"tp": 2, "ep": 2}}
    for mode in ("uniform", "block", "per_op"):
        modules = {"modules": ["mlp"]} if mode == "per_op" else {}
        yield {"model": DENSE, "mesh": mesh, "training": {"recompute": {"mode": mode, "num_layers": 1} | modules}}
    for name in ("params", "optimizer", "gradients", "activations"):
        for space in ("host", "nvme"):
            both = {"params": space} if name == "optimizer" else {}
            yield {"model": DENSE, "mesh": mesh, "training": {"recompute": "full", "offload": {
                name: {"space": space, "fraction": 1.0}} | both}}
            yield {"model": DENSE, "mesh": mesh, "training": {"offload": {name: {"space": space, "fraction": 1.0}}}}
    for optimizer in ({"name": "sgd", "momentum": 0.5}, {"name": "adamw", "implementation": "bitsandbytes"},
                      {"name": "muon"}, {"name": "adamw", "implementation": "torchao"}):
        yield {"model": DENSE, "mesh": mesh, "training": {"optimizer": optimizer}}
    yield {"model": HYBRID, "mesh": mesh | {"ep": 4}, "training": OF_HYBRIDS.get(framework, {})}
    yield {"model": DENSE, "mesh": mesh | {"dp_replicate": 2}}
    for implementation in framework_adapter(framework).implementations[1:]:
        model = {"config": "mpt-7b", "overrides": {"n_layers": 2}} if implementation == "llmfoundry" else DENSE
        yield {"model": model, "mesh": mesh, "implementation": implementation}
    yield {"model": DENSE, "mesh": mesh, "rl": RL, "generation": GENERATION}


def _grpos(framework: str) -> Iterator[Tree]:
    rl, generation = RL, GENERATION
    for base in _trains(framework):
        yield base | {"rl": rl, "generation": generation}
    mesh = _layout(framework)
    yield {"model": DENSE, "mesh": mesh, "rl": rl, "generation": generation | {"colocated": False, "engines": 2}}
    yield {"model": DENSE, "mesh": mesh, "rl": rl, "generation": generation | {"max_loras": 2}}
    yield {"model": HYBRID, "mesh": {"dp_shard": 8, "ep": 8}, "rl": rl, "generation": generation | {"tp": 4}}
    yield {"model": DENSE, "mesh": mesh, "rl": rl, "generation": generation | {"quantization": "fp8"}}
    yield from STEPS_BESIDE.get(framework, ())
    yield from _by_trl(framework) if framework in TRL else ()


def _distils(framework: str) -> Iterator[Tree]:
    rl = {name: value for name, value in RL.items() if name != "reference"}
    for teacher in ({"mesh": {"tp": 2, "dp_shard": 2}}, {"mesh": {"dp_shard": 4}}):
        yield {"model": DENSE, "mesh": _layout(framework), "rl": rl, "generation": GENERATION,
               "teacher": {"model": "llama-3.2-1b"} | teacher}


def _serves(framework: str) -> Iterator[Tree]:
    length = {"max_model_len": 1024}
    yield {"model": DENSE, "topology": {"file": "dgx-h100"}, "generation": length}
    yield {"model": HYBRID, "topology": {"file": "dgx-h100"}, "generation": {"tp": 4} | length}
    yield {"model": DENSE, "topology": {"file": "dgx-h100"}, "generation": {"max_loras": 2} | length}
    yield {"model": EXPERTS, "topology": {"file": "dgx-h100"}, "generation": {"tp": 2} | length}
    yield {"model": DENSE, "topology": {"file": "dgx-h100"}, "mesh": {"tp": 2, "dp_replicate": 2},
           "training": {"seq_len": 1024}, "generation": {"tp": 2}}
    yield {"model": "qwen2.5-vl-3b", "topology": {"file": "dgx-h100"}, "generation": length}


# ---- one combination -------------------------------------------------------------------------------------------------
class Answer(NamedTuple):
    """Numbers of a result, and what it tells besides; both empty where it is refused."""

    numbers: str
    told: str


@cache
def parsed(text: str) -> Scenario | None:
    """The scenario; None where it is no scenario."""
    try:
        return parse_scenario(parse_document(text, "k.json"))
    except RankscopeError:
        return None


@cache
def answer(text: str) -> Answer | None:
    """Answer to a scenario; None where it is refused."""
    scenario = parsed(text)
    if scenario is None:
        return None
    report = simulate(scenario)
    if report.status != "ok":
        return None
    found = report.model_dump(mode="json", exclude={"name", "scenario"})
    told = [found.pop(name, None) for name in ("assumptions", "problems")]
    return Answer(json.dumps(found), json.dumps(told))


def setting(tree: Tree, key: str, value: Any) -> Tree | None:
    """A copy with the key set; None where its block is a word there, or it has the value already."""
    made = deepcopy(tree)
    inner, (*path, last) = made, key.split(".")
    for name in path:
        if name in ("lengths", "routing", "recompute", *OFFLOADED) and name not in inner:
            return None
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            return None
    if inner.get(last) == value or (path and path[-1] in ONE_OF and last not in inner and last != "modules"):
        return None
    inner[last] = value
    return made


OFFLOADED: Final = ("params", "optimizer", "gradients", "activations")
ONE_OF: Final = ("lengths", "routing")
"""Blocks of several shapes: a key belongs to the shape that has it."""


def tried(combination: Combination) -> Iterator[tuple[str, int, Any]]:
    """Yields (outcome, number of the base, value) of each try: "changes", "told", "same" or "refused".

    Texts that are no scenario, and values that are the default, are no try.
    """
    workload, method, framework, key = combination
    for number, base in enumerate(bases(workload, method, framework)):
        before = answer(json.dumps(base))
        if before is None:
            continue
        for value in values(key, framework):
            made = setting(base, key, value)
            if made is None or parsed(json.dumps(made)) in (None, parsed(json.dumps(base))):
                continue
            after = answer(json.dumps(made))
            if after is None:
                yield "refused", number, value
            elif after.numbers != before.numbers:
                yield "changes", number, value
            else:
                yield ("same" if after.told == before.told else "told"), number, value


def witnessed(combination: Combination, number: int, value: Any) -> str:
    """Outcome of one try alone."""
    base = list(bases(combination.workload, combination.method, combination.framework))[number]
    made = setting(base, combination.key, value)
    assert made is not None
    before, after = answer(json.dumps(base)), answer(json.dumps(made))
    return "refused" if after is None else "changes" if before is None or after.numbers != before.numbers else "same"


def outcome(combination: Combination) -> tuple[str, int, Any]:
    """The strongest outcome of a combination, and the try that has it.

    "changes": a number of the result; "told": its assumptions; "fixed": other values than one that means the same as
    the default are refused; "listed": without effect, by a rule with its reason; "refused": all values; or "silent".
    """
    best: tuple[str, int, Any] = ("refused", -1, None)
    refused, listed = False, reason(combination.workload, combination.method, combination.key)
    for tries, (found, number, value) in enumerate(tried(combination)):
        if found == "changes":
            return found, number, value
        refused |= found == "refused"
        if listed and tries > LISTED_IN:
            break
        if found == "told" or (found == "same" and best[0] != "told") or best[1] < 0:
            best = found, number, value
    if best[0] == "same":
        fixed = refused or _has_one_value(combination)
        return ("listed" if listed else "fixed" if fixed else "silent"), best[1], best[2]
    return best


def _has_one_value(combination: Combination) -> bool:
    """True for an option with one value, which is what it means left out; others are refused by the option's name."""
    name = combination.key.removeprefix("framework_options.")
    return len({one for one in options(combination.framework).get(name, (1, 2)) if one is not None}) == 1


LISTED_IN: Final = 20
"""Number of times that a listed key is tried: it must change nothing in any."""


def combinations() -> Iterator[Combination]:
    """All combinations."""
    for framework in known_frameworks():
        for method in ("full", "lora", "qlora"):
            for key in keys(framework):
                yield Combination("train", method, framework, key)
        for workload in ("dpo", "grpo"):
            for key in keys(framework):
                yield Combination(workload, "full", framework, key)
    for key in keys("megatron"):  # the step's other keys are those of grpo
        if key.partition(".")[0] in ("rl", "teacher"):
            yield Combination("distillation", "full", "megatron", key)
    for key in keys("vllm"):
        yield Combination("serve", "full", "vllm", key)


def main(file: str, *only: str) -> None:
    """Tries all combinations (of some frameworks) and writes what came out."""
    found: dict[str, dict[str, list[Any]]] = {}
    counts: Counter[str] = Counter()
    for combination in combinations():
        if only and combination.framework not in only and combination.workload not in only:
            continue
        kind, number, value = outcome(combination)
        found.setdefault(combination.place, {})[combination.key] = [kind, number, value]
        counts[kind] += 1
        if kind == "silent":
            sys.stdout.write(f"{' '.join(combination)}: scenario {number}, value {value}\n")
            sys.stdout.flush()
    Path(file).write_text(written(found), encoding="utf-8")
    sys.stdout.write(f"{sum(counts.values())} combinations: {dict(counts)}\n")


def written(found: dict[str, dict[str, list[Any]]]) -> str:
    """The file's text, a line for each workload, method and framework."""
    rows = (f"{json.dumps(place)}: {json.dumps(keys, separators=(',', ':'))}" for place, keys in found.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
