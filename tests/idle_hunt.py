"""Options without effect where nothing tells so: each framework's, in places with and without what they are about.

    python -m idle_hunt FRAMEWORK...         (with PYTHONPATH=.:tests) all without a name; a line for each find

A place is a model, a mesh and a way to train. An option is a find there if two or more of its values are answered, all
answers have the same numbers and none says that the option is idle (`frameworks/idle_options.py`). `tests/silent.py`
asks whether a key matters anywhere; this asks where it does not. A find is no fault by itself: a peak elsewhere hides
what an option moves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

import silent
from simcore.frameworks.idle_options import IDLE
from simcore.frameworks.registry import framework_adapter, known_frameworks

__all__ = ["finds", "places"]

PLACES: Final[dict[str, tuple[Any, dict[str, int], dict[str, Any]]]] = {
    "one rank": (silent.DENSE, {}, {}), "dense": (silent.DENSE, {"dp": 2}, {}),
    "one microbatch": (silent.DENSE, {"dp": 2}, {"global_batch_size": 4}),
    "recompute": (silent.DENSE, {"dp": 2}, {"recompute": "full"}),
    "lora": (silent.DENSE, {"dp": 2}, {"method": "lora"}), "qlora": (silent.DENSE, {"dp": 2}, {"method": "qlora"}),
    "experts": (silent.EXPERTS, {"dp": 2}, {}), "ep": (silent.EXPERTS, {"dp": 2, "ep": 2}, {}),
    "tp": (silent.DENSE, {"dp": 2, "tp": 2}, {}), "cp": (silent.DENSE, {"dp": 2, "cp": 2}, {}),
    "pp": (silent.DENSE, {"dp": 2, "pp": 2}, {})}
"""Name -> model, mesh (`dp`: the axis of the framework's copies or shards), settings of training."""
_MOST: Final = 100_000
"""Numbers beyond it are sizes in bytes, of which one is like the other."""


def places(framework: str) -> Iterator[tuple[str, silent.Tree]]:
    """Scenarios of a framework by name, of each implementation; it may refuse some."""
    copies = "dp_replicate" if framework in silent.COPIES else "dp_shard"
    for implementation in framework_adapter(framework).implementations:
        for name, (model, mesh, training) in PLACES.items():
            yield f"{implementation}, {name}", {
                "name": "k", "model": deepcopy(model), "framework": framework, "implementation": implementation,
                "mesh": {copies if axis == "dp" else axis: size for axis, size in mesh.items()},
                "topology": "dgx-h100", "training": {**silent.TRAIN, **training}}


def finds(tree: silent.Tree) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields (option, its values) for each find in a scenario; nothing where the scenario is refused."""
    if silent.answer(json.dumps(tree)) is None:
        return
    adapter = framework_adapter(tree["framework"])
    for name, known in adapter.options(tree["implementation"]).items():
        answers = {}
        for value in _values(known):
            made = {**tree, "framework_options": {name: value}}
            if silent.parsed(json.dumps(made)) is not None and (found := silent.answer(json.dumps(made))):
                answers[repr(value)] = found
        same = len({one.numbers for one in answers.values()}) == 1
        if same and len(answers) > 1 and not any(IDLE in one.told for one in answers.values()):
            yield name, tuple(answers)


def _values(known: tuple[Any, ...]) -> Iterator[Any]:
    for one in known:
        for value in silent.OF_TYPES.get(one, ()) if isinstance(one, type) else (one,):
            if value is not None and not (type(value) is int and value > _MOST):
                yield value


def main(*names: str) -> None:
    """Prints the finds of some frameworks, or of all."""
    for framework in names or known_frameworks():
        for place, tree in places(framework):
            for name, values in finds(tree):
                sys.stdout.write(f"{framework}, {place}: {name}: {', '.join(values)}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
