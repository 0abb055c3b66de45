"""Machine and number of GPUs of a recipe: what the user answers, or what the recipe says beside its layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Taken

__all__ = ["Hint", "read_machine"]


@dataclass(frozen=True, slots=True)
class Hint:
    """A machine that follows from a key of the recipe by a rule, with the rule's source; "" if it does not."""

    topology: str
    rule: str
    by: Taken[Any]
    source: str = ""


def read_machine(draft: Draft, hint: Hint | None) -> None:
    """Writes the topology: the user's answer, else what the recipe hints at; else it is asked."""
    answer: Answer | None = draft.answers.topology
    if answer is not None:
        draft.answered("topology", answer)
        if hint:
            draft.idle(hint.by, f"{answer.where} says which machine it is")
    elif hint is not None and hint.topology:
        draft.infer("topology", hint.topology, hint.rule, hint.by, source=hint.source)
    else:
        draft.ask("topology", "--topology NAME, such as dgx-h100", "machine", hint.by if hint else None)
