"""Draws small models with a frozen vision tower under DeepSpeed's ZeRO, and measures them.

    python tests/truth/draw_zero_vision.py > tests/truth/deepspeed/drawn-vision-0.19.6.json

Models of Qwen 3 VL as `draw_fsdp2_vision.py` draws them, each as `probe_zero_vision.py` measures it. Nothing is drawn
again because of what came out.
"""

from __future__ import annotations

import random
from typing import Any

import probe_zero_vision as probe
from drawing import by_name, print_apart

SEED, COUNT = 20261130, 40


def drawn() -> list[dict[str, Any]]:
    """The cases, by the seed: two stages, checkpointed or not."""
    from draw_fsdp2_vision import one
    rng = random.Random(SEED)
    base = next(case for case in probe.cases() if case["fields"]["model_type"] == "qwen3_vl")
    return [one(rng, base) | {"name": f"z{number}", "zero": rng.choice(tuple(probe.STAGES)),
                              "world": rng.choice((2, 3, 4, 4, 5, 6, 8))} for number in range(COUNT)]


def main() -> None:
    """Measures the cases, each in a process that is forked when all is imported."""
    probe.prepare()
    print_apart(by_name(drawn()), probe.measured)


if __name__ == "__main__":
    main()
