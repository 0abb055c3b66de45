"""GPUs that the launcher of an Automodel recipe asks for: SkyPilot's nodes and accelerators.

Rule: 0.7.0 `components/launcher/skypilot/launcher.py`: torchrun on each node, with a process for each accelerator.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_cluster"]

_COUNT: Final = re.compile(r".+:([1-9]\d*)")


def read_cluster(reader: Reader, draft: Draft) -> Draft:
    """The draft with the number of GPUs that the block `skypilot` asks for, unless the user says it."""
    nodes, kind = reader.integer("skypilot.num_nodes"), reader.text("skypilot.accelerators")
    found = [one for one in (kind, nodes) if one is not None]
    if draft.answers.gpus is not None:
        draft.idle(found, f"{draft.answers.gpus.where} says how many GPUs there are")
        return draft
    each = _COUNT.fullmatch(kind.value) if kind is not None else None
    if kind is None or each is None:
        draft.idle(found, "no accelerators are counted")
        return draft
    draft.use(*found, why="nodes, and the GPUs of each")
    count = int(each[1]) * (nodes.value if nodes else 1)
    return replace(draft, answers=replace(draft.answers, gpus=Answer(count, kind.where)))
