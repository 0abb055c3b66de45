"""`unfrozen_parameters`: patterns of the parameters that axolotl trains, all others have no gradient.

067b021c `utils/freeze.py` freeze_layers_except: each is matched from the beginning of a parameter's name, a dot is a
dot, and rows may follow it ("^lm_head.weight$[:32000]"). `train.py` setup_model_and_tokenizer: it runs behind PEFT,
whose names begin with `base_model.model.`; where none matches, nothing trains, and axolotl only warns. `rl: dpo` gives
PEFT to the trainer, so that names have no such beginning.
"""

from __future__ import annotations

import re
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_unfrozen"]

_KEY: Final = "unfrozen_parameters"
_ADAPTED: Final = "base_model.model."
_ROWS: Final = re.compile(r"^(.+)\[[0-9]*(?::[0-9]*)?\]$")


def read_unfrozen(reader: Reader, draft: Draft) -> None:
    """Refuses the patterns by name; beside adapters those that cannot match are told as the fault that they are."""
    patterns = reader.words(_KEY)
    if patterns is None or not patterns.value:
        draft.idle(patterns, "no pattern: everything trains")
        return
    if reader.look("adapter") is None or reader.look("rl") is not None or any(map(_reaches, patterns.value)):
        draft.refuse(patterns, "parameters that are trained by pattern")
        return
    draft.use(patterns)
    draft.fail(patterns.where, f"{_KEY}: {', '.join(patterns.value)} match no parameter: PEFT's begin with {_ADAPTED}, "
                               "and patterns are matched from the beginning (067b021c utils/freeze.py): nothing "
                               "trains, and torch's DDP refuses a module without a trained parameter")


def _reaches(pattern: str) -> bool:
    """True unless the pattern begins with text that no name of an adapted model has."""
    rows = _ROWS.match(pattern)
    literal = re.match(r"[\w.]*", (rows.group(1) if rows else pattern).removeprefix("^"))
    begins = literal.group() if literal else ""
    behind = pattern.removeprefix("^")[len(begins):len(begins) + 1]
    begins = begins[:-1] if behind in ("*", "?", "{") else begins  # its last character may be missing
    return "|" in pattern or begins.startswith(_ADAPTED) or _ADAPTED.startswith(begins)
