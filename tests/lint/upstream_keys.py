"""Names of the keys that upstream's configuration classes have, read from their sources, which are not run.

    python tests/lint/upstream_keys.py axolotl=FOLDER trl=FOLDER accelerate=FOLDER > simcore/lint/upstream_keys.json

FOLDER holds the sources: a checkout's `src`, or unpacked wheels of the libraries that `SOURCES` names.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple


class Source(NamedTuple):
    """Release, and patterns of the files whose classes have the keys of one format."""

    release: str
    files: tuple[str, ...]


SOURCES: Final = {
    "accelerate": Source("accelerate 1.15.0", ("accelerate/commands/config/config_args.py",)),
    "axolotl": Source("axolotl 067b021c (2026-07-24)",
                      ("axolotl/utils/schemas/*.py", "axolotl/integrations/**/args.py")),
    "trl": Source("TRL 1.16.0, transformers 5.23.0", (
        "trl/trainer/base_config.py", "trl/trainer/sft_config.py", "trl/trainer/model_config.py",
        "trl/scripts/utils.py", "transformers/training_args.py")),
}


def fields(tree: ast.Module) -> Iterator[str]:
    """Annotated names in the bodies of classes, and the aliases by which a file may spell them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    yield part.target.id
                    yield from aliases(part.value)


def aliases(value: ast.expr | None) -> Iterator[str]:
    """Texts of `alias=...` in a field's definition."""
    words = value.keywords if isinstance(value, ast.Call) else []
    yield from (word.value.value for word in words if word.arg in ("alias", "validation_alias")
                and isinstance(word.value, ast.Constant) and isinstance(word.value.value, str))


def keys(folder: Path, source: Source) -> list[str]:
    """Names of a format's keys, sorted."""
    files = [file for pattern in source.files for file in sorted(folder.glob(pattern))]
    found = {name for file in files for name in fields(ast.parse(file.read_text(encoding="utf-8")))}
    return sorted(name for name in found if not name.startswith("_"))


def main(arguments: list[str]) -> None:
    """Writes the table as JSON, a format a line."""
    folders = dict(argument.split("=", 1) for argument in arguments)
    table = {name: {"release": source.release, "keys": keys(Path(folders[name]), source)}
             for name, source in SOURCES.items()}
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
    sys.stdout.write(f"{{\n{rows}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
