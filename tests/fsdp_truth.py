"""Jobs of Megatron-FSDP that its own code has run, asked here, and what it did in the same words.

`differs_in_buckets`, `differs_in_step`, `differs_in_stage` compare a case of `truth/megatron_fsdp/` with a simulation.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import small
from simcore.frameworks.megatron_fsdp.buckets import Bucket, rank_buckets
from simcore.placement.plan import Plan
from simcore.program.program import Program
from simcore.recording.tape import Op

MAIN = "main 2026-08-22"
SMALL: dict[str, Any] = {"hidden_size": 256, "vocab_size": 1024, "intermediate_size": 128, "num_hidden_layers": 2,
                         "num_attention_heads": 8, "num_key_value_heads": 4}
MOE: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {**MOE, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
                          "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
                          "num_key_value_heads": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2.5-7b", SMALL), "qwen3_moe": ("qwen3-30b-a3b", {**SMALL, **MOE, "num_experts": 8, "head_dim": 32}),
    "mixtral": ("mixtral-8x7b", {**SMALL, "num_local_experts": 8}),
    "deepseek_v2": ("deepseek-v2-lite", {**SMALL, **LATENT}),
    "deepseek_v3": ("deepseek-v3", {**SMALL, **LATENT, "q_lora_rank": 96}),
    "gpt2": ("gpt2", {"n_embd": 256, "n_head": 8, "n_layer": 2, "n_positions": 512, "vocab_size": 1024}),
}  # fmt: skip
UNIT = 2560
"""Elements of a unit's frozen bucket in the steps that were run; ours are larger, and not all alike."""
LAYER, ROW = 2192, 64
"""Elements of a unit and of a row in the stages that were run; their buckets are padded to ranks x rows."""
KEEPS: dict[str, Any] = {"deallocate_pipeline_outputs": False}
STARTS = {"fwd:begin": "forward", "bwd:begin": "backward", "opt:begin": "step"}
EVENTS = {("unsharded_bucket", Op.ALLOC): "gather", ("unsharded_bucket", Op.FREE): "release",
          ("unsharded_grad_bucket", Op.ALLOC): "fill", ("unsharded_grad_bucket", Op.FREE): "drop"}
WORDS = ("gather", "release", "fill", "reduce", "drop")


# ---- buckets --------------------------------------------------------------------------------------------------------
def bucket_plan(case: dict[str, Any]) -> Plan:
    preset, changed = FAMILIES[case["family"]]
    mesh = {"dp_shard": 8 // case["tp"], "tp": case["tp"]} | ({"ep": case["ep"], "etp": 1} if "experts" in str(changed)
                                                              else {})
    size = case["bucket_size"]
    options = {"overlap_grad_reduce": False} if size is None else {"bucket_size": size}
    adapters: dict[str, Any] = {} if "lora" not in case else {
        "version": "main 2026-08-22", "method": "lora",
        "lora": {"rank": case["lora"], "target_modules": case["targets"]}}
    return small.plan_of("megatron_fsdp", mesh, rank=case["rank"], model={"config": preset, "overrides": changed},
                         options=options, **adapters)


def _told(bucket: Bucket) -> tuple[int, bool, int, int, int]:
    return bucket.unit, bucket.axis == "expert_dp", bucket.chunked.chunk, bucket.numel, bucket.shard


def _told_upstream(bucket: dict[str, Any]) -> tuple[int, bool, int, int, int]:
    return bucket["unit"], bucket["expert"], bucket["chunk"], bucket["numel"], bucket["shard"]


def differs_in_buckets(case: dict[str, Any]) -> str:
    """Place where a rank's buckets are others than upstream's: their order, sizes or shapes; "" for the same."""
    plan = bucket_plan(case)
    buckets = rank_buckets(plan)
    if difference := _first_difference([_told(bucket) for bucket in buckets],
                                       [_told_upstream(bucket) for bucket in case["found"]]):
        return difference
    for number, (bucket, real) in enumerate(zip(buckets, case["found"], strict=True)):
        shapes = Counter(plan.of_layer(layer)[at].used_shape for layer, at in bucket.members)
        if shapes != Counter(tuple(shape) for _, shape, _ in real["tensors"]):
            return f"shapes in bucket {number}"
    return ""


def _first_difference(ours: list[Any], theirs: list[Any]) -> str:
    at = next((at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other),
              min(len(ours), len(theirs)))
    return "" if len(ours) == len(theirs) == at else f"at {at}: {ours[at:at + 4]} here, {theirs[at:at + 4]} upstream"


# ---- steps with adapters --------------------------------------------------------------------------------------------
def step_asked(case: dict[str, Any]) -> dict[str, Any]:
    """The same job here: layers without adapters are those that the target misses."""
    pattern = "".join("-" if layer in case["plain"] else "*" for layer in range(case["layers"]))
    model = ({"config": "nemotron-h-56b", "overrides": {
        "num_hidden_layers": case["layers"], "hybrid_override_pattern": pattern, "hidden_size": 256,
        "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024}}
             if case["plain"] else {"config": "llama-tiny", "overrides": {"num_hidden_layers": case["layers"]}})
    copies = case.get("copies", 1)
    given: dict[str, Any] = {
        "mesh": {"dp_shard": 8 // copies, "dp_replicate": copies}, "model": model, "version": MAIN, "method": "lora",
        "lora": {"rank": 4, "target_modules": ["linear_qkv", "linear_proj"]}}
    names = {"double_buffer": "fsdp_double_buffer", "gathers_first": "fsdp_all_gather_in_start_param_sync"}
    options = {option: case[key] for key, option in names.items() if key in case}
    options |= {"outer_dp_sharding_strategy": "optim"} if copies > 1 else {}
    if case["unit_size"] is not None:  # as many units ahead
        units = [b.numel for b in rank_buckets(small.plan_of("megatron_fsdp", options=options, **given)) if b.unit >= 0
                 and not b.trainable]
        options["suggested_communication_unit_size"] = max(1, case["unit_size"] // UNIT * min(units))
    return given | {"options": options}


def step_expected(case: dict[str, Any], kinds: tuple[str, ...]) -> list[str]:
    """The truth's events, with the layer of each bucket instead of its number; the root's are left out."""
    layers = [0] + [layer + 1 for layer in range(case["layers"]) for _ in range(1 + (layer not in case["plain"]))]
    events = case["found"]["events"] if "copies" in case else case["found"]
    found = []
    for event in events:
        word, _, number = event.partition(" ")
        if word in STARTS.values():
            found.append(word)
        elif word in kinds and layers[int(number)]:
            found.append(f"{word} {layers[int(number)]}")
    return found


def step_events(made: Program, layer_of: list[int], *, pooled: bool) -> list[str]:
    """As the truth spells them; where units share buffers gathers are recognised by their collectives."""
    owners = {slot: name for (name, _), slot in made.tables.slots.items()}
    comms = {number: key for key, number in made.tables.comms.items()}
    found = []
    for row in made.columns:
        op, layer, slot = Op(row[0]), int(row[1]), int(row[2])
        if op == Op.MARK:
            found.append(STARTS.get(made.event(row, 0), ""))
        elif op == Op.COLLECTIVE and comms[slot][1] != "dp_replicate":
            name, bucket = comms[slot][0], layer_of[layer] if layer < len(layer_of) else 0
            word = "reduce" if name == "reduce_scatter" else "gather" if pooled else ""
            found.append(f"{word} {bucket}" if word and bucket else "")
        elif (what := EVENTS.get((owners.get(slot, ""), op))) and layer and not pooled:
            found.append(f"{what} {layer}")
    found = [event for event in found if event]
    return found[found.index("forward"):]


def differs_in_step(case: dict[str, Any]) -> str:
    """Place where the events of a step with adapters are others than upstream's; "" for the same."""
    given, pooled = step_asked(case), bool(case.get("double_buffer"))
    layer_of = [bucket.first_layer for bucket in rank_buckets(small.plan_of("megatron_fsdp", **given))]
    made = small.program_of("megatron_fsdp", microbatches=case["microbatches"],
                            recompute="full" if case.get("recompute") else "none", **given)
    kinds = ("gather", "reduce") if pooled else ("gather", "release", "fill", "reduce", "drop")
    return _first_difference(step_events(made, layer_of, pooled=pooled), step_expected(case, kinds))


# ---- stages ---------------------------------------------------------------------------------------------------------
def stage_asked(version: str, case: dict[str, Any]) -> dict[str, Any]:
    """The same job here; layers without adapters are those that the target misses, on this stage alone."""
    stages, layers = case["stages"], case["layers"]
    given: dict[str, Any] = {
        "mesh": {"pp": stages, "dp_shard": 8 // stages}, "version": version, "microbatches": case["microbatches"],
        "rank": case["stage"] * (8 // stages),
        "model": {"config": "llama-tiny", "overrides": {"num_hidden_layers": stages * layers, "vocab_size": 1408}},
        "recompute": "full" if case.get("recompute") else "none"}
    if "plain" in case:
        at = [case["stage"] * layers + layer for layer in case["plain"]]
        given |= {"method": "lora", "lora": {"rank": 4, "target_modules": ["linear_qkv", "linear_proj"]}, "model": {
            "config": "nemotron-h-56b", "overrides": {
                "num_hidden_layers": stages * layers, "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024,
                "hybrid_override_pattern": "".join("-" if at_ in at else "*" for at_ in range(stages * layers)),
                "num_attention_heads": 4, "num_key_value_heads": 2}}}
    options = KEEPS | ({"fsdp_double_buffer": True} if case.get("double_buffer") else {})
    if case["unit_size"] is not None:  # as large beside a unit
        smallest = min(b.numel for b in rank_buckets(_plan(given | {"options": options}))
                       if b.unit >= 0 and b.trainable == ("plain" not in case))
        padding = ROW * 8 // stages
        options["suggested_communication_unit_size"] = case["unit_size"] if case["unit_size"] == 1 else (
            case["unit_size"] * smallest // (-(-LAYER // padding) * padding))
    return given | {"options": options}


def _plan(given: dict[str, Any]) -> Plan:
    return small.plan_of("megatron_fsdp", **given)


def _layers_of(case: dict[str, Any]) -> list[int]:
    """The layer of each of the truth's buckets on this stage, 0 for those of no unit."""
    plain, first = case.get("plain"), case["stage"] * case["layers"] + 1
    units = [first + layer for layer in range(case["layers"])
             for _ in range(1 + (plain is not None and layer not in plain))]
    return [0] * (case["stage"] == 0) + units + [0] * (case["stage"] == case["stages"] - 1)


def stage_expected(version: str, case: dict[str, Any], words: tuple[str, ...]) -> list[str]:
    found, untold = [], version == MAIN  # what is of no unit stays there, and is gathered again in place
    for event in case["found"]:
        word, _, number = event.partition(" ")
        if not number:
            found.append(word)
        elif word in words and not (untold and word in ("gather", "release") and not _layers_of(case)[int(number)]):
            found.append(f"{word} {_layers_of(case)[int(number)]}")
    return found


def stage_events(version: str, case: dict[str, Any], made: Program, plan: Plan) -> list[str]:
    """As the truth spells them; where units share buffers gathers are recognised by their collectives."""
    pooled, buckets = bool(case.get("double_buffer")), rank_buckets(plan)
    of_units = {layer for unit in plan.framework.units for layer, _ in unit.members}
    owners = {slot: name for (name, _), slot in made.tables.slots.items()}
    comms = {number: key for key, number in made.tables.comms.items()}
    found = []
    for row in made.columns:
        op, layer, slot = Op(row[0]), int(row[1]), int(row[2])
        word = ""
        if op == Op.MARK:
            found.append(STARTS.get(made.event(row, 0), ""))
        elif op == Op.COLLECTIVE and comms[slot][1] == "dp_cp":
            word = {"reduce_scatter": "reduce", "all_gather": "gather" * pooled}[comms[slot][0]]
            layer = buckets[layer].first_layer if word else 0
        elif not pooled:
            word = EVENTS.get((owners.get(slot, ""), op), "")
        where = layer if layer in of_units else 0
        if word and not (version == MAIN and word in ("gather", "release") and not where):
            found.append(f"{word} {where}")
    found = [event for event in found if event]
    return found[found.index("forward"):]


def differs_in_stage(version: str, case: dict[str, Any]) -> str:
    """Place where the events of a stage's step are others than upstream's; "" for the same."""
    given = stage_asked(version, case)
    words: tuple[str, ...] = ("gather", "reduce") if case.get("double_buffer") else WORDS
    words = words if case["stages"] < 8 else ()  # one rank has whole buffers
    plan = _plan(given)
    if plan.stage != case["stage"]:
        return f"stage {plan.stage}"
    made = small.program_of("megatron_fsdp", **given)
    return _first_difference(stage_events(version, case, made, plan), stage_expected(version, case, words))
