"""Keys of Automodel's recipes on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from typing import Final

from simcore.recipes.rows import Idle

__all__ = ["WITHOUT_EFFECT"]

WITHOUT_EFFECT: Final = (
    Idle(("seed", "rng.*", "ranked"), "random numbers"),
    Idle(("wandb.*", "mlflow.*", "comet.*", "nvtx", "benchmark.*", "logging.*", "moe_metrics.*"),
        "logging and measuring"),
    Idle(("ci.*",), "Automodel's own tests"),
    Idle(("skypilot.*", "slurm.*"), "the launcher"),
    Idle(("dist_env.*",), "how ranks find each other"),
    Idle(("parallelizer.*", "autopipeline.*", "distributed_config.*"), "nothing reads this block: it is that of "
         "releases before the block distributed"),
    Idle(("lr_scheduler.*",), "values of the learning rate"),
    Idle(("clip_grad_norm.*",), "the norm is taken and gradients are multiplied whatever it says (null: 1.0): neither "
         "is timed"),
    Idle(("checkpoint.*",), "reading and writing files: not part of a step"),
    Idle(("validation_*", "_validation_*", "tool_call_eval.*"), "validation: not part of a step"),
    Idle(("step_scheduler.*",), "length of the run: not part of a step"),
    Idle(("tokenizer.*", "_*_chat_template"), "which tokens a text becomes"),
    Idle(("dataset.*",), "which samples are read; their length is training.seq_len"),
    Idle(("dataloader.*", "longalign"), "how samples are read, on the host"),
    Idle(("prewarm.*", "embedding_row_repair.*"), "before the first step"),
)
