"""Files that `rankscope convert` writes for a list of scenarios, for the frameworks' own parsers to read.

    PYTHONPATH=tests python -m converted_files FOLDER     # FORMAT/SCENARIO/ with the files, launch.sh and files.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from checkout import ROOT
from simcore.inputs.document import Document, parse_document
from simcore.inputs.loading import read
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.conversion.converting import convert
from simcore.recipes.converted import Converted
from simcore.recipes.registry import known_formats
from simcore.recipes.text import recipe_text
from simcore.simulate import check

__all__ = ["ACCEPTED", "converted", "digests", "files_of", "scenarios"]

ACCEPTED: Final = ROOT / "tests/truth/accepted"
SHIPPED: Final = ("trainers/*", "qlora-experts/*", "first-look/*", "nano-ep4/*8gpu*", "nano-published/*-min-*",
                  "tensor-parallel/llama*", "gradient-accumulation/*")
"""Shipped files, of which the first scenario is taken."""


def scenarios() -> Iterator[Scenario]:
    """Shipped scenarios, then those of `accepted/cases.yaml`; each has a name of its own."""
    for pattern in SHIPPED:
        for file in sorted((ROOT / "scenarios").glob(f"{pattern}.yaml")):
            yield next(entry.scenario for entry in read([file]) if entry.scenario)
    cases = parse_document((ACCEPTED / "cases.yaml").read_text(encoding="utf-8"), "cases.yaml")
    for name, values in cases.data.items():
        yield parse_scenario(Document("cases.yaml", {"name": name, **values}))


def converted() -> Iterator[tuple[str, Scenario, Converted]]:
    """(format, scenario, recipe) of everything that runs, and that a format can say."""
    writers = {one.name: one.writer for one in known_formats() if one.writer is not None}
    for scenario in (one for one in scenarios() if check(one).status == "ok"):
        for name, writer in writers.items():
            if scenario.framework in writer.frameworks:
                made = convert(scenario, name)
                if not made.refused:
                    yield name, scenario, made


def files_of(made: Converted, scenario: Scenario) -> dict[str, str]:
    """Texts of a recipe's files by their names, the recipe first; its launch command is `launch.sh`."""
    launch = {"launch.sh": made.launch} if made.launch else {}
    return {made.file: recipe_text(made, scenario.name), **made.beside, **launch}


def digests(files: Mapping[str, str]) -> dict[str, str]:
    """First digits of the SHA-256 of each text."""
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in files.items()}


def main(folder: Path) -> None:
    """Writes everything into a folder."""
    for name, scenario, made in converted():
        to = folder / name / scenario.name
        to.mkdir(parents=True)
        files = files_of(made, scenario)
        for file, text in files.items():
            (to / file).write_text(text, encoding="utf-8")
        (to / "files.json").write_text(json.dumps(digests(files)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
