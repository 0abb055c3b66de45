"""One recipe of each format, in our own words, with all kinds of keys that the format reads; they need every answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["SAMPLES", "Sample"]


class Sample(NamedTuple):
    """Recipe of one format: `name` of its file, its text, and `--set` for what other files would say."""

    name: str
    text: str
    settings: Mapping[str, Any] = {}

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
    "axolotl": Sample("tune.yaml", """\
base_model: qwen3-8b
plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]
load_in_4bit: true
adapter: qlora
lora_r: 24
lora_alpha: 48
lora_dropout: 0.05
lora_target_linear: true
lora_mlp_kernel: true
lora_model_dir:
datasets:
  - path: some/answers
    type: alpaca
sequence_len: 768
sample_packing: true
eval_sample_packing: false
micro_batch_size: 3
gradient_accumulation_steps: 2
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
bf16: auto
tf32: true
attn_implementation: flash_attention_2
optimizer: paged_adamw_8bit
lr_scheduler: cosine
num_epochs: 2
val_set_size: 0.1
wandb_project:
special_tokens: {pad_token: <pad>}
"""),
    "llamafactory": Sample("factory.yaml", """\
model_name_or_path: Qwen/Qwen3-8B
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 24
lora_alpha: 48
lora_dropout: 0.05
lora_target: q_proj, k_proj
loraplus_lr_ratio: 8.0
quantization_bit: 4
quantization_method: bnb
double_quantization: false
flash_attn: fa2
neat_packing: true
packing: true
dataset: some_answers
template: qwen3
cutoff_len: 640
max_samples: 500
overwrite_cache: true
preprocessing_num_workers: 4
output_dir: out
logging_steps: 5
plot_loss: true
report_to: none
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
disable_gradient_checkpointing: false
use_reentrant_gc: false
learning_rate: 1.0e-4
lr_scheduler_type: cosine
warmup_ratio: 0.1
optim: paged_adamw_8bit
bf16: true
pure_bf16: false
enable_liger_kernel: false
use_unsloth: false
use_galore: false
galore_rank: 32
ddp_timeout: 1800
val_size: 0.1
image_max_pixels: 1024
resume_from_checkpoint: null
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
    "bridge": Sample("run_config.yaml", """\
_target_: megatron.bridge.training.config.ConfigContainer
train: {micro_batch_size: 2, global_batch_size: 64, train_iters: 100, manual_gc: true}
model:
  _target_: hf
  hf_model_id: qwen3-30b-a3b
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  context_parallel_size: 1
  expert_model_parallel_size: 4
  expert_tensor_parallel_size: 1
  sequence_parallel: true
  seq_length: 256
  moe_token_dispatcher_type: flex
  moe_flex_dispatcher_backend: deepep
  moe_permute_fusion: true
  recompute_granularity: selective
  recompute_modules: [core_attn]
  cross_entropy_loss_fusion: true
  cross_entropy_fusion_impl: te
  cuda_graph_impl: none
  apply_rope_fusion: true
peft: {_target_: megatron.bridge.peft.lora.LoRA, dim: 16, alpha: 32}
optimizer:
  optimizer: adam
  lr: 1e-4
  use_distributed_optimizer: true
  exp_avg_dtype: fp32
ddp: {grad_reduce_in_fp32: true, overlap_grad_reduce: true, overlap_param_gather: true, use_distributed_optimizer: true}
mixed_precision: bf16_mixed
comm_overlap: {tp_comm_overlap: false}
dataset: {seq_length: 256, num_workers: 2}
logger: {log_interval: 10}
checkpoint: {save_interval: 100}
"""),
    "accelerate": Sample("launch.yaml", """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: false
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
parallelism_config:
  parallelism_config_cp_size: 1
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 8
  parallelism_config_tp_size: 1
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: false
""", {"model": "qwen3-8b", "training.micro_batch_size": 2}),
    "deepspeed": Sample("zero.json", """\
{
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "offload_optimizer": {
      "device": "cpu",
      "pin_memory": true
    },
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": 40000000,
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "gradient_accumulation_steps": 4,
  "gradient_clipping": "auto",
  "steps_per_print": 50,
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": 3,
  "wall_clock_breakdown": false
}
""", {"model": "qwen3-8b"}),
    "config": Sample("config.json", """\
{
  "architectures": ["Qwen3ForCausalLM"],
  "attention_bias": false,
  "eos_token_id": 151645,
  "head_dim": 64,
  "hidden_act": "silu",
  "hidden_size": 256,
  "intermediate_size": 768,
  "max_position_embeddings": 512,
  "model_type": "qwen3",
  "num_attention_heads": 8,
  "num_hidden_layers": 4,
  "num_key_value_heads": 2,
  "tie_word_embeddings": false,
  "vocab_size": 1024
}
""", {"framework": "fsdp2", "training.method": "full"}),
    "trl": Sample("sft.yaml", """\
model_name_or_path: Qwen/Qwen3-8B
model_revision: main
dtype: bfloat16
attn_implementation: flash_attention_2
dataset_name: some/answers
dataset_num_proc: 4
learning_rate: 2.0e-4
lr_scheduler_type: cosine
max_length: 640
packing: true
packing_strategy: bfd
per_device_train_batch_size: 3
gradient_accumulation_steps: 2
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
bf16: true
optim: paged_adamw_8bit
use_peft: true
load_in_4bit: true
use_bnb_nested_quant: true
lora_r: 24
lora_alpha: 48
lora_dropout: 0.1
lora_target_modules: [q_proj, k_proj]
use_liger_kernel: false
loss_type: nll
ddp_bucket_cap_mb: 40
eval_strategy: steps
eval_steps: 20
logging_steps: 5
output_dir: out
report_to: none
fsdp: ""
seed: 7
"""),
    "nemo_rl": Sample("reward.yaml", """\
grpo:
  num_prompts_per_step: 8
  num_generations_per_prompt: 4
  max_num_steps: 100
  val_period: 10
  use_dynamic_sampling: false
  async_grpo: {enabled: false}
loss_fn: {reference_policy_kl_penalty: 0.02, force_on_policy_ratio: false, ratio_clip_min: 0.2}
checkpointing: {enabled: true, checkpoint_dir: results/mine}
policy:
  model_name: llama-3-8b
  tokenizer: {name: "${policy.model_name}"}
  hf_config_overrides: {}
  train_global_batch_size: 32
  train_micro_batch_size: 1
  logprob_batch_size: ${policy.train_micro_batch_size}
  max_total_sequence_length: 512
  precision: bfloat16
  logprob_chunk_size: null
  offload_optimizer_for_logprob: false
  dtensor_cfg:
    _v2: true
    enabled: true
    cpu_offload: false
    sequence_parallel: false
    activation_checkpointing: true
    tensor_parallel_size: 1
    context_parallel_size: 1
    custom_parallel_plan: null
    automodel_kwargs: {force_hf: true}
    lora_cfg:
      enabled: true
      match_all_linear: false
      target_modules: ["*_proj"]
      exclude_modules: []
      dim: 24
      alpha: 48
      dropout: 0.0
      dropout_position: post
      use_triton: true
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 2}
  dynamic_batching: {enabled: false}
  sequence_packing:
    enabled: true
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
    logprob_mb_tokens: ${mul:${..max_total_sequence_length}, ${..logprob_batch_size}}
  make_sequence_length_divisible_by: ${policy.dtensor_cfg.tensor_parallel_size}
  max_grad_norm: 1.0
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 5e-6, foreach: false, fused: false}}
  generation:
    backend: vllm
    max_new_tokens: ${policy.max_total_sequence_length}
    temperature: 1.0
    vllm_cfg:
      async_engine: false
      precision: ${policy.precision}
      kv_cache_dtype: auto
      tensor_parallel_size: 2
      pipeline_parallel_size: 1
      gpu_memory_utilization: 0.5
      max_model_len: ${policy.max_total_sequence_length}
      enforce_eager: false
      use_deep_gemm: false
    vllm_kwargs: {max_num_seqs: 64}
    colocated: {enabled: true, resources: {gpus_per_node: null, num_nodes: null}}
data: {train: {dataset_name: some/questions}}
env: {math: {num_workers: 2}}
logger: {wandb: {name: "mine-${policy.model_name}"}}
cluster: {gpus_per_node: 8, num_nodes: 2}
"""),
    "verl": Sample("supervised.yaml", """\
defaults:
  - sft_trainer
  - _self_
data:
  train_batch_size: 64
  micro_batch_size_per_gpu: 2
  max_length: 512
  train_files: some/questions.parquet
  prompt_key: question
  truncation: right
  multiturn: {enable: false}
model:
  partial_pretrain: qwen2.5-0.5b
  strategy: fsdp2
  fsdp_config: {model_dtype: fp32, wrap_policy: {min_num_params: 0}, cpu_offload: false}
  enable_gradient_checkpointing: true
  trust_remote_code: false
  lora_rank: 24
  lora_alpha: 48
  target_modules: all-linear
  use_liger: false
optim: {lr: 1e-5, betas: [0.9, 0.95], optimizer: AdamW, optimizer_impl: torch.optim}
ulysses_sequence_parallel_size: 1
use_remove_padding: false
trainer:
  default_local_dir: checkpoints/${trainer.experiment_name}
  experiment_name: mine
  n_gpus_per_node: 8
"""),
}
