"""Progress of a search on standard error: what is done at the moment, at which rate, and the time that is left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

__all__ = ["bar", "stages"]


class _Rate(ProgressColumn):
    """Tasks a second."""

    def render(self, task: Task) -> Text:
        speed = task.speed or 0.0
        return Text("" if not speed else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.1f}/s")


@contextmanager
def bar() -> Iterator[Progress]:
    """Context with progress on standard error: done of all, rate, the field `found` of a task, time left."""
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(),
                  TextColumn("{task.fields[found]}"), TimeRemainingColumn(), console=Console(stderr=True),
                  transient=True) as shown:
        yield shown


@contextmanager
def stages() -> Iterator[Callable[[str, int, int, int], None]]:
    """Context that yields a function of (stage, candidates done, all of them, those that fit); a bar for each stage.

    Without a terminal there are no bars, and the function does nothing.
    """
    if not sys.stderr.isatty():
        yield lambda stage, done, all_of, found: None
        return
    with bar() as shown:
        tasks: dict[str, TaskID] = {}

        def told(stage: str, done: int, all_of: int, found: int) -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(stage, total=all_of, found="")
            shown.update(tasks[stage], completed=done, total=all_of, found=f"{found:,} fit" if found else "")

        yield told
