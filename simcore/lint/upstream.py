"""Names of all keys that upstream's configuration classes have, by format (`upstream_keys.json`).

Made by `tests/lint/upstream_keys.py` from the sources of the releases that the table names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

__all__ = ["Upstream", "upstream_of"]


@dataclass(frozen=True, slots=True)
class Upstream:
    """Keys of a format at its top and inside blocks, in the releases named by `release`."""

    release: str
    keys: frozenset[str]


def upstream_of(form: str) -> Upstream | None:
    """Keys of a format; None for one whose keys are not in the table."""
    return _table().get(form)


@lru_cache
def _table() -> dict[str, Upstream]:
    text = resources.files("simcore.lint").joinpath("upstream_keys.json").read_text(encoding="utf-8")
    return {form: Upstream(row["release"], frozenset(row["keys"])) for form, row in json.loads(text).items()}
