"""Progress of a search on standard error: what is done at the moment, at which rate, and the time that is left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["stages"]


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Context that yields a function of (stage, candidates done, candidates in all); a bar for each stage.

    Without a terminal there are no bars, and the function does nothing.
    """
    if not sys.stderr.isatty():
        yield lambda stage, done, all_of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                  console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def told(stage: str, done: int, all_of: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=all_of)
            bar.update(tasks[stage], completed=done, total=all_of)

        yield told
