"""Readings of recipes that `rankscope convert` has written, by the frameworks' own parsers.

    python tests/truth/probe_accepted.py CONVERTED            # writes accepted/FORMAT.json
    python tests/truth/probe_accepted.py --check CONVERTED    # compares, writes nothing; exit code 1 if they differ
    python tests/truth/probe_accepted.py --only REGEX CONVERTED

CONVERTED: a folder that `tests/converted_files.py` has filled, FORMAT/SCENARIO/ with the files and `launch.sh`. Each
case is a process, because these libraries keep state. A row has the files with their digests, and what the framework
has read in them, or its error. Megatron-LM's arguments need its sources at d98e8a64 ahead on PYTHONPATH (its package
has none). Bridge's overrides need both sources: BRIDGE, a git directory with 067f987d, and MEGATRON, the same folder.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from oracle.worker import isolated

HERE = Path(__file__).resolve().parent
MODULES = {"trl": "accept_trl", "accelerate": "accept_trl", "deepspeed": "accept_trl", "axolotl": "accept_axolotl",
           "torchtitan": "accept_torchtitan", "automodel": "accept_automodel", "megatron": "accept_megatron",
           "bridge": "accept_bridge"}
PACKAGES = {"trl": "trl transformers accelerate peft", "accelerate": "accelerate trl transformers peft deepspeed",
            "deepspeed": "deepspeed trl transformers peft", "axolotl": "axolotl transformers",
            "torchtitan": "torchtitan tyro", "automodel": "nemo-automodel transformers peft", "megatron": "torch",
            "bridge": "hydra-core"}
SOURCES = {"bridge": ("BRIDGE", "MEGATRON")}
"""Variables that name sources which no package has; without them the stored rows of a format stay."""


def row_of(folder: Path, module: Any) -> dict[str, Any]:
    """What the framework makes of the files of one scenario."""
    names = json.loads((folder / "files.json").read_text(encoding="utf-8"))
    found = isolated(lambda case: module.accept(folder, case["files"]), {"files": [*names]})
    if "failed" in found:
        raise RuntimeError(f"{folder}: {found['failed']}")
    told = {"error": found["error"]} if "error" in found else {"read": found}
    return {"scenario": folder.name, "files": names, **told}


def document_of(name: str, rows: list[dict[str, Any]]) -> str:
    """Text of a stored file: versions, and one row a line."""
    versions = {package: metadata.version(package) for package in PACKAGES[name].split()}
    body = ",\n".join(json.dumps(row, sort_keys=True) for row in sorted(rows, key=lambda row: row["scenario"]))
    return f'{{"versions": {json.dumps(versions)},\n"rows": [\n{body}\n]}}\n'


def main() -> int:
    """Asks every framework whose recipes lie in the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("converted", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    differ = 0
    for folder in sorted(asked.converted.resolve().iterdir()):
        if folder.name not in MODULES or not re.search(asked.only, folder.name):
            continue
        if lacking := [name for name in SOURCES.get(folder.name, ()) if not os.environ.get(name)]:
            print(folder.name, "not asked:", ", ".join(lacking), "not given", flush=True)
            continue
        module = importlib.import_module(f"oracle.{MODULES[folder.name]}")
        module.load()
        text = document_of(folder.name, [row_of(one, module) for one in sorted(folder.iterdir())])
        stored = HERE / "accepted" / f"{folder.name}.json"
        rows = json.loads(text)["rows"]
        print(folder.name, len(rows), "asked,", sum("error" in row for row in rows), "refused", flush=True)
        if asked.check:
            differ += not stored.exists() or stored.read_text(encoding="utf-8") != text
        else:
            stored.parent.mkdir(exist_ok=True)
            stored.write_text(text, encoding="utf-8")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
