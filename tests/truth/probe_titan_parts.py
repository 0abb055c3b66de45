"""Measures what torchtitan's layers with experts allocate where their parts are compiled one by one.

    python tests/truth/probe_titan_parts.py CASE... > tests/truth/tape/torchtitan-parts-0.2.2-torch-2.13.0.json

A case is a JSON object with `name` and the keys of `tape/README.md`; without cases those that
`draw_titan.py --compiled` draws.
"""

from __future__ import annotations

from typing import Any

from draw_titan import COMPILED_COUNT, COMPILED_SEED, compiled
from oracle import logs


def measured(case: dict[str, Any]) -> dict[str, Any]:
    from oracle import titan_pieces

    return titan_pieces.measured(case)


if __name__ == "__main__":
    logs.main(__file__, measured, compiled(COMPILED_COUNT, COMPILED_SEED))
