"""Keys at the top of a configuration that DeepSpeed asks for, written to `tests/truth/deepspeed/top_keys.json`.

    python tests/truth/list_deepspeed_keys.py     # with deepspeed 0.19.6, on CPU

`DeepSpeedConfig` reads a dictionary that remembers which keys it was asked for; what else asks for keys of the same
dictionary is the engine's elastic batch, `checkpoint` and the launcher, whose names are among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, KeysView
from importlib.metadata import version
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent / "deepspeed" / "top_keys.json"


class Keys:
    """Keys of a configuration: each that is looked for is remembered."""

    def __init__(self, inner: KeysView[str], asked: set[str]) -> None:
        self.inner, self.asked = inner, asked

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return key in self.inner

    def __iter__(self) -> Iterator[str]:
        return iter(self.inner)


class Remembering(dict[str, Any]):
    """Configuration that remembers the keys it was asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def keys(self) -> Any:
        return Keys(super().keys(), self.asked)


def main() -> None:
    """Asks, and writes the names with the release."""
    from deepspeed.runtime.config import DeepSpeedConfig

    config = Remembering({"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}})
    DeepSpeedConfig(config)  # type: ignore[no-untyped-call]
    found = {"deepspeed": version("deepspeed"), "asked": sorted(config.asked)}
    TARGET.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
