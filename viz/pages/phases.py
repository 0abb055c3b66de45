"""Phases of a step of reinforcement learning, and what an engine that generates holds: bars of the device."""

from __future__ import annotations

from simcore.results.report import Report
from simcore.units import format_bytes, format_seconds
from viz.charts.bars import Bar, Segment, bars, of_category
from viz.charts.legend import Look, key, look_of
from viz.markup import Child, Markup, element, join
from viz.pages.tables import table

__all__ = ["phases", "serving"]

_PARTS = (("weights", "weight_bytes", "sharded_param"), ("adapters", "adapter_buffer_bytes", "main_param"),
          ("activations of a profile run", "activation_bytes", "activation"), ("graphs", "graph_bytes", "graph_pool"),
          ("caches", "cache_bytes", "kv_cache"))
"""What an engine holds: in words, its field, and the category whose look it has."""


def phases(report: Report, identity: str) -> Markup | None:
    """How full the device is in each phase, by category; all bars end at the device, or the fullest phase."""
    if not report.phases:
        return None
    whole = max(report.capacity_bytes or 0, *(phase.device_bytes for phase in report.phases), 1)
    rows: list[Bar] = []
    names: dict[str, None] = {}
    for phase in report.phases:
        sizes = {name: size for name, size in phase.by_category.items() if size > 0}
        names |= dict.fromkeys(sizes)
        oom = "" if phase.device_verdict == "fits" else ", out of memory"
        when = f"{format_seconds(phase.seconds)} from {format_seconds(phase.start_s)}"
        label = f"{phase.phase} \u00b7 {when}: {phase.event}"
        segments = tuple(of_category(size / whole, name, f"{name}: {format_bytes(size)}")
                         for name, size in sorted(sizes.items(), key=lambda item: -item[1]))
        rows.append(Bar(label, f"{format_bytes(phase.device_bytes)}{oom}", segments))
    caption = f"Phases of a step on the fullest rank; a whole bar is {format_bytes(whole)}"
    owners = [[phase.phase, _told(phase.by_owner), _told(phase.host_by_owner)] for phase in report.phases]
    more = element("details", element("summary", "Who holds it, on the device and on the host"), table(
        "By owner at the highest moment of each phase", ("phase", "device", "host"), owners, 9), class_="more")
    drawn = bars(rows, "Phases of a step", identity)
    return element("section", element("figure", element("figcaption", caption), drawn, key(
        [look_of(name) for name in names], "Categories")), more, class_="card")


def _told(owners: dict[str, int]) -> str:
    order = sorted(owners.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in order if size) or "\u2013"


def serving(report: Report, identity: str) -> Markup | None:
    """What the engine asks for and what it does with it, and how fast it decodes."""
    found = report.serving
    if found is None:
        return None
    sizes = [(words, int(getattr(found, field)), category) for words, field, category in _PARTS]
    whole = max(found.requested_bytes, sum(size for _, size, _ in sizes), 1)
    segments = tuple(_part(words, size / whole, size, category) for words, size, category in sizes)
    bar = Bar(f"{found.engine} {found.version}, tp {found.tp}, asks for", format_bytes(found.requested_bytes), segments)
    looks = [Look(words, look_of(category).css_class, look_of(category).fill, format_bytes(size))
             for words, size, category in sizes if size]
    facts = (("blocks", f"{found.num_blocks:,} of {found.block_size:,} tokens"), ("tokens in caches",
             f"{found.cache_tokens:,}"), ("sequences of the longest at once", f"{found.concurrency:.1f}"),
             ("longest sequence let in", f"{found.longest:,} tokens"))
    refused = element("p", f"It does not start: {found.refusal}", class_="problems") if found.refusal else None
    drawn = bars([bar], "Memory of the engine", identity)
    rows: list[list[Child]] = [[f"{one.sequences:,}", f"{one.context_tokens:,}", format_seconds(one.seconds),
                                f"{one.tokens_per_s:,.0f}"] for one in found.decode]
    speed = table("Decoding, as fast as memory is read (assumed)", (
        "sequences", "tokens before", "a token of each", "tokens/s"), rows, 0) if rows else None
    told = element("p", join((f"{name}: {value}" for name, value in facts), "; "), class_="note")
    return element("section", element("figure", element("figcaption", "The engine that generates"), drawn, key(
        looks, "Parts of the engine")), refused, told, speed, class_="card")


def _part(words: str, share: float, num_bytes: int, category: str) -> Segment:
    look = look_of(category)
    return Segment(share, f"{words}: {format_bytes(num_bytes)}", look.css_class, look.fill)
