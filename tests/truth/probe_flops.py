"""FLOPs of a batch by the formulas that Automodel, Megatron-Bridge and torchtitan print TFLOP/s with.

    python tests/truth/probe_flops.py > tests/truth/flops/formulas.json

Every preset goes through `get_flops_formula_for_hf_config` (Automodel, with transformers' own class of configuration)
and `num_floating_point_operations` (Megatron-Bridge, with the fields that its providers have), two rows of 4096 tokens.
What a formula does not know is left out. torchtitan counts its own models of the same names on the meta device.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from json_lines import by_name
from nemo_automodel.components.utils.flops_utils import _nemotronh_mtp_flops, get_flops_formula_for_hf_config
from oracle import titan  # noqa: F401 - torchtitan's Triton kernels are replaced
from torchtitan.models.deepseek_v3 import DeepSeekV3Model, deepseekv3_args
from torchtitan.models.gpt_oss import GptOssModel, gptoss_configs
from torchtitan.models.llama3 import Transformer, llama3_args
from torchtitan.models.qwen3 import Qwen3Model, qwen3_args

PRESETS = Path(__file__).resolve().parents[2] / "simcore" / "models" / "presets"
ROWS, SEQ = 2, 4096
WITH_FURTHER = ("deepseek-v3", "nemotron-3-super-120b-a12b", "nemotron-3-ultra-550b-a55b")

OF_TORCHTITAN = {
    "llama-3-8b": (Transformer, llama3_args["8B"]), "llama-3-70b": (Transformer, llama3_args["70B"]),
    "qwen3-8b": (Qwen3Model, qwen3_args["8B"]), "qwen3-30b-a3b": (Qwen3Model, qwen3_args["30B-A3B"]),
    "deepseek-v2-lite": (DeepSeekV3Model, deepseekv3_args["16B"]),
    "deepseek-v3": (DeepSeekV3Model, deepseekv3_args["671B"]),
    **{f"gpt-oss-{size}": (GptOssModel, gptoss_configs[size]) for size in ("20b", "120b")}}


def torchtitan(model: type[torch.nn.Module], args: Any) -> float:
    """FLOPs of the batch."""
    args.moe_impl = "standard"
    with torch.device("meta"):
        _, of_token = args.get_nparams_and_flops(model(args), SEQ)
    return float(of_token * ROWS * SEQ)


def from_file(name: str) -> ModuleType:
    """A file of Megatron-Bridge by itself: its package asks for Transformer Engine, these functions do not."""
    path = importlib.metadata.distribution("megatron-bridge").locate_file(f"{name.replace('.', '/')}.py")
    spec = importlib.util.spec_from_file_location(name, str(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def bridge_formula() -> Any:
    """`num_floating_point_operations`, with Bridge's own padding of vocabularies; what it imports of data is left."""
    for name, word in (("data.datasets.packing_utils", "calculate_avg_seqlen"), ("peft.lora", "LoRA"),
                       ("training.config", "ConfigContainer"), ("utils.common_utils", "print_rank_0")):
        sys.modules[f"megatron.bridge.{name}"] = stub = ModuleType(name)
        setattr(stub, word, type(word, (), {}))
    for package in ("megatron.bridge", "megatron.bridge.data", "megatron.bridge.data.datasets", "megatron.bridge.peft",
                    "megatron.bridge.training", "megatron.bridge.utils"):
        sys.modules[package] = ModuleType(package)
    from_file("megatron.bridge.utils.vocab_utils")
    return from_file("megatron.bridge.training.utils.flop_utils").num_floating_point_operations


class NemotronHConfig(SimpleNamespace):
    """As the model's own repository has it: the formula is found by the name of the class."""


def hf_config(fields: dict[str, Any]) -> Any:
    """The configuration as Automodel sees it."""
    if fields["model_type"] == "nemotron_h":
        return NemotronHConfig(**fields)
    rest = {name: value for name, value in fields.items() if name != "model_type"}
    return transformers.AutoConfig.for_model(fields["model_type"], **rest)


def automodel(fields: dict[str, Any]) -> float | None:
    """FLOPs of the batch; None without a formula."""
    config = hf_config(fields)
    formula = get_flops_formula_for_hf_config(config)
    return None if formula is None else float(formula(config, gbs=ROWS, seq_len=SEQ))


def shared(fields: dict[str, Any], one: int) -> int | None:
    """Width of the shared expert, by the names that families have for it."""
    given = fields.get("moe_shared_expert_intermediate_size") or fields.get("shared_expert_intermediate_size")
    return given or one * fields.get("n_shared_experts", 0) or None


def provider(fields: dict[str, Any]) -> SimpleNamespace:
    """What Bridge's providers call it."""
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    experts = fields.get("n_routed_experts") or fields.get("num_local_experts") or fields.get("num_experts")
    hybrid = fields["model_type"] == "nemotron_h"
    one = fields.get("moe_intermediate_size") or fields["intermediate_size"]
    dense = fields.get("first_k_dense_replace", 0)
    divisor = next(number for number in (128, 64, 32, 16, 8, 4, 2, 1) if fields["vocab_size"] % number == 0)
    given = SimpleNamespace(
        seq_length=SEQ, hidden_size=hidden, num_layers=fields["num_hidden_layers"], num_attention_heads=heads,
        num_query_groups=fields.get("num_key_value_heads"), vocab_size=fields["vocab_size"],
        kv_channels=fields.get("head_dim") or hidden // heads, ffn_hidden_size=fields["intermediate_size"],
        num_moe_experts=experts, moe_ffn_hidden_size=one if experts else None, gated_linear_unit=not hybrid,
        activation_func=F.gelu if fields["model_type"] == "gpt_oss" else F.silu, mtp_num_layers=fields.get("mtp"),
        moe_router_topk=fields.get("num_experts_per_tok", 2), moe_shared_expert_intermediate_size=shared(fields, one),
        moe_layer_freq=[0] * dense + [1] * (fields["num_hidden_layers"] - dense), make_vocab_size_divisible_by=divisor,
        tensor_model_parallel_size=1, multi_latent_attention="kv_lora_rank" in fields, is_hybrid_model=hybrid)
    if hybrid:
        given.hybrid_override_pattern = fields["hybrid_override_pattern"]
        given.mamba_state_dim, given.mamba_head_dim = fields["ssm_state_size"], fields["mamba_head_dim"]
        given.mamba_num_groups, given.mamba_num_heads = fields["n_groups"], fields["mamba_num_heads"]
        given.moe_latent_size = fields.get("moe_latent_size")
    if "kv_lora_rank" in fields:
        given.q_lora_rank, given.kv_lora_rank = fields["q_lora_rank"], fields["kv_lora_rank"]
        given.qk_head_dim, given.qk_pos_emb_head_dim = fields["qk_nope_head_dim"], fields["qk_rope_head_dim"]
        given.v_head_dim = fields["v_head_dim"]
    return given


def bridge(num_floating_point_operations: Any, fields: dict[str, Any]) -> float:
    """FLOPs of the batch."""
    return float(num_floating_point_operations(SimpleNamespace(model=provider(fields)), ROWS))


def further(fields: dict[str, Any]) -> dict[str, float]:
    """With `mtp` further tokens: of DeepSeek-V3 Bridge counts them, of hybrids Automodel's benchmark does."""
    if fields["model_type"] == "nemotron_h":
        added = _nemotronh_mtp_flops(hf_config(fields), ROWS, SEQ, fields["mtp"], ["attention", "moe"], True)
        return {"automodel": (automodel(fields) or 0) + added}
    return {"megatron-bridge up to 0.4": bridge(bridge_formula(), fields)}


def main() -> None:
    """One row a preset."""
    formula = bridge_formula()
    rows: dict[str, dict[str, float]] = {}
    for path in sorted(PRESETS.glob("*.json")):
        fields = json.loads(path.read_text(encoding="utf-8"))
        if "hidden_size" not in fields:  # GPT-2 has names of its own
            continue
        found = {"automodel": automodel(fields), "megatron-bridge up to 0.4": bridge(formula, fields)}
        if path.stem in OF_TORCHTITAN:
            found["torchtitan"] = torchtitan(*OF_TORCHTITAN[path.stem])
        rows[path.stem] = {name: flops for name, flops in found.items() if flops is not None}
        if path.stem in WITH_FURTHER:
            rows[f"{path.stem} mtp"] = further(fields | {"mtp": 2})
    print(f"{{\n{by_name(rows)}\n}}")


if __name__ == "__main__":
    main()
