"""What the README says of the tree and of the command is so."""

from __future__ import annotations

import re
from pathlib import Path

from simcore.document import parse_document
from simcore.scenario import parse_scenario

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAP = README[README.index("## Where things are") : README.index("## What it does not do")]


def test_every_file_of_the_engine_is_on_the_map() -> None:
    named = {name.removeprefix("simcore/") for name in re.findall(r"`([a-z_/]+(?:\.py|/))`", MAP)}
    files = {path.name for path in (ROOT / "simcore").glob("*.py") if not path.name.startswith("__")}
    folders = {f"{path.parent.name}/" for path in (ROOT / "simcore").glob("*/__init__.py")}
    assert (files | folders) - named == set()


def test_what_is_on_the_map_is_there() -> None:
    named = re.findall(r"`([a-z_./]+(?:\.py|\.md|/))`", MAP)
    homes = (ROOT, ROOT / "simcore", ROOT / "simcore/models", ROOT / "scenarios/first-look")
    assert [name for name in named if not any((home / name).exists() for home in homes)] == []


def test_the_scenario_shown_is_one() -> None:
    start = README.index("    name: nano-automodel-ep4-4gpu")
    text = README[start : README.index("## The way of the data")]
    scenario = parse_scenario(parse_document("\n".join(line[4:] for line in text.splitlines()), "README.md"))
    assert scenario.num_microbatches == 2
