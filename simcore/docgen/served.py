"""Answers of the engine on each built-in model, framework and method, stored: a step is simulated, or only placed.

    python -m simcore.docgen.served > simcore/models/served.json

Asking takes a minute, so that `rankscope models` and `docs/support.md` read the stored answers; tests ask again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from simcore.docgen.asking import METHODS, asked, best, reading_images
from simcore.docgen.models import graph_of
from simcore.frameworks.registry import known_frameworks
from simcore.models.graph import ModelGraph, known_presets

__all__ = ["NAMES", "asked_of", "served", "those_with"]

NAMES: Final = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
"""Names of the methods, as tables show them."""
_MESHES: Final = ({"dp_shard": 2}, {"dp_replicate": 2})


@lru_cache(maxsize=1)
def served() -> Mapping[str, Mapping[str, Any]]:
    """The stored answers: preset -> its `parameters`, `layers`, and under `answers` framework -> method -> answer.

    An answer is one of `asking.ANSWERS`.
    """
    file = resources.files("simcore.models").joinpath("served.json")
    found: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def those_with(answer: str, entry: Mapping[str, Any]) -> dict[str, list[str]]:
    """Methods of each framework that have the answer, in an entry of `served`."""
    return {framework: [method for method, word in words.items() if word == answer]
            for framework, words in entry["answers"].items()}


def asked_of(preset: str, frameworks: Sequence[str] = ()) -> dict[str, Any]:
    """The answers on one preset, with the layers and the version that each framework takes by default.

    `frameworks`: those that are asked; none for all.
    """
    graph = graph_of(preset)
    answers = {framework: {name: _answer(preset, framework, ways, graph) for name, ways in METHODS.items()}
               for framework in frameworks or known_frameworks()}
    return {"parameters": graph.count(), "layers": graph.num_blocks, "answers": answers}


def _answer(preset: str, framework: str, ways: tuple[dict[str, Any], ...], graph: ModelGraph) -> str:
    base = {"model": preset, "framework": framework}
    whole = ({**base, "mesh": mesh, **way} for way in ways for mesh in _MESHES)
    return best(asked(one) for keys in whole for one in reading_images(keys, graph))


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(asked_of(name))}" for name in known_presets())
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")
