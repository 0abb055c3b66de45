"""Small recipes and scenarios that the examples of rules are lines of."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["BASES", "Base", "with_lines"]


class Base(NamedTuple):
    """A file that breaks no rule; each of its top-level keys is one line, but of TOML. `gpus`: its processes."""

    name: str
    text: str
    gpus: int = 8


_AXOLOTL: Final = """\
base_model: Qwen/Qwen3-8B
datasets: [{path: some/answers, type: alpaca}]
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 2
bf16: true
attn_implementation: flash_attention_2
optimizer: adamw_bnb_8bit
"""
BASES: Final[dict[str, Base]] = {
    "axolotl": Base("tune.yaml", _AXOLOTL),
    "axolotl-fsdp1": Base("tune.yaml", f"{_AXOLOTL}fsdp_version: 1\n"
                                       "fsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n"),
    "trl": Base("sft.yaml", """\
model_name_or_path: Qwen/Qwen3-8B
dtype: float32
attn_implementation: flash_attention_2
dataset_name: some/answers
max_length: 1024
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
optim: adamw_torch_fused
"""),
    "accelerate": Base("launch.yaml", """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""),
    "deepspeed": Base("zero.json", """\
bf16: {enabled: true}
zero_optimization: {stage: 3}
train_micro_batch_size_per_gpu: 2
gradient_accumulation_steps: 2
"""),
    "automodel": Base("mine.yaml", """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 32, local_batch_size: 1}
model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path: Qwen/Qwen3-8B}
distributed: {strategy: fsdp2}
packed_sequence: {packed_sequence_size: 4096}
dataset: {_target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset, dataset_name: some/answers}
optimizer: {_target_: torch.optim.AdamW, lr: 2.0e-5}
"""),
    "megatron": Base("arguments.yaml", """\
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS: {--num-layers: 8, --hidden-size: 1024, --num-attention-heads: 16, --seq-length: 256, --bf16: true, \
--max-position-embeddings: 512, --vocab-size: 32000, --micro-batch-size: 2, --global-batch-size: 64, --swiglu: true, \
--normalization: RMSNorm, --disable-bias-linear: true, --position-embedding-type: rope, --attention-dropout: 0.0, \
--hidden-dropout: 0.0, --untie-embeddings-and-output-weights: true, --transformer-impl: transformer_engine{more}}
"""),
    "torchtitan": Base("mine.toml", """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
[activation_checkpoint]
mode = "none"
"""),
    "scenario": Base("mine.yaml", """\
name: mine
model: qwen3-8b
framework: fsdp2
topology: dgx-h100
mesh: {dp_shard: 8}
training: {seq_len: 2048, global_batch_size: 16}
"""),
}
"""Bases by name."""


def with_lines(base: str, lines: str) -> str:
    """Text of a base with lines added, each in the place of those with the same top-level key.

    Lines that begin with `--` are arguments among those of the base.
    """
    text = BASES[base].text
    if lines.startswith("--"):
        return text.replace("{more}", f", {lines}")
    keys = set(re.findall(r"(?m)^([\w-]+):", lines))
    kept = [line for line in text.replace("{more}", "").splitlines() if line.partition(":")[0] not in keys]
    return "\n".join([*kept, *lines.splitlines(), ""])
