"""Sequences that are generated at once, and how often they are trained on.

[Note: GRPO's batches] TRL 1.16.0 `trainer/grpo_config.py` __post_init__: a generation batch has
`per_device_train_batch_size` x ranks x `steps_per_generation` sequences, by default as many steps as gradients are
accumulated over; either of both may be said.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.trl.grpo.releases import Turn

__all__ = ["Generated", "read_generated", "read_micro"]

_CONFIG: Final = "trainer/grpo_config.py"
_TRAINER: Final = "transformers 5.23.0"
Generated = tuple[int, int, int]
"""(sequences that are generated at once, those of an optimizer step, how often each is trained on)."""


def read_micro(reader: Reader, draft: Draft) -> None:
    """Writes the microbatch."""
    micro = reader.integer("per_device_train_batch_size")
    if micro is not None:
        draft.put("training.micro_batch_size", micro)
    else:
        draft.default("training.micro_batch_size", 8, _TRAINER, "training_args.py per_device_train_batch_size")


def read_generated(reader: Reader, draft: Draft, turn: Turn) -> Generated | None:
    """Writes prompts, generations and epochs of a step; None where the number of ranks is open."""
    batch, steps = reader.integer("generation_batch_size"), reader.integer("steps_per_generation")
    each, epochs = reader.integer("num_generations"), reader.integer("num_iterations")
    if epochs is not None:
        draft.put("rl.epochs", epochs)
    if batch is not None and steps is not None:
        draft.fail(batch.where, "'generation_batch_size' and 'steps_per_generation' can not be both configured at the "
                                f"same time ({turn.name} {_CONFIG})")
    if each is not None:
        draft.put("rl.generations", each)
    else:
        draft.default("rl.generations", 8, turn.name, _CONFIG)
    number = each.value if each is not None else 8
    if number < 2:
        draft.fail(each.where if each else draft.path, "GRPO requires at least 2 generations per prompt to calculate "
                                                       f"the advantages ({turn.name} {_CONFIG})")
        number = 2
    mesh, training = draft.values.get("mesh", {}), draft.values.get("training", {})
    if not mesh:
        draft.use(batch, steps, why="sequences that are generated at once, by so many ranks as are asked for")
        return None
    ranks = mesh.get("dp_shard", 1) * mesh.get("dp_replicate", 1)
    width = training["micro_batch_size"] * ranks
    if "global_batch_size" not in training:
        draft.default("training.global_batch_size", width, _TRAINER, "training_args.py: gradient_accumulation_steps 1")
    step = draft.values["training"]["global_batch_size"]
    generated = batch.value if batch is not None else width * steps.value if steps is not None else step
    _check(draft, generated, (width, number), batch or steps or each, turn)
    draft.infer("rl.prompts", max(1, generated // number), f"{generated:,} sequences at once, {number} of a prompt",
                batch, steps, each, source=f"{turn.name} {_CONFIG} __post_init__")
    return generated, step, epochs.value if epochs is not None else 1


def _check(draft: Draft, generated: int, parts: tuple[int, int], said: Taken[int] | None, turn: Turn) -> None:
    """Tells of sequences at once that `parts`, (sequences of all ranks' microbatches, of a prompt), do not divide."""
    width, number = parts
    where = said.where if said else draft.path
    if generated % width:
        draft.fail(where, f"generation_batch_size ({generated}) must be divisible by the global batch size ({width}) "
                          f"({turn.name} {_CONFIG})")
    if generated % number:
        draft.fail(where, f"generation_batch_size ({generated}) must be divisible by num_generations ({number}) "
                          f"({turn.name} {_CONFIG})")
