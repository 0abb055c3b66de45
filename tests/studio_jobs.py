"""A small job and a recipe of the studio's tests, and how they ask about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simcore.studio.searching import Ready
from simcore.studio.server import Lanes

__all__ = ["HERE", "IMAGES", "JOB", "OFFLOADED", "RECIPE", "UNSERVED", "Asked", "NoLanes"]

HERE: Final = "http://127.0.0.1:8765"
JOB: Final[dict[str, Any]] = {
    "name": "mine", "model": "llama-3.2-1b", "topology": "dgx-h100", "framework": "fsdp2", "mesh": {"dp_shard": 8},
    "training": {"seq_len": 2048, "global_batch_size": 8, "method": "full"}}
RECIPE: Final = """\
base_model: Qwen/Qwen3-8B
datasets: [{path: mine}]
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
attn_implementation: flash_attention_2
optimizer: adamw_torch_fused
"""
"""A recipe of axolotl that leaves GPUs and machine open."""
OFFLOADED: Final = """\
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_target_linear: true
gradient_checkpointing: offload
"""
"""Keys of a recipe of axolotl that waits on the host for what it does not replay, which is not modelled."""
UNSERVED: Final = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 8, local_batch_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: nvidia/Llama-3_3-Nemotron-Super-49B-v1
peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, target_modules: '*_proj', dim: 8, alpha: 32}
distributed: {strategy: fsdp2, tp_size: 1, cp_size: 1}
loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}
optimizer: {_target_: torch.optim.Adam, lr: 1.0e-5}
"""
"""A recipe of Automodel whose model has no layers there; it leaves GPUs, machine and length open."""
IMAGES: Final = """\
recipe: FinetuneRecipeForVLM
step_scheduler: {global_batch_size: 8, local_batch_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForImageTextToText.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct
  attn_implementation: sdpa
freeze_config: {freeze_embeddings: false, freeze_vision_tower: true, freeze_language_model: false}
distributed: {strategy: fsdp2, dp_size: none, tp_size: 1, cp_size: 1}
loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}
dataset: {_target_: nemo_automodel.components.datasets.vlm.datasets.make_rdr_dataset}
optimizer: {_target_: torch.optim.AdamW, lr: 1.0e-5}
"""
"""A recipe of Automodel over samples with images, whose size it leaves open."""
Asked = Callable[..., Any]


class NoLanes(Lanes):
    """A studio without worker processes."""

    def __init__(self) -> None:
        self._lanes, self.searches, self.ready = {}, set(), Ready()

    def of(self, kind: str) -> None:
        return None
