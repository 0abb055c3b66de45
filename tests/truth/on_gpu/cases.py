"""Steps that are worth a GPU's minutes, the most valuable first. Each says in a scenario's words what it runs.

The makers read the scenario itself, so that a row cannot say something else than what ran.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MIXED = {"params": "fp32", "compute": "bf16", "grad_reduce": "fp32"}
PLAIN = {"params": "bf16", "compute": "bf16"}
FUSED = {"name": "adamw", "implementation": "fused"}
SMALL = {"llama-3.1-8b": ("llama-tiny", {}), "nemotron-3-nano-30b-a3b": ("nemotron-3-tiny", {}),
         "qwen3-30b-a3b": ("qwen3-30b-a3b", {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
                                             "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
                                             "moe_intermediate_size": 64, "vocab_size": 1024})}
"""Models of a try on a CPU, by that of the case: preset and what is overridden."""
SMALL_SEQ = 64
TOPOLOGIES = {
    "NVIDIA A100-SXM4-40GB": "dgx-a100-40gb", "NVIDIA A100-SXM4-80GB": "dgx-a100", "NVIDIA B200": "dgx-b200",
    "NVIDIA GeForce RTX 3090": "rtx-3090", "NVIDIA GeForce RTX 4090": "rtx-4090", "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA H100 80GB HBM3": "dgx-h100", "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H200": "dgx-h200",
    "NVIDIA H200 NVL": "h200-nvl", "NVIDIA L40S": "l40s"}
"""Topologies by torch's name of the GPU."""


@dataclass(frozen=True)
class Case:
    """One step. `needs`: modules without which it cannot run; `limit`: seconds after which it is given up.

    `kernels`: modules without which it runs, by other kernels than the scenario means; `otherwise`: which. `unsaid`:
    why no scenario says what it runs, "" where one does.
    """

    name: str
    maker: str
    scenario: dict[str, Any]
    needs: tuple[str, ...] = ("torch", "transformers")
    kernels: tuple[str, ...] = ()
    otherwise: str = ""
    unsaid: str = ""
    limit: int = 100

    def scenario_on(self, topology: str, *, small: bool) -> dict[str, Any]:
        """The scenario on a machine, or one of the same kind that a CPU runs in a second."""
        made = copy.deepcopy(self.scenario) | {"topology": topology}
        if small:
            preset, overrides = SMALL[made["model"]["config"]]
            depth = made["model"]["overrides"]
            depth |= {"num_hidden_layers": min(depth["num_hidden_layers"], 5)}
            made["model"] = {"config": preset, "overrides": overrides | depth}
            made["training"]["seq_len"] = SMALL_SEQ
        return made


def _case(name: str, maker: str, framework: str, model: str, overrides: dict[str, Any], training: dict[str, Any],
          options: dict[str, Any] | None = None, **more: Any) -> Case:
    batch = {"seq_len": 4096, "micro_batch_size": 1, "optimizer": FUSED}
    training = batch | training
    training["global_batch_size"] = training["micro_batch_size"]
    scenario = {"model": {"config": model, "overrides": overrides}, "framework": framework, "mesh": {},
                "training": training} | ({"framework_options": options} if options else {})
    return Case(name, maker, scenario, **more)


QLORA = {"method": "qlora", "lora": {"rank": 16, "target_modules": LINEARS}, "recompute": "full"}
PEFT, PACKED = ("torch", "transformers", "peft"), ("torch", "transformers", "peft", "bitsandbytes")
MAMBA = {"kernels": ("mamba_ssm", "causal_conv1d"), "otherwise": "Mamba-2 in plain torch, without mamba_ssm's kernels"}
FUSIONS = {"apply_rope_fusion": True, "bias_activation_fusion": True, "cross_entropy_loss_fusion": False,
           "gradient_accumulation_fusion": False}
ENGINE = {"needs": ("torch", "megatron.core", "transformer_engine.pytorch"), "limit": 150}
LLAMA, NANO, MIXTURE = "llama-3.1-8b", "nemotron-3-nano-30b-a3b", "qwen3-30b-a3b"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

CASES = {case.name: case for case in (
    _case("fsdp2-llama", "makers.fsdp2", "fsdp2", LLAMA, {"num_hidden_layers": 4},
          {"micro_batch_size": 2, "precision": MIXED}),
    _case("qlora-llama", "tuners.qlora", "ddp", LLAMA, {"num_hidden_layers": 32},
          {**QLORA, "precision": {"params": "fp32"}},
          {"prepare_model_for_kbit_training": True}, needs=PACKED, limit=180),
    _case("fsdp2-nemotron", "makers.fsdp2", "fsdp2", NANO, {"num_hidden_layers": 4, "hybrid_override_pattern": "MEM*"},
          {"precision": MIXED}, {"experts_implementation": "grouped_mm"}, **MAMBA),
    _case("plain-llama", "makers.process", "ddp", LLAMA, {"num_hidden_layers": 4}, {"precision": PLAIN}),
    _case("unsloth-llama", "tuners.unsloth", "ddp", LLAMA, {"num_hidden_layers": 32},
          {**QLORA, "offload": {"activations": "host"}, "precision": {"params": "bf16"}},
          {"FastLanguageModel": True}, needs=("torch", "unsloth", "bitsandbytes"), limit=240),
    _case("fsdp2-mixture", "makers.fsdp2", "fsdp2", MIXTURE, {"num_hidden_layers": 2}, {"precision": MIXED},
          {"experts_implementation": "grouped_mm"}),
    _case("fsdp2-llama-recompute", "makers.fsdp2", "fsdp2", LLAMA, {"num_hidden_layers": 4},
          {"seq_len": 8192, "recompute": "full", "precision": MIXED}),
    _case("megatron-llama", "megatron_core.megatron", "megatron", LLAMA, {"num_hidden_layers": 4},
          {"optimizer": {"name": "adam"}}, FUSIONS, **ENGINE),
    _case("plain-llama-lora", "makers.process", "ddp", LLAMA, {"num_hidden_layers": 16},
          {"method": "lora", "lora": {"rank": 16, "target_modules": LINEARS, "dtype": "bf16"}, "recompute": "full",
           "precision": PLAIN}, needs=PEFT),
    _case("megatron-llama-fp8", "megatron_core.megatron", "megatron", LLAMA, {"num_hidden_layers": 4},
          {"optimizer": {"name": "adam"}, "precision": {"compute": "fp8"}}, {**FUSIONS, "fp8_recipe": "tensorwise"},
          **ENGINE),
    _case("plain-llama-compile", "makers.process", "ddp", LLAMA, {"num_hidden_layers": 4}, {"precision": PLAIN},
          {"compile": True}, limit=200),
    _case("plain-nemotron-lora", "makers.process", "ddp", NANO,
          {"num_hidden_layers": 5, "hybrid_override_pattern": "MEM*E"},
          {"method": "lora", "lora": {"rank": 16, "target_modules": ATTENTION, "dtype": "bf16"}, "precision": PLAIN},
          {"experts_implementation": "grouped_mm"}, needs=PEFT, **MAMBA),
    _case("ddp-llama", "makers.ddp", "ddp", LLAMA, {"num_hidden_layers": 4}, {"precision": PLAIN},
          unsaid="DistributedDataParallel around one process, whose buckets no trainer makes"),
)}


def main(words: list[str]) -> None:
    """Prints the names of all cases, or the seconds that a case may take."""
    print(CASES[words[0]].limit if words else " ".join(CASES))


if __name__ == "__main__":
    main(sys.argv[1:])
