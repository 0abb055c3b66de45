"""Sections of a report for reinforcement learning and inference: phases of a step, memory and speed of the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from simcore.results.phases import LINKS, PhaseReport
from simcore.results.report import Report
from simcore.units import format_bytes, format_seconds
from viz.charts.bars import Bar, Segment, bars, category_segment
from viz.charts.legend import LegendEntry, entry_of, legend
from viz.markup import Child, Markup, element, join
from viz.pages.tables import table

__all__ = ["engine_section", "phase_section"]

_PARTS = (("weights", "weight_bytes", "sharded_param"), ("adapters", "adapter_buffer_bytes", "main_param"),
          ("activations of a profile run", "activation_bytes", "activation"), ("graphs", "graph_bytes", "graph_pool"),
          ("caches", "cache_bytes", "kv_cache"))
"""Parts of an engine's memory: the words, the field of `Serving`, and the category whose swatch it has."""


def phase_section(report: Report, identity: str) -> Markup | None:
    """Returns the section of a reinforcement-learning step: highest memory in each phase, as bars.

    Of the fullest rank that trains; ranks that only generate have a figure besides. The scale ends at the capacity or
    the fullest phase. None for a step without phases. `identity`: begin of the ids in it, unique on the page.
    """
    if not report.phases:
        return None
    generating, trained = report.generating_rank, report.trained_rank
    if generating is None or trained is None:
        return element("section", *_phases(report, report.phases, "the fullest rank", identity), class_="card")
    return element(
        "section", *_phases(report, report.phases, f"ranks {', '.join(trained.ranks)}, which train", identity),
        *_phases(report, generating.phases, f"ranks {', '.join(generating.ranks)}, which generate",
                 f"{identity}-generating"), class_="card")


def _phases(report: Report, phases: Sequence[PhaseReport], where: str, identity: str) -> tuple[Markup, ...]:
    """Figure of the phases on the ranks `where`, the bytes that these send, and who holds their memory."""
    scale = max(report.capacity_bytes or 0, *(phase.device_bytes for one in report.ranks for phase in one.phases),
                *(phase.device_bytes for phase in phases), 1)
    rows: list[Bar] = []
    names: dict[str, None] = {}
    for phase in phases:
        sizes = {name: size for name, size in phase.by_category.items() if size > 0}
        names |= dict.fromkeys(sizes)
        oom = {"fits": "", "unsure": ", unsure", "oom": ", out of memory"}[phase.device_verdict]
        when = f"{format_seconds(phase.seconds)} from {format_seconds(phase.start_s)}"
        label = f"{phase.phase} \u00b7 {when}: {phase.event}"
        segments = tuple(category_segment(size / scale, name, f"{name}: {format_bytes(size)}")
                         for name, size in sorted(sizes.items(), key=lambda item: -item[1]))
        rows.append(Bar(label, f"{format_bytes(phase.device_bytes)}{oom}", segments))
    caption = f"Phases of a step on {where}; a whole bar is {format_bytes(scale)}"
    owner_rows = [[phase.phase, _owners(phase.by_owner), _owners(phase.host_by_owner)] for phase in phases]
    more = element("details", element("summary", "Who holds it, on the device and on the host"), table(
        "By owner at the highest moment of each phase", ("phase", "device", "host"), owner_rows, 9), class_="more")
    sent = table("Bytes that leave the rank", ("phase", *LINKS), [*_sent_rows(phases)], 9)
    figure = element("figure", element("figcaption", caption), bars(rows, "Phases of a step", identity), legend(
        [entry_of(name) for name in names], "Categories"))
    return tuple(part for part in (figure, sent, more) if part is not None)


def _sent_rows(phases: Sequence[PhaseReport]) -> Iterator[list[Child]]:
    """A row for each phase with the bytes over each link, and one with their sums."""
    total: Counter[str] = Counter()
    for phase in phases:
        total.update(phase.sent_bytes)
        yield [phase.phase, *(_size(phase.sent_bytes.get(name, 0)) for name in LINKS)]
    yield ["step", *(_size(total[name]) for name in LINKS)]


def _size(num_bytes: int) -> str:
    return format_bytes(num_bytes) if num_bytes else "\u2013"


def _owners(owners: dict[str, int]) -> str:
    order = sorted(owners.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in order if size) or "\u2013"


def engine_section(report: Report, identity: str) -> Markup | None:
    """Returns the section of an inference engine: memory of one rank by part, cache, decoding.

    None for a report without an engine. `identity`: begin of the ids in it, unique on the page.
    """
    engine = report.serving
    if engine is None:
        return None
    sizes = [(words, int(getattr(engine, field)), category) for words, field, category in _PARTS]
    scale = max(engine.requested_bytes, sum(size for _, size, _ in sizes), 1)
    segments = tuple(_part(words, size / scale, size, category) for words, size, category in sizes)
    label = f"{engine.engine} {engine.version}, tp {engine.tp}, asks for"
    bar = Bar(label, format_bytes(engine.requested_bytes), segments)
    entries = [LegendEntry(words, entry_of(category).css_class, entry_of(category).fill, format_bytes(size))
             for words, size, category in sizes if size]
    groups = f", for {engine.cache_groups} groups of layers" if engine.cache_groups > 1 else ""
    facts = (("blocks", f"{engine.num_blocks:,} of {engine.block_size:,} tokens{groups}"), ("tokens in caches",
             f"{engine.cache_tokens:,}"), ("sequences of the longest at once", f"{engine.concurrency:.1f}"),
             ("longest sequence let in", f"{engine.longest:,} tokens"))
    refused = element("p", f"It does not start: {engine.refusal}", class_="problems") if engine.refusal else None
    chart = bars([bar], "Memory of the engine", identity)
    rows: list[list[Child]] = [[f"{step.sequences:,}", f"{step.context_tokens:,}", format_seconds(step.seconds),
                                f"{step.tokens_per_s:,.0f}"] for step in engine.decode]
    speed = table("Decoding, as fast as memory is read (assumed)", (
        "sequences", "tokens before", "a token of each", "tokens/s"), rows, 0) if rows else None
    note = element("p", join((f"{name}: {value}" for name, value in facts), "; "), class_="note")
    return element("section", element("figure", element("figcaption", "The engine that generates"), chart, legend(
        entries, "Parts of the engine")), refused, note, speed, class_="card")


def _part(words: str, share: float, num_bytes: int, category: str) -> Segment:
    entry = entry_of(category)
    return Segment(share, f"{words}: {format_bytes(num_bytes)}", entry.css_class, entry.fill)
