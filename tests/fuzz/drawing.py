"""Layouts over the schema that a framework accepts: grown key by key, and what is refused is left out again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any, Final

from fuzz.case import Tree
from fuzz.models import drawn_model
from simcore.errors import RankscopeError
from simcore.frameworks.adapter import FrameworkAdapter
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.hardware.topology import topology_names
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.simulate import check

__all__ = ["FILE", "changed", "drawn_layout", "parsed", "per_microbatch"]

FILE: Final = "f.yaml"
Feature = Callable[[Random, Tree], None]
"""Changes a scenario in place."""

_DEGREES: Final = (2, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 12, 16)
_LARGE: Final = (24, 32, 60, 64, 100, 256, 1024, 4096)
_TRIES: Final = 8
_DTYPES: Final = ("auto", "fp32", "bf16", "fp16", "fp8")


def parsed(tree: Tree) -> Scenario:
    """The scenario as a person's file would give it."""
    return parse_scenario(parse_document(json.dumps(tree, indent=1), FILE))


def drawn_layout(random: Random) -> Tree:
    """A scenario that passes `check` in most cases; where nothing was accepted, one that is refused."""
    workload = random.choice(("train",) * 12 + ("dpo", "grpo", "serve"))
    tree = _first(random, workload)
    for feature in _features(random, workload):
        bigger = deepcopy(tree)
        feature(random, bigger)
        if _legal(bigger):
            tree = bigger
    return tree


def changed(tree: Tree, changes: dict[str, Any]) -> Tree:
    """A copy with some dotted keys set; the number of microbatches stays what it was."""
    made = deepcopy(tree)
    count = per_microbatch(made)
    for key, value in changes.items():
        *path, last = key.split(".")
        inner = made
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    if count is not None:
        _accumulate(made, count)
    return made


def per_microbatch(tree: Tree) -> int | None:
    """Microbatches of a step; None where the batch is left out."""
    batch = tree.get("training", {}).get("global_batch_size")
    return None if batch is None else max(1, batch // _copies(tree))


def _copies(tree: Tree) -> int:
    """Sequences of one microbatch, on all ranks."""
    mesh = tree.get("mesh", {})
    micro = tree.get("training", {}).get("micro_batch_size", 1)
    return int(mesh.get("dp_replicate", 1) * mesh.get("dp_shard", 1) * micro)


def _accumulate(tree: Tree, count: int) -> None:
    tree.setdefault("training", {})["global_batch_size"] = count * _copies(tree)


def _legal(tree: Tree) -> bool:
    try:
        return check(parsed(tree)).status == "ok"
    except (RankscopeError, OverflowError):
        return False
    except Exception:  # noqa: BLE001 - a bug, which is found again when the case is judged
        return True


# ---- what a scenario starts from ------------------------------------------------------------------------------------
def _first(random: Random, workload: str) -> Tree:
    """The least that is legal: of some frameworks and models drawn, the first that go together."""
    tree: Tree = {}
    for _ in range(_TRIES):
        tree = _bare(random, workload)
        if _legal(tree):
            break
    return tree


def _bare(random: Random, workload: str) -> Tree:
    topology = random.choice(topology_names()) if random.random() < 0.3 else "dgx-h100"
    tree: Tree = {"name": "drawn", "model": drawn_model(random), "topology": topology}
    if workload == "serve":
        return tree | {"workload": workload, "generation": {"max_model_len": random.choice((1, 16, 512, 4096))}}
    tree |= {"framework": random.choice(known_frameworks()), "mesh": {}, "training": {"seq_len": _length(random)}}
    if random.random() < 0.3:
        tree["implementation"] = random.choice(_adapter(tree).implementations)
    _DATA_PARALLEL.get(tree["framework"], _dp_shard)(random, tree)
    if workload == "dpo":
        tree["workload"] = workload
    if workload == "grpo":
        tree["mesh"] = {axis: min(size, 16) for axis, size in tree["mesh"].items()}
        prompts, generations = random.choice((1, 2, 8)), random.choice((1, 2)) * _copies(tree)
        tree |= {"workload": workload, "rl": {"prompts": prompts, "generations": generations},
                 "generation": {"max_model_len": tree["training"]["seq_len"]}}
        tree["training"]["global_batch_size"] = prompts * generations
    return tree


def _adapter(tree: Tree) -> FrameworkAdapter:
    return framework_adapter(tree["framework"])


def _length(random: Random) -> int:
    return random.choice((1, 2, 7, 64, 128, 509, 512, 1024, 2048, 4096, 8192, 32768))


def _degree(random: Random) -> int:
    return random.choice(_LARGE) if random.random() < 0.1 else random.choice(_DEGREES)


def _axis(name: str) -> Feature:
    def grow(random: Random, tree: Tree) -> None:
        count = per_microbatch(tree)
        tree.setdefault("mesh", {})[name] = _degree(random)
        if count is not None and tree.get("workload") != "grpo":
            _accumulate(tree, count)

    return grow


_dp_shard = _axis("dp_shard")
_DATA_PARALLEL: Final = {"ddp": _axis("dp_replicate"), "zero0": _axis("dp_replicate")}


# ---- what is added --------------------------------------------------------------------------------------------------
def _features(random: Random, workload: str) -> Iterator[Feature]:
    """Axes first, then what depends on them, then the rest in any order."""
    if workload == "serve":
        yield from random.sample([*_GENERATION, _axis("tp")], 4)
        return
    yield from random.sample([_axis(name) for name in ("pp", "tp", "cp", "ep", "etp", "dp_replicate", "dp_shard")],
                             random.randint(0, 4))
    if workload == "grpo":
        yield from random.sample(_GENERATION + _RL, 3)
    elif random.random() < 0.6:
        yield _batch
    yield from random.sample(_TRAINING, random.randint(0, 6))
    for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
        yield _option


def _batch(random: Random, tree: Tree) -> None:
    """Some of hours: what is counted of a step passes 64 bits long before its bytes do."""
    large = random.random() < 0.04
    _accumulate(tree, random.choice((10**4, 10**6) if large else (1, 2, 2, 3, 4, 5, 8, 16, 31))
                * tree["mesh"].get("pp", 1))


def _within(block: str, key: str, *values: Any) -> Feature:
    """Sets `training.block.key`; of the block "" a key of training itself."""
    def grow(random: Random, tree: Tree) -> None:
        inner = tree["training"]
        (inner.setdefault(block, {}) if block else inner)[key] = random.choice(values)

    return grow


def _of(block: str, key: str, *values: Any) -> Feature:
    """Sets `block.key`."""
    def grow(random: Random, tree: Tree) -> None:
        tree.setdefault(block, {})[key] = random.choice(values)

    return grow


def _micro_batch(random: Random, tree: Tree) -> None:
    tree |= changed(tree, {"training.micro_batch_size": random.choice((2, 3, 4, 8))})


def _adapters(random: Random, tree: Tree) -> None:
    training = tree["training"]
    training["method"] = random.choice(("lora", "lora", "qlora"))
    lora: Tree = {"rank": random.choice((1, 4, 8, 13, 64)), "dtype": random.choice(("auto", "auto", "fp32", "bf16"))}
    if random.random() < 0.5:
        lora["target_modules"] = random.choice((["q_proj"], ["*_proj"], ["linear_qkv", "linear_proj"], ["*"],
                                                ["in_proj", "up_proj"]))
    if random.random() < 0.3:
        lora["exclude_modules"] = random.choice((["*out_proj"], ["lm_head"], ["*experts*"]))
    training["lora"] = lora
    if tree["framework"] == "fsdp1":  # which refuses frozen weights beside adapters without it
        tree.setdefault("framework_options", {})["use_orig_params"] = True


def _quantization(random: Random, tree: Tree) -> None:
    tree["training"] |= {"method": "qlora", "quantization": {
        "format": random.choice(("nf4", "fp4", "int8")), "block_size": random.choice((32, 64, 128, 4096)),
        "double_quant": random.random() < 0.5}}


def _pipeline(random: Random, tree: Tree) -> None:
    tree["training"]["pipeline"] = {
        "schedule": random.choice(("1f1b", "1f1b", "gpipe", "zb_h1", "interleaved_zb", "zbv")),
        "virtual_stages": random.choice((1, 1, 2, 3))}


def _option(random: Random, tree: Tree) -> None:
    known = _options(tree["framework"], tree.get("implementation", "auto"))
    if known:
        name = random.choice(sorted(known))
        value = random.choice(known[name])
        made = {int: random.choice((1, 2, 3, 4, 5, 7, 8, 100, 4096, 5 * 10**7)), float: random.choice((0.5, 6.0)),
                str: "x", list: ["attn"], dict: {"device": "cpu"}}
        tree.setdefault("framework_options", {})[name] = made[value] if isinstance(value, type) else value


@cache
def _options(framework: str, implementation: str) -> dict[str, tuple[Any, ...]]:
    """The framework's own options and what they may be: values, or types."""
    adapter = framework_adapter(framework)
    return dict(adapter.options(adapter.implementation_of("llama",
                                                          "full") if implementation == "auto" else implementation))


_TRAINING: Final[list[Feature]] = [
    _micro_batch, _micro_batch, _adapters, _adapters, _quantization, _pipeline, _pipeline,
    _within("", "recompute", "full", "full", ["mlp"], ["core_attn"], {"mode": "uniform", "num_layers": 1},
            {"mode": "block", "num_layers": 2}, {"mode": "per_op"}),
    _within("", "loss", "hf", "hf_keep_logits", "te", "masked_fp32", "liger", "cut", "chunked", "megatron"),
    _within("", "routing", {"imbalance": 1.3}, {"capacity_factor": 1.0}, {"seed": 1, "draws": 20},
            {"seed": 0, "draws": 7, "concentration": 0.5}),
    _within("", "lengths", "packed", {"mean": 32, "max": 64, "draws": 20}, {"observed": [1, 5, 7], "draws": 20}),
    _within("", "sequence_parallel", True, False),
    _within("precision", "params", *_DTYPES), _within("precision", "compute", *_DTYPES, "fp4"),
    _within("precision", "grad_reduce", *_DTYPES), _within("precision", "main_grads", *_DTYPES),
    _within("precision", "experts", *_DTYPES),
    _within("optimizer", "name", "adam", "sgd", "muon", "dist_muon"),
    _within("optimizer", "implementation", "foreach", "fused", "for_loop", "te", "bitsandbytes", "torchao", "cpu"),
    _within("optimizer", "master", "none", "fp32", "bf16"), _within("optimizer", "moments", "fp32", "bf16", "int8"),
    _within("optimizer", "paged", True),
    _within("offload", "params", "host", "nvme"),
    _within("offload", "optimizer", "host", {"space": "host", "fraction": 0.5}),
    _within("offload", "gradients", "host"), _within("offload", "activations", "host"),
    _of("environment", "expandable_segments", True), _of("environment", "cublas_workspace_config", ":4096:8"),
    _of("checkpoint", "load", "every_rank", "rank0", "sharded", "none"),
    _of("checkpoint", "save", "full", "sharded", "none"),
    _of("limits", "usable_memory", "1 MiB", "9 GiB"), _of("limits", "max_fill", 0.5, 0.92),
    lambda random, tree: tree.update(framework_version=random.choice(_adapter(tree).versions)),
]  # fmt: skip
_GENERATION: Final[list[Feature]] = [
    _of("generation", "tp", 2, 4, 8), _of("generation", "gpu_memory_utilization", 0.3, 0.9),
    _of("generation", "kv_dtype", "bf16", "fp8"), _of("generation", "enforce_eager", True),
    _of("generation", "max_num_seqs", 1, 64), _of("generation", "max_num_batched_tokens", 16, 8192),
    _of("generation", "max_loras", 1, 4), _of("generation", "sleep_level", 0, 1, 2),
    _of("generation", "colocated", False), _of("generation", "prefix_caching", True, False),
    _of("generation", "version", "0.12.0", "0.25.1"), _of("generation", "kv_cache_memory", "1 MiB", "9 GiB"),
]  # fmt: skip
_RL: Final[list[Feature]] = [
    _of("rl", "reference", "device", "host"), _of("rl", "logprob_batch_size", 2, 8),
    _of("rl", "prompt_tokens", 0, 16), _of("rl", "refit_buffer", 0.1, 0.9),
    _of("rl", "asynchronous", True, False),
    _of("rl", "on_policy_ratio", True, False), _of("rl", "generated_prompts", 8, 64),
]  # fmt: skip
