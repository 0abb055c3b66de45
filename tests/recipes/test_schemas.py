"""Every field of upstream's schemas is known to the reader, and has one place, whatever its value.

`schemas.json`: by format, the schema's source, recipes by the beginning of the fields that are tried in them, and each
field with a legal value that is not its default. Names of those that can be installed are listed again by
`tests/truth/list_schemas.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from recipes.accounts import keys_of, unaccounted
from simcore.recipes.answers import Answers
from simcore.recipes.importing import import_recipe
from simcore.recipes.recipe_file import read_files

SCHEMAS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("schemas.json").read_text(encoding="utf-8"))
ANSWERS = Answers.of_options(8, 512, "dgx-h100", {"model": "qwen3-8b", "training.micro_batch_size": 2})
"""Answers to what files about GPUs alone leave open."""
WHOLE = Answers.of_options(8, None, "dgx-h100")


def with_field(recipe: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    made = deepcopy(recipe)
    *blocks, name = key.split(".")
    inner = made
    for block in blocks:
        inner = inner.setdefault(block, {})
    inner[name] = value
    return made


def told(schema: dict[str, Any], recipe: dict[str, Any]) -> Iterator[str]:
    """Faults of the account of a recipe."""
    Path(schema["file"]).write_text(json.dumps(recipe), encoding="utf-8")
    alone = schema["format"] in ("accelerate", "deepspeed")
    found = import_recipe([schema["file"]], ANSWERS if alone else WHOLE)
    assert found.format == schema["format"]
    yield from (problem.message for problem in found.unknown)
    refused = [problem.message for problem in (*found.refused, *found.wrong)]
    yield from (line for line in unaccounted(found, keys_of(read_files([schema["file"]])))
                if not any(line.partition(":")[0] in message for message in refused))
    yield from (f"{one.key}: refused, and listed as {one.kind}" for one in found.left
                if any(f": {one.key}: " in message for message in refused))


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: str(schema["format"]))
def test_every_field_has_a_place(schema: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    for key, value in schema["fields"].items():
        start = max(filter(key.startswith, schema["recipes"]), key=len)
        found[key] = list(told(schema, with_field(schema["recipes"][start], key, value)))
    assert {key: messages for key, messages in found.items() if messages} == {}
