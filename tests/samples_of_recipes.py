"""One recipe of each format, in our own words, with all kinds of keys that the format reads; they need every answer."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["SAMPLES", "Sample"]


class Sample(NamedTuple):
    """Recipe of one format: `name` of its file, and its text."""

    name: str
    text: str

    def write(self, folder: Path) -> str:
        """Writes the file into a folder and returns its path."""
        path = folder / self.name
        path.write_text(self.text, encoding="utf-8")
        return str(path)


SAMPLES: Final[dict[str, Sample]] = {
    "automodel": Sample("mine.yaml", """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
seed: 7
step_scheduler: {global_batch_size: 48, local_batch_size: 3, max_steps: 40}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen3-8B
  torch_dtype: bf16
  backend: {rms_norm: te, linear: torch, enable_hf_state_dict_adapter: true}
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  dim: 24
  alpha: 48
  target_modules: "*_proj"
distributed:
  strategy: fsdp2
  dp_size: none
  dp_replicate_size: null
  tp_size: 1
  activation_checkpointing: true
  defer_fsdp_grad_sync: false
loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy, fp32_upcast: false}
dataset: {_target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset, dataset_name: some/questions}
dataloader: {_target_: torchdata.stateful_dataloader.StatefulDataLoader, shuffle: true}
packed_sequence: {packed_sequence_size: 0}
optimizer: {_target_: torch.optim.AdamW, lr: 2e-5, foreach: false}
"""),
    "megatron": Sample("arguments.yaml", """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
  CUBLAS_WORKSPACE_CONFIG: :4096:8
MODEL_ARGS:
  --num-layers: 8
  --hidden-size: 1024
  --num-attention-heads: 16
  --max-position-embeddings: 512
  --vocab-size: 32000
  --attention-dropout: 0.0
  --hidden-dropout: 0.0
  --swiglu: true
  --disable-bias-linear: true
  --normalization: RMSNorm
  --position-embedding-type: rope
  --untie-embeddings-and-output-weights: true
  --num-experts: 8
  --moe-router-topk: 2
  --moe-grouped-gemm: true
  --moe-token-dispatcher-type: alltoall
  --moe-router-load-balancing-type: aux_loss
  --seq-length: 256
  --micro-batch-size: 2
  --global-batch-size: 64
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 2
  --expert-model-parallel-size: 2
  --expert-tensor-parallel-size: 1
  --num-layers-per-virtual-pipeline-stage: 2
  --sequence-parallel: true
  --use-distributed-optimizer: true
  --overlap-grad-reduce: true
  --recompute-granularity: selective
  --recompute-modules: [core_attn]
  --bf16: true
  --transformer-impl: transformer_engine
  --lr: 1e-4
  --train-iters: 50
  --log-interval: 1
  --save: ${SAVE_PATH}
TEST_TYPE: regular
"""),
    "torchtitan": Sample("mine.toml", """\
[job]
description = "mine"

[model]
name = "qwen3"
flavor = "14B"
converters = []

[optimizer]
name = "AdamW"
lr = 2e-4
implementation = "foreach"

[training]
local_batch_size = 3
global_batch_size = 48  # three accumulated
seq_len = 256
max_norm = 1.0
dtype = "float32"
mixed_precision_param = "bfloat16"
mixed_precision_reduce = "float32"
dataset = "c4"

[training.dataloader]
num_workers = 2

[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "always"
tensor_parallel_degree = 1
disable_loss_parallel = false
pipeline_parallel_schedule = "Interleaved1F1B"
context_parallel_rotate_method = "allgather"
expert_parallel_degree = 1

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
early_stop = true

[compile]
enable = false
components = [
    "model",
    "loss",
]

[quantize.linear.float8]
filter_fqns = ["output"]

[checkpoint]
enable = false

[validation]
enable = false

[debug]
deterministic = true
"""),
}
