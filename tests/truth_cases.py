"""Scenarios of the stored truth: the cases that the real frameworks ran, in rankscope's words."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from checkout import ROOT
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario

TRUTH = ROOT / "tests/truth"
WRAPS = {"titan": "separate_embedding_head", "embedding": "separate_embedding"}
"""Value of the option `wrap` by the probe's word."""
GROUPS = ("groups/megatron-core-0.16.1.json", "groups/automodel-0.7.0.json", "groups/torchtitan-0.2.2.json")
DTYPES = {"float32": "fp32", "bfloat16": "bf16", None: None}


def rows(name: str) -> list[dict[str, Any]]:
    """Rows of a truth file."""
    loaded: list[dict[str, Any]] = json.loads((TRUTH / name).read_text(encoding="utf-8"))
    return loaded


def told_layouts(where: str) -> tuple[int, ...]:
    """Numbers that the page's table of layouts has of a file: drawn, exact, and the others as the table has them."""
    page = (TRUTH / "README.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.endswith(f"| `{where}` |"))
    return tuple(map(int, re.findall(r"[0-9]+", "|".join(row.split("|")[2:4]))))


def joined(sizes: Mapping[str, int], names: Mapping[str, str], elsewhere: Collection[str]) -> Counter[str]:
    """Bytes by category, some of them under another of `names`, without those that are `elsewhere`."""
    found: Counter[str] = Counter()
    for name, size in sizes.items():
        if name not in elsewhere:
            found[names.get(name, name)] += size
    return found


def scenario(data: dict[str, Any]) -> Scenario:
    """A scenario from plain data."""
    return parse_scenario(parse_document(json.dumps(data), "truth.json"))


def automodel(case: dict[str, Any], name: str = "truth") -> Scenario:
    """A case of the Automodel probe."""
    training: dict[str, Any] = {"seq_len": 512 if "preset" in case else 2048}
    if case.get("dtype"):
        training["precision"] = {"params": DTYPES[case["dtype"]]}
    _add_lora(case, training)
    options = {"reshard_after_forward": case["reshard_after_forward"]} if "reshard_after_forward" in case else {}
    data = _base(case, name, "automodel", training) | {"framework_options": options}
    return scenario(data | ({"implementation": "hf"} if case.get("force_hf") else {}))


def megatron(case: dict[str, Any], name: str = "truth", version: str = "auto") -> Scenario:
    """A case of the Megatron probe."""
    training: dict[str, Any] = {"seq_len": 512 if "preset" in case else 4096}
    if "sp" in case:
        training["sequence_parallel"] = case["sp"]
    _add_formats(case, training)
    _add_lora(case, training)
    if case.get("vpp"):
        training["pipeline"] = {"virtual_stages": case["vpp"]}
    if case.get("vpp") or case.get("layout"):
        replicas = case["world"] // (case["pp"] * case.get("tp", 1) * case.get("cp", 1))
        training["global_batch_size"] = 2 * case["pp"] * replicas
    data = _base(case, name, "megatron", training)
    if "kv_groups" in case:
        data["model"] = {"config": data["model"], "overrides": {"num_key_value_heads": case["kv_groups"]}}
    options: dict[str, Any] = {f"num_layers_in_{k}_pipeline_stage": case[k] for k in ("first", "last") if case.get(k)}
    options |= {f"account_for_{k}_in_pipeline_split": True for k in ("embedding", "loss") if case.get(f"account_{k}")}
    named = {"distributed": "use_distributed_optimizer", "fused": "apply_rope_fusion", "grouped": "moe_grouped_gemm",
             "layout": "pipeline_model_parallel_layout"}
    options |= {option: case[key] for key, option in named.items() if key in case}
    return scenario(data | {"framework_options": options, "framework_version": version})


def _add_formats(case: dict[str, Any], training: dict[str, Any]) -> None:
    """16 bits of one kind or the other, and gradients in them or in fp32."""
    narrow = "fp16" if case.get("dtype") == "float16" else "bf16"
    precision = {"compute": narrow} if narrow == "fp16" else {}
    if case.get("grad_fp32") is False:
        precision["grad_reduce"] = narrow
    if precision:
        training["precision"] = precision


def _base(case: dict[str, Any], name: str, framework: str, training: dict[str, Any]) -> dict[str, Any]:
    degrees = {k: case[k] for k in ("pp", "dp_replicate", "cp", "tp", "ep", "etp") if case.get(k)}
    others = degrees.get("pp", 1) * degrees.get("dp_replicate", 1) * degrees.get("cp", 1) * degrees.get("tp", 1)
    degrees["dp_shard"] = max(1, case["world"] // others)
    model: Any = case.get("preset", "nemotron-3-nano-30b-a3b")
    if case.get("fields"):
        model = {"config": model, "overrides": case["fields"]}
    return {"name": name, "model": model, "framework": framework, "topology": "dgx-h100", "mesh": degrees,
            "training": training}


def _add_lora(case: dict[str, Any], training: dict[str, Any]) -> None:
    if not case.get("lora"):
        return
    lora: dict[str, Any] = {"rank": case["lora"]}
    if case.get("target_modules"):
        lora["target_modules"] = case["target_modules"]
    if case.get("exclude_modules"):
        lora["exclude_modules"] = case["exclude_modules"]
    if case.get("share_expert_adapters") is False:
        lora["expert_adapters"] = "per_expert"
    training |= {"method": "lora", "lora": lora}


def fsdp2(spec: dict[str, Any], name: str = "truth") -> Scenario:
    """A case of the FSDP2 probe (its README has the keys)."""
    world, copies, accum = spec.get("world", 8), spec.get("dp_replicate", 1), spec.get("grad_accum", 1)
    store = DTYPES[spec.get("store_dtype", "float32")]
    compute = DTYPES[spec.get("mp_param", "bfloat16")] or store
    reduce = DTYPES[spec.get("mp_reduce", "float32")] or compute
    batch, shared = spec.get("batch", 1), spec.get("cp", 1) * spec.get("tp", 1)
    training: dict[str, Any] = {
        "seq_len": spec.get("seq", 4096), "micro_batch_size": batch,
        "global_batch_size": batch * world // shared * accum,
        "recompute": "none" if spec.get("ac", "none") == "none" else "full",
        "precision": {"params": store, "compute": compute, "grad_reduce": reduce},
        "optimizer": _optimizer(spec.get("optim", "adamw_foreach")),
        "loss": "hf_keep_logits" if spec.get("loss") == "hf" else "hf",
    }
    if spec.get("frozen"):
        training["frozen"] = spec["frozen"]
    if spec.get("packed"):
        training |= {"lengths": "packed", "packed_length": spec["packed"]}
    if spec.get("lora"):
        lora = spec["lora"]
        training |= {"method": "lora", "lora": {"rank": lora["r"], "target_modules": lora["targets"],
                                                "dtype": DTYPES[lora.get("dtype")] or store}}
    model = spec["model"]
    presets = {"nemotron3-nano-30b-a3b": "nemotron-3-nano-30b-a3b", "nemotron3-tiny": "nemotron-3-tiny"}
    preset = presets.get(model["preset"], model["preset"])
    return scenario({
        "name": name, "framework": "fsdp2", "topology": "dgx-h100", "training": training,
        "model": {"config": preset, "overrides": model["overrides"]} if model.get("overrides") else preset,
        "mesh": {"dp_replicate": copies, "dp_shard": world // copies // shared, **{
            axis: spec.get(axis, 1) for axis in ("cp", "tp", "ep")}},
        "framework_options": _fsdp2_options(spec),
    })


def _optimizer(name: str) -> dict[str, Any]:
    if name in ("sgd", "none"):
        return {"name": "sgd"}
    return {"name": "adamw", "implementation": {"adamw_forloop": "for_loop"}.get(name, name.removeprefix("adamw_"))}


def _fsdp2_options(spec: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"wrap": WRAPS.get(spec.get("wrap", ""), "layers_root"),
                               "sync_gradients": spec.get("accum_sync", "last")}
    for theirs, ours in (("reshard", "reshard_after_forward"), ("set_last_reshard",) * 2, ("prefetch",) * 2,
                         ("experts_implementation",) * 2):
        if spec.get(theirs) is not None:
            options[ours] = spec[theirs]
    sizes = spec["model"].get("overrides", {})
    dense = max(len(sizes.get("mlp_only_layers", ())), sizes.get("first_k_dense_replace", 0))
    if dense >= sizes.get("num_hidden_layers", dense + 1):
        options.pop("experts_implementation", None)  # refused where all layers are dense; transformers takes it
    if spec.get("packed"):
        options["attn_implementation"] = "flash_attention_2"
    if spec.get("ac") == "hf":
        options["recompute_by"] = "transformers"
    if spec.get("is_last"):
        options["set_is_last_backward"] = spec["is_last"]
    if spec.get("optim_in_bwd"):
        options["optimizer_in_bwd"] = True
    if spec.get("ep", 1) > 1:
        ways = {"dtensor": "fully_shard", "exchange": "ep_dispatch_experts"}
        options["experts"] = ways.get(spec.get("ep_mode", "ignored"), "ignored")
    return options
