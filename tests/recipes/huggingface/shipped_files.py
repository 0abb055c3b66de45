"""Hashes of DeepSpeed's configurations that axolotl and LLaMA-Factory ship, which the package has the values of.

    PYTHONPATH=tests python -m recipes.huggingface.shipped_files CLONES   # writes shipped_files.json anew

CLONES: a folder with git directories `OWNER+NAME/repo`. A hash is of the values alone, without comments.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

STORED: Final = Path(__file__).with_suffix(".json")
_OF: Final = {"axolotl": ("axolotl-ai-cloud+axolotl", "067b021c", "deepspeed_configs"),
              "LLaMA-Factory": ("hiyouga+LLaMA-Factory", "ff6d4d12", "examples/deepspeed")}


def hash_of(config: Mapping[str, Any]) -> str:
    """Hash of a configuration's values; order and the way in which a number is written do not count."""
    kept = {key: value for key, value in config.items() if key != "_comment"}
    text = json.dumps(kept, sort_keys=True, default=float)
    return hashlib.sha256(text.encode()).hexdigest()


def _numbers(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in pairs}


def with_whole_numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Copy in which 5e8 is 500000000."""
    found: dict[str, Any] = json.loads(json.dumps(dict(config)), object_pairs_hook=_numbers)
    return found


def main() -> int:
    """Stores the hash of each file."""
    found: dict[str, dict[str, str]] = {}
    for name, (repository, commit, folder) in _OF.items():
        git = ["git", "-C", str(Path(sys.argv[1]) / repository / "repo")]
        listed = subprocess.run([*git, "ls-tree", "--name-only", commit, f"{folder}/"], capture_output=True,
                                check=True, text=True).stdout.split()
        for path in listed:
            text = subprocess.run([*git, "show", f"{commit}:{path}"], capture_output=True, check=True,
                                  text=True).stdout
            found.setdefault(f"{name} {commit}", {})[Path(path).name] = hash_of(with_whole_numbers(json.loads(text)))
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
