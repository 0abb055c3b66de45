"""Methods that each framework runs of each built-in model: asked of the frameworks' own tables, and stored.

    python -m simcore.docgen.served > simcore/models/served.json

Asking takes half a minute, so that `rankscope models` and `docs/support.md` read the stored answers; tests ask again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from simcore.docgen.asking import METHODS, asked
from simcore.docgen.models import graph_of
from simcore.frameworks.registry import known_frameworks
from simcore.models.graph import known_presets

__all__ = ["NAMES", "asked_of", "served"]

NAMES: Final = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
"""Names of the methods, as tables show them."""
_MESHES: Final = ({"dp_shard": 2}, {"dp_replicate": 2})


@lru_cache(maxsize=1)
def served() -> Mapping[str, Mapping[str, Any]]:
    """The stored answers: preset -> its `parameters`, `layers`, and under `methods` framework -> methods that run."""
    file = resources.files("simcore.models").joinpath("served.json")
    found: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def asked_of(preset: str) -> dict[str, Any]:
    """The answer on one preset, with the layers and the version that each framework takes by default."""
    graph = graph_of(preset)
    methods = {framework: [name for name, ways in METHODS.items() if _runs(preset, framework, ways)]
               for framework in known_frameworks()}
    return {"parameters": graph.count(), "layers": graph.num_blocks, "methods": methods}


def _runs(preset: str, framework: str, ways: tuple[dict[str, Any], ...]) -> bool:
    base = {"model": preset, "framework": framework}
    return any(asked({**base, "mesh": mesh, **way}) == "yes" for way in ways for mesh in _MESHES)


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(asked_of(name))}" for name in known_presets())
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")
