"""Answers of earlier searches: the folder of `search -o`, or its `--json`, read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import read_text
from simcore.inputs.paths import is_dir, is_file
from simcore.results.found import SearchResult
from simcore.search.journal import ANSWER, JOURNAL

__all__ = ["read_answers"]

_MAX_BYTES: Final = 2**28
_OTHER: Final = "is of another version of rankscope: start the search again"


def read_answers(path: Path) -> list[SearchResult]:
    """Answers in a folder of `search -o` (of several scenarios: in its folders), or in a file of `search --json`.

    Empty if the path is neither. InputError for a search that is not finished, or an answer of another version.
    """
    if is_dir(path):
        return _in_folder(path) or [result for folder in _searches(path) for result in _in_folder(folder)]
    if path.suffix != ".json" or not is_file(path):
        return []
    return _parsed(path)


def _searches(folder: Path) -> list[Path]:
    """Folders in one that holds searches alone; none in a folder of scenarios with searches beside them."""
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # reported where its scenarios are read
        return []
    return inside if all(is_file(each / ANSWER) or is_file(each / JOURNAL) for each in inside) else []


def _in_folder(folder: Path) -> list[SearchResult]:
    if is_file(folder / ANSWER):
        return _parsed(folder / ANSWER)
    if is_file(folder / JOURNAL):
        raise InputError(Problem(str(folder), "its search is not finished; the same search goes on with it"))
    return []


def _parsed(path: Path) -> list[SearchResult]:
    """Answers in a file of JSON; empty for JSON of something else."""
    text = read_text(path, _MAX_BYTES)
    if '"objectives"' not in text:
        return []
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return []
    rows = data if isinstance(data, list) else [data]
    if not rows or not all(isinstance(row, dict) and "objectives" in row and "refused" in row for row in rows):
        return []
    try:
        return [SearchResult.model_validate(row) for row in rows]
    except ValueError:
        raise InputError(Problem(str(path), _OTHER)) from None
