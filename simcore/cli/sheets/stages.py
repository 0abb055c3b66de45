"""Progress of a search on standard error: what is done at the moment, at which rate, and the time that is left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

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

from simcore.cli.sheets.grid import wrapped
from simcore.cli.sheets.tables import plain

if TYPE_CHECKING:
    from simcore.search.search import Search

__all__ = ["announce", "asked_line", "bar", "stages"]

_LISTED: Final = 8
"""Values of a key that are told one by one."""


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


def announce(question: Search) -> None:
    """Says on a terminal which layouts are searched, before they are counted; nothing on a pipe."""
    if sys.stderr.isatty():
        screen = Console(stderr=True, markup=False, highlight=False)
        screen.print(*wrapped(asked_line(question), screen.width, "    "), sep="\n", soft_wrap=True)


def asked_line(question: Search) -> str:
    """Line such as `searching mine: automodel, megatron on 8, 16 GPUs; free: mesh; by most tokens/s per GPU`."""
    space = question.space
    topology = space.base.topology
    machines = space.topologies or (topology if isinstance(topology, str) else topology.file,)
    words = [f"{axis}={_listed(space.given[axis])}" if axis in space.given else axis for axis in space.degrees]
    words += [f"{key.removeprefix('training.')}={_listed(values)}" for key, values in space.axes.items()]
    words += ["memory options"] if space.options else []
    words += ["fused optimizer, leaner loss, states on the host"] if space.leaner else []
    where = f"; where {' and '.join(one.text for one in space.conditions)}" if space.conditions else ""
    free, objective = ", ".join(words) or "nothing", question.objectives[0].words
    return plain(f"searching {space.base.name}: {_listed(space.frameworks, ', ')} on {_listed(space.gpus, ', ')} GPUs "
                 f"of {_listed(machines, ', ')}; free: {free}{where}; by {objective}")


def _listed(values: Sequence[object], comma: str = ",") -> str:
    """Values with commas; of many the first, the last, and their number."""
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    many = f"{comma.join(texts[:3])}{comma}...{comma}{texts[-1]} ({len(texts):,})"
    return comma.join(texts) if len(texts) <= _LISTED else many


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
