"""Questions that a file about GPUs alone leaves to the training script: model, lengths, batch, number formats."""

from __future__ import annotations

from simcore.recipes.draft import Draft

__all__ = ["ask_for_batch", "ask_for_format", "ask_for_length", "ask_for_script"]


def ask_for_script(draft: Draft) -> None:
    """Asks for the model and the length of sequences, which stand in the script."""
    draft.ask("model", "--set model=NAME or PATH of its config.json",
              "model, which is the training script's (a recipe takes this file by --with)")
    ask_for_length(draft, "tokens of a sequence, which are the training script's")


def ask_for_length(draft: Draft, text: str) -> None:
    """Writes the length of sequences where it is answered, else asks for it as `text`."""
    if draft.answers.seq_len is not None:
        draft.answered("training.seq_len", draft.answers.seq_len)
    else:
        draft.ask("training.seq_len", "--seq-len N", text)


def ask_for_batch(draft: Draft) -> None:
    """Asks for the sequences of a microbatch."""
    draft.ask("training.micro_batch_size", "--set training.micro_batch_size=N",
              "sequences of a microbatch, which are the training script's")


def ask_for_format(draft: Draft) -> None:
    """Asks for the number format of products."""
    draft.ask("training.precision.compute", "--set training.precision.compute=bf16",
              "number format of products, which is the training script's")
