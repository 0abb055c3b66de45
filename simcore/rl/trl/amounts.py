"""Sequences, passes and optimizer steps of TRL's GRPO, between one generation and the next.

[Note: one cycle]
TRL 1.16.0 `trainer/grpo_trainer.py` _prepare_inputs: every `steps_per_generation` x `num_iterations` microbatches
sequences are generated (a generation batch: `rl.prompts` x `rl.generations`), scored as a whole, and cut into
microbatches, each of which trains once an iteration. An optimizer step has `gradient_accumulation_steps` microbatches.
A step of the report is the longer of both: several optimizer steps behind one generation, or several generations in one
optimizer step, of which all but the first are beside gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario

__all__ = ["Amounts", "amounts_of"]

_RULE = "TRL 1.16.0 trainer/grpo_config.py"


@dataclass(frozen=True, slots=True)
class Amounts:
    """Amounts of one step: `generated` sequences at once, `cycles` times; `batch` sequences in each of `steps`.

    `per_rank`: sequences that a rank has of those that are generated at once. `prompt`, `new`: tokens of a prompt and
    of an answer.
    """

    generated: int
    cycles: int
    batch: int
    steps: int
    per_rank: int
    prompt: int
    new: int

    @property
    def sequences(self) -> int:
        """Sequences that are generated in the step."""
        return self.generated * self.cycles


def amounts_of(scenario: Scenario, rl: Rl) -> Amounts:
    """Amounts of a scenario's step; InputError, IllegalLayout or NotYet for those that do not fit each other."""
    training, mesh = scenario.training, scenario.mesh
    ranks = mesh.dp_replicate * mesh.dp_shard
    width, generated = training.micro_batch_size * ranks, rl.prompts * rl.generations
    batch = training.global_batch_size or generated
    if rl.generations == 1:
        raise IllegalLayout(Problem(scenario.where("rl", "generations"), "generations: 1: GRPO requires at least 2 "
                                    "generations per prompt to calculate the advantages", f"{_RULE}:1139"))
    if generated % width:
        raise IllegalLayout(Problem(scenario.where("rl", "prompts"), f"prompts x generations = {generated:,}: must be "
                                    f"divisible by the global batch size ({width:,}: micro_batch_size x ranks)",
                                    f"{_RULE}:1105"))
    if batch % width:
        raise InputError(Problem(scenario.where("training", "global_batch_size"), f"global_batch_size: expected a "
                                 f"multiple of micro_batch_size x ranks = {width:,}, got {batch:,}"))
    trained = generated * rl.epochs
    if trained % batch and batch % trained:
        raise NotYet(Problem(scenario.where("training", "global_batch_size"), f"not yet: optimizer steps of {batch:,} "
                             f"sequences, of which {trained:,} are trained on between two generations: neither "
                             "divides the other"))
    if rl.prompt_tokens >= training.seq_len:
        raise InputError(Problem(scenario.where("rl", "prompt_tokens"), f"prompt_tokens: expected fewer than the "
                                 f"{training.seq_len:,} tokens of a sequence, got {rl.prompt_tokens:,}"))
    return Amounts(generated, max(1, batch // trained), batch, max(1, trained // batch), generated // ranks,
                   rl.prompt_tokens, training.seq_len - max(1, rl.prompt_tokens))
