"""Measures what decoder layers of transformers keep and allocate under torch.compile, each layer compiled alone.

    python tests/truth/probe_layer_compiled.py CASE... > \\
        tests/truth/tape/layer-compiled-torch-2.13.0-transformers-5.23.0.json

A case is a JSON object with `name` and the keys of `tape/README.md`; without cases those of
`tape/cases-layer-compiled.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oracle import logs


def measured(case: dict[str, Any]) -> dict[str, Any]:
    from oracle import layer_compiled

    return layer_compiled.measured(case)


if __name__ == "__main__":
    logs.main(__file__, measured, Path(__file__).resolve().parent / "tape" / "cases-layer-compiled.json")
