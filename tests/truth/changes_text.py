"""Tables and errors as `changes_page.py` writes them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

FEW: Final = 4
"""So many errors are listed; of more, their number, median and ends are told."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def told(errors: Sequence[float | None]) -> str:
    """Errors of some observations in per cent, each of a few, the middle and the ends of many."""
    known = [100 * error for error in errors if error is not None]
    if len(errors) <= FEW or not known:
        return ", ".join("none" if error is None else f"{100 * error:+.1f}" for error in errors) if known else "none"
    return f"{len(known)}: {statistics.median(known):+.1f} ({min(known):+.1f} to {max(known):+.1f})"
