"""Distillation: the block `distillation`, and the block `teacher`, a policy that does not train.

NeMo RL 7ea279ab `algorithms/distillation.py` setup: Policy with init_optimizer False.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.nemo_rl.keys.switches import read_switches
from simcore.recipes.nemo_rl.other_model import check_alike, read_other, write_keys
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Says, read_rows

__all__ = ["read_distillation", "read_teacher"]

_AT: Final = "teacher"
_ALIKE: Final = {"framework": "workers of another kind than the policy's",
                 "framework_version": "another worker than the policy's",
                 "training.precision.compute": "another format than the policy's"}
_NEVER: Final = {"training.method": "adapters of a teacher", "training.offload": "a teacher that rests on the host",
                 "training.logprob_chunk_size": "logits of a teacher in chunks"}
_NAMES: Final = {"rl.logprob_batch_size": "rl.logprob_batch_size", "model": f"{_AT}.model",
                 "implementation": f"{_AT}.implementation", "training.sequence_parallel": f"{_AT}.sequence_parallel"}
_ROWS: Final = (
    Says("distillation.num_prompts_per_step", "rl.prompts"),
    Says("distillation.num_generations_per_prompt", "rl.generations"),
    Says("distillation.topk_logits_k", "teacher.top_k"),
    Off("loss_fn.zero_outside_topk", "an entropy over the whole vocabulary in the loss"),
    Idle(("loss_fn.*",), "which divergence of the same log-probabilities"),
    Idle(("distillation.val_*", "distillation.max_val_samples"), "validation: not part of a step"),
    Idle(tuple(f"distillation.{name}" for name in ("max_num_epochs", "max_num_steps", "seed")),
         "length of the run, and its seed"),
)


def read_distillation(reader: Reader, draft: Draft) -> None:
    """Reads the block of the step, and that of its loss."""
    read_switches(reader, draft, {"distillation.max_rollout_turns": "a sequence is counted as one answer of full "
                                  "length"})
    read_rows(reader, draft, _ROWS)


def read_teacher(reader: Reader, draft: Draft, gpus: Answer | None) -> None:
    """Writes the block `teacher`, whose model shares the `gpus` that train."""
    found = read_other(reader, draft, gpus, _AT)
    if found is not None:
        check_alike(draft, found, _AT, _ALIKE, _NEVER)
        write_keys(draft, found, _AT, _AT, _NAMES)
