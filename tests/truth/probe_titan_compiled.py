"""Measures what torchtitan's blocks and loss keep and allocate under torch.compile, with and without torchao's fp8.

    python tests/truth/probe_titan_compiled.py CASE... > tests/truth/tape/torchtitan-compiled-0.2.2-torch-2.13.0.json

A case is a JSON object with `name` and the keys of `tape/README.md`; without cases those of
`tape/cases-titan-compiled.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oracle import logs


def measured(case: dict[str, Any]) -> dict[str, Any]:
    from oracle import titan_compiled

    return titan_compiled.measured(case)


if __name__ == "__main__":
    logs.main(__file__, measured, Path(__file__).resolve().parent / "tape" / "cases-titan-compiled.json")
