"""Tables and lines of results, for a terminal or a pipe.

Names come from files, so nothing in them is markup.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import IO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from simcore.cli.sheets.grid import wrapped
from simcore.cli.sheets.word_table import WordTable
from simcore.results.report import ASKED_PHASES, Advice, AtRest, Host, HostPhase, RankReport, Report
from simcore.units import format_bytes, format_seconds

__all__ = ["advice", "changes", "console", "drawn", "fitted", "hosts", "placement", "plain", "plain_table", "setting"]

_MOST_CLASSES = 16
_LEAST = 40
"""Characters of a terminal for which texts are wrapped."""
_UNDER = 10
"""Spaces before the keys of an advice that are below its numbers."""
_PIPE = 240
"""Width of a pipe or file if `COLUMNS` is not set."""


def console(stream: IO[str]) -> Console:
    """Console of rich that prints to `stream`, without markup.

    On a terminal it has its width; else that of the environment variable `COLUMNS`, or 240 characters.
    """
    columns = os.environ.get("COLUMNS", "")
    width = None if stream.isatty() else int(columns) if columns.isdecimal() and int(columns) else _PIPE
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def plain(text: str) -> str:
    """`text` with unprintable characters as U+FFFD, because a name from a file must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def placement(report: Report) -> list[RenderableType]:
    """Tables of bytes at rest by component, one a class of ranks (equal memory); at most 16 classes."""
    shown: list[RenderableType] = []
    for rank in report.ranks[:_MOST_CLASSES]:
        shown += [_rank_line(report, rank), _rank_table(rank)]
    if len(report.ranks) > _MOST_CLASSES:
        left = len(report.ranks) - _MOST_CLASSES
        shown.append(Text(f"and {left:,} more classes of ranks: --rank N shows one, --json all\n"))
    return shown


def _rank_line(report: Report, rank: RankReport) -> Text:
    where = " ".join(f"{axis}={value}" for axis, value in rank.coordinates.items())
    about = " (a flat shard's split over components is apportioned)" if rank.apportioned else ""
    ranks = ", ".join(rank.ranks)
    who = f"rank {ranks}" if rank.num_ranks == 1 else f"ranks {ranks} ({rank.num_ranks:,} alike)"
    return Text(plain(f"{report.name}: {who}, stage {rank.stage}, {where}{about}"))


def _rank_table(rank: RankReport) -> WordTable:
    parts = list(rank.at_rest.items())
    frozen = any(at.num_params != at.num_trainable_params for _, at in parts)
    counts = ("parameters", "trainable") if frozen else ("parameters",)
    table = plain_table("component", *counts, "weights", "gradients", "optimizer", "together")
    for name, at in parts:
        table.add_row(plain(name), *_cells(at, frozen=frozen))
    table.add_section()
    table.add_row("padding", *[""] * (len(counts) + 3), format_bytes(rank.padding_bytes))
    table.add_row("total", *_cells(_total(rank), padding=rank.padding_bytes, frozen=frozen), style="bold")
    return table


def _cells(at: AtRest, *, frozen: bool, padding: int = 0) -> list[str]:
    counts = [at.num_params, at.num_trainable_params][: 1 + frozen]
    sizes = [at.params_bytes, at.grads_bytes, at.optimizer_bytes]
    return [f"{count:,}" for count in counts] + [format_bytes(size) for size in (*sizes, sum(sizes) + padding)]


def _total(rank: RankReport) -> AtRest:
    parts = rank.at_rest.values()
    return AtRest(**{field: sum(getattr(part, field) for part in parts) for field in AtRest.model_fields})


def advice(report: Report, width: int) -> list[RenderableType]:
    """Lines with changes of keys that make the scenario fit, as `--set` takes them; [] without advice.

    If nothing fits, those that come nearest. Each has its peak, what it leaves of the limit, and the step's time.
    """
    return [*changes(report.name, report.advice, width)]


def changes(name: str, advice: Sequence[Advice], width: int = _PIPE) -> list[Text]:
    """Heading and lines of advice for the scenario `name`, of `width` characters if possible; [] without advice."""
    if not advice:
        return []
    fits = any(change.verdict == "fits" for change in advice)
    heading = ("what would make it fit, by what it costs: time, then GPUs" if fits
               else "one or two changes are not enough; nearest")
    differ = len({change.num_gpus for change in advice}) > 1
    return [Text(line) for line in (*wrapped(plain(f"{name}: {heading}:"), width, "    "), *(
        line for change in advice for line in _advised(change, width, with_gpus=differ)))]


def _advised(change: Advice, width: int, *, with_gpus: bool) -> Iterator[str]:
    """One line, or where that is too long the numbers, then keys and warning in lines that break between them."""
    numbers = f"peak {format_bytes(change.peak_bytes):>10}, left {format_bytes(change.headroom_bytes):>10}"
    numbers += "" if change.step_s is None else f", step {format_seconds(change.step_s):>8}"
    numbers += f", {change.num_gpus:,} GPUs" if with_gpus and change.num_gpus else ""
    keys = [plain(setting(key, value)) for key, value in change.changes.items()]
    warning = plain(f"({change.warning})") if change.warning else ""
    first = f"  {change.verdict:<6}  {numbers}"
    whole = "  ".join(filter(None, (first, " ".join(keys), warning)))
    if cell_len(whole) <= width:
        yield whole
        return
    yield first
    line = " " * _UNDER
    for key in keys:
        if line.strip() and cell_len(line) + 1 + cell_len(key) > width:
            yield line
            line = " " * _UNDER
        line += f" {key}" if line.strip() else key
    yield line
    if warning:
        yield from (" " * _UNDER + each for each in wrapped(warning, width - _UNDER))


def fitted(parts: Sequence[RenderableType], width: int) -> list[RenderableType]:
    """Parts of a sheet, of which texts are wrapped between words where they exceed `width` characters.

    A terminal of less than 40 wraps lines by itself.
    """
    shown: list[RenderableType] = []
    if width < _LEAST:
        return [*parts]
    for part in parts:
        if not isinstance(part, Text) or part.cell_len <= width:
            shown.append(part)
        elif part.spans:
            shown += part.wrap(Console(width=width), width)
        else:
            shown += map(Text, wrapped(part.plain, width, "    "))
    return shown


def drawn(report: Report) -> list[RenderableType]:
    """Lines with quantiles of the highest rank's peak over random draws: one line for lengths, one for routing.

    [] if the scenario draws nothing.
    """
    return [line for line in (_lengths(report), _routing(report)) if line is not None]


def _lengths(report: Report) -> Text | None:
    """Line with padded lengths, and the device's peak at each."""
    lengths = report.lengths
    if lengths is None:
        return None
    sizes = zip(lengths.step.model_dump().items(), lengths.peak.device_bytes.model_dump().values(), strict=True)
    each = ", ".join(f"{name} {length:,} tokens: {format_bytes(size)}" for (name, length), size in sizes)
    return Text(plain(f"{report.name}: longest of a step, {lengths.draws:,} drawn (seed {lengths.seed}): {each}"))


def _routing(report: Report) -> Text | None:
    routing = report.drawn
    if routing is None:
        return None
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name,
                      size in routing.hottest.device_bytes.model_dump().items())
    words = f"{report.name}: routing drawn {routing.draws:,} times (seed {routing.seed}): highest rank {sizes}; "
    return Text(plain(f"{words}does not fit in {routing.oom_probability:.1%} of the draws"))


def hosts(report: Report) -> list[RenderableType]:
    """Lines about phases in which memory of a host or a device does not suffice, and memory and time of all phases.

    The latter where the scenario asks for a phase besides loading and saving. [] if there are none, or the report has
    no host memory.
    """
    if report.host is None:
        return []
    asked = any(phase.phase in ASKED_PHASES for phase in report.host.phases)
    return [Text(plain(f"{report.name}: {line}")) for phase in report.host.phases
            for line in _phase(phase, report, report.host, shown=asked and phase.phase != "first_step")]


def _phase(phase: HostPhase, report: Report, host: Host, *, shown: bool) -> Iterator[str]:
    """Lines of one phase; `shown`: also its memory and duration, where something fits or not."""
    if shown:
        parts = [f"device {format_bytes(phase.device_bytes)}", f"host {format_bytes(phase.host_bytes)}",
                 *([] if phase.seconds is None else [f"takes {format_seconds(phase.seconds)}"])]
        yield f"{phase.phase}: {', '.join(parts)}"
    if phase.host_verdict == "oom":
        most = max(phase.by_owner, key=lambda name: phase.by_owner[name], default="")
        ranks = f"{host.ranks_per_host} rank{'s' * (host.ranks_per_host > 1)}"
        yield (f"{phase.phase}: OOM on the host of {ranks}: {format_bytes(phase.host_bytes)} of "
               f"{format_bytes(host.capacity_bytes)}, most of it {most}")
    if phase.device_verdict == "oom" and phase.phase != "first_step":
        capacity = f" of {format_bytes(report.capacity_bytes)}" if report.capacity_bytes else ""
        yield f"{phase.phase}: OOM on the device: {format_bytes(phase.device_bytes)}{capacity}"
    if phase.device_verdict == "unsure" and phase.phase != "first_step":
        yield f"{phase.phase}: unsure on the device: {format_bytes(phase.device_bytes)}"
    if phase.change:
        yield f"{phase.phase}: {' '.join(starmap(setting, phase.change.items()))} makes it fit"


def setting(key: str, value: object) -> str:
    """Text `--set KEY=VALUE` for a command line, quoted for a shell if necessary."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return f"--set {shlex.quote(f'{key}={text}')}"


def plain_table(first: str, *others: str, left: Sequence[str] = ()) -> WordTable:
    """Empty table with a first column of names and further columns under the headings `others`.

    `left`: headings of columns of words, which are left-aligned; the others are numbers and right-aligned.
    """
    return WordTable(plain(first), *map(plain, others), left=[*map(plain, (first, *left))])
