"""Keys of Automodel's recipes on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["WITHOUT_EFFECT", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """Patterns of dotted keys, and why they change nothing here."""

    keys: tuple[str, ...]
    why: str


WITHOUT_EFFECT: Final = (
    Row(("seed", "rng.*", "ranked"), "random numbers"),
    Row(("wandb.*", "mlflow.*", "comet.*", "nvtx", "benchmark.*", "logging.*", "moe_metrics.*"),
        "logging and measuring"),
    Row(("ci.*",), "Automodel's own tests"),
    Row(("skypilot.*", "slurm.*"), "the launcher"),
    Row(("dist_env.*",), "how ranks find each other"),
    Row(("lr_scheduler.*",), "values of the learning rate"),
    Row(("clip_grad_norm.*",), "gradients are clipped by norm in any case (max_norm 1.0 by default)"),
    Row(("checkpoint.*",), "reading and writing files: not part of a step"),
    Row(("validation_*", "_validation_*", "tool_call_eval.*"), "validation: not part of a step"),
    Row(("step_scheduler.*",), "length of the run: not part of a step"),
    Row(("tokenizer.*", "_*_chat_template"), "which tokens a text becomes"),
    Row(("dataset.*",), "which samples are read; their length is training.seq_len"),
    Row(("dataloader.*", "longalign"), "how samples are read, on the host"),
    Row(("prewarm.*", "embedding_row_repair.*"), "before the first step"),
)
