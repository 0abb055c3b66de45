"""Answers of the engine on each built-in model, framework and method, stored: a step is simulated, or only placed.

    python -m simcore.docgen.served > simcore/models/served.json

Asking takes a minute, so that `rankscope models` and `docs/support.md` read the stored answers; tests ask again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from itertools import groupby
from typing import Any, Final

from simcore.docgen.asking import ANSWERS, METHODS, asked, best, reading_images
from simcore.docgen.models import graph_of
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph, known_presets

__all__ = ["NAMES", "asked_of", "in_words", "served", "those_with"]

NAMES: Final = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
"""Names of the methods, as tables show them."""
_MESHES: Final = ({"dp_shard": 2}, {"dp_replicate": 2})
_MORE: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "attn_implementation: eager": tuple({"mesh": mesh, "framework_options": {"attn_implementation": "eager"}}
                                        for mesh in _MESHES),
    "ep": ({"mesh": {"dp_shard": 2, "ep": 2}},),
    "ep, attn: sdpa": ({"mesh": {"dp_shard": 2, "ep": 2}, "framework_options": {"attn": "sdpa"}},),
}
"""Keys that refusals name as served, by their words: asked where data parallelism alone runs no step."""


@lru_cache(maxsize=1)
def served() -> Mapping[str, Mapping[str, Any]]:
    """The stored answers: preset -> its `parameters`, `layers`, and under `answers` framework -> method -> answer.

    An answer is one of `asking.ANSWERS`. `with`: framework -> method -> what a "yes" takes besides data parallel ranks,
    such as "ep"; nothing of those that take none.
    """
    file = resources.files("simcore.models").joinpath("served.json")
    found: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def those_with(answer: str, entry: Mapping[str, Any]) -> dict[str, list[str]]:
    """Methods of each framework that have the answer, in an entry of `served`."""
    return {framework: [method for method, word in words.items() if word == answer]
            for framework, words in entry["answers"].items()}


def in_words(methods: Iterable[str], taken: Mapping[str, str]) -> str:
    """Names of the methods, each with what it takes by `taken` (method -> "ep"): `full, LoRA with ep`."""
    alike = groupby(methods, key=lambda method: taken.get(method, ""))
    return "; ".join(", ".join(NAMES[method] for method in group) + (f" with {what}" if what else "")
                     for what, group in alike)


def asked_of(preset: str, frameworks: Sequence[str] = ()) -> dict[str, Any]:
    """The answers on one preset, with the layers and the version that each framework takes by default.

    `frameworks`: those that are asked; none for all.
    """
    graph = graph_of(preset)
    found = {framework: {name: _answer(preset, framework, name, graph) for name in METHODS}
             for framework in frameworks or known_frameworks()}
    taken = {framework: {name: what for name, (_, what) in of.items() if what} for framework, of in found.items()}
    return {"parameters": graph.count(), "layers": graph.num_blocks,
            "answers": {framework: {name: word for name, (word, _) in of.items()} for framework, of in found.items()},
            "with": {framework: what for framework, what in taken.items() if what}}


def _answer(preset: str, framework: str, method: str, graph: ModelGraph) -> tuple[str, str]:
    """The answer, and what a step takes that data parallelism alone does not run; "" for nothing."""
    versions = framework_adapter(framework).versions

    def of(*shapes: Mapping[str, Any]) -> str:
        whole = ({"model": preset, "framework": framework, **way, **shape,
                  "framework_options": {**way.get("framework_options", {}), **shape.get("framework_options", {})}}
                 for way in METHODS[method] for shape in shapes)
        return best(asked(one) for keys in whole for one in reading_images(keys, graph, versions))

    plain = of(*({"mesh": mesh} for mesh in _MESHES))
    sparse = any(isinstance(branch.block, Moe) for kind in graph.kinds for branch in kind.branches)
    more = [] if plain == ANSWERS[0] else [what for what in _MORE if sparse or "ep" not in what]
    what = next((what for what in more if of(*_MORE[what]) == ANSWERS[0]), "")
    return (ANSWERS[0], what) if what else (plain, "")


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(asked_of(name))}" for name in known_presets())
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")
