"""No key of a scenario is silent: what `python -m silent` found for all combinations, and a part of it found again."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any
from zlib import crc32

import pytest

import silent
from checkout import ROOT
from silent import Combination, combinations, outcome, witnessed
from simcore.inputs.without_effect import WITHOUT_EFFECT, matches

FOUND: dict[str, dict[str, list[Any]]] = json.loads((ROOT / "tests/silent.json").read_text(encoding="utf-8"))
ALL = list(combinations())
SHARE = 6
"""One in so many combinations is tried again here."""


def test_every_combination_has_been_tried() -> None:
    """A new key, option, framework or workload is tried before it is there: `python -m silent tests/silent.json`."""
    assert {(place, key) for place, keys in FOUND.items() for key in keys} == {(c.place, c.key) for c in ALL}


def test_none_is_silent() -> None:
    counts = Counter(kind for keys in FOUND.values() for kind, *_ in keys.values())
    sys.stdout.write(f"{len(ALL)} combinations: {dict(counts)}\n")
    assert counts["silent"] == 0
    whole = ("rl", "generation", "training.lora")  # listed as blocks, whose keys are many
    blocks = {(place, next((block for block in whole if key.startswith(block)), key))
              for place, keys in FOUND.items() for key, (kind, *_) in keys.items() if kind == "listed"}
    assert counts["changes"] > len(blocks) + counts["fixed"] + counts["told"]


@pytest.mark.parametrize("framework", sorted({combination.framework for combination in ALL}))
def test_what_changed_a_number_changes_it_still(framework: str) -> None:
    chosen = [c for c in ALL if c.framework == framework and crc32("/".join(c).encode()) % SHARE == 0]
    for combination in chosen:
        kind, number, value = FOUND[combination.place][combination.key]
        if kind == "changes":
            assert witnessed(combination, number, value) == "changes", combination


def test_a_key_that_is_ignored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Combination("train", "lora", "ddp", "training.lora.alpha")
    assert outcome(scale)[0] == "listed"
    monkeypatch.setattr(silent, "reason", lambda *_: "")
    assert outcome(scale)[0] == "silent"


def test_no_rule_is_without_a_key() -> None:
    listed = {(place, key) for place, keys in FOUND.items() for key, (kind, *_) in keys.items() if kind == "listed"}
    for row in WITHOUT_EFFECT:
        assert any(matches(row, *place.split("/")[:2], key) for place, key in listed), row  # type: ignore[call-arg]
