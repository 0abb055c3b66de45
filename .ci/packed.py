"""Build hook of the wheel: the configurations of all models become one file, an eighth as large as the files.

`simcore.models.graph` reads both. Called by hatchling (pyproject.toml), in an environment of its own.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Packed(BuildHookInterface[Any]):
    """Puts `simcore/models/presets/*.json` into `simcore/models/presets.json`, by name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the file to a wheel; an editable one is a path to the checkout."""
        if version == "editable":
            return
        files = sorted(Path(self.root, "simcore/models/presets").glob("*.json"))
        presets = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
        self._folder = tempfile.TemporaryDirectory()
        packed = Path(self._folder.name, "presets.json")
        packed.write_text(json.dumps(presets, separators=(",", ":")) + "\n", encoding="utf-8")
        build_data["force_include"][str(packed)] = "simcore/models/presets.json"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the file's folder when the wheel is written."""
        if version != "editable":
            self._folder.cleanup()
