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
}
