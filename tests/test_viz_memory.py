"""The stacked chart: what is drawn is what the series says."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from simcore.results.report import AtRest, MemorySeries, Owner, Peak, RankReport
from viz.charts.memory import memory_chart, text_alternative
from viz.charts.scale import BOTTOM, TOP
from viz.charts.stack import edges, gib_ticks, has_time, layer_order, peak_index, phase_runs, stack, ticks, totals
from viz.palette import CATEGORIES, TONES, luminance

GIB = 2**30
CAPACITY = 40 * GIB

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as it is seen.
SEEN = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red cones": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green cones": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "no blue cones": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def small_series(**changes: object) -> MemorySeries:
    values = {
        "categories": ("opt_state", "activation", "sharded_param", "backward_temp"),
        "event_index": (0, 10, 20, 40, 50, 60),
        "time_s": (0.0, 0.1, 0.1, 0.5, 0.4, 0.9),
        "phases": ("forward", "forward", "backward", "backward", "backward", "optimizer"),
        "values": ((4 * GIB,) * 6, (0, 6 * GIB, 12 * GIB, 9 * GIB, 3 * GIB, 0), (8 * GIB,) * 6,
                   (0, 0, 0, 5 * GIB, 0, 2 * GIB)),
    }
    return MemorySeries.model_validate(values | changes)


def small_rank(series: MemorySeries | None = None, **peak: object) -> RankReport:
    series = series or small_series()
    at = peak_index(series)
    highest = {name: values[at] for name, values in zip(series.categories, series.values, strict=True)}
    facts = {
        "allocated_bytes": sum(highest.values()), "reserved_bytes": 27 * GIB, "device_bytes": 29 * GIB,
        "phase": series.phases[at], "event": "bwd:pre_backward_end:root", "layer": "model.layers.3", "microbatch": 0,
        "by_category": highest, "by_phase": {"forward": 18 * GIB, "backward": 26 * GIB, "optimizer": 14 * GIB},
        "top": (Owner(owner="model.layers.3/up_proj.x", category="activation", bytes=2 * GIB),),
        "reserved_band_bytes": (26 * GIB, 28 * GIB), "outside": {"context": GIB}, "band_bytes": (25 * GIB, 28 * GIB),
    }
    return RankReport(ranks=("0-3",), num_ranks=4, coordinates={"pp": 0}, stage=0,
                      at_rest={"mlp": AtRest(params_bytes=8 * GIB, num_params=4 * GIB)}, padding_bytes=0,
                      grads_persist=False, peak=Peak.model_validate(facts | peak), memory=series)


def drawn(rank: RankReport | None = None, capacity: int | None = CAPACITY, clock: str = "issue") -> ET.Element:
    return ET.fromstring(memory_chart(rank or small_rank(), capacity, "time" if clock == "time" else "issue", "r1"))  # noqa: S314


def with_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [e for e in root.iter() if name in e.get("class", "").split()]


def number(element: ET.Element, attribute: str) -> float:
    return float(element.attrib[attribute].rstrip("%"))


def height_at(path: str, x: float) -> float:
    """Pixels between the outermost level edges of a closed path of H and V steps over the point `x`."""
    total = 0.0
    for part in path.split("M")[1:]:
        start, *steps = re.findall(r"[\d.]+ [\d.]+|[HV][\d.]+", part)
        at, y = (float(value) for value in start.split())
        levels = []
        for step in steps:
            if step[0] == "V":
                y = float(step[1:])
                continue
            end = float(step[1:])
            if min(at, end) < x < max(at, end):
                levels.append(y)
            at = end
        assert len(levels) in (0, 2)
        total += abs(levels[0] - levels[1]) if levels else 0.0
    return total


def test_the_heights_of_the_layers_add_up_to_the_total_at_each_sample() -> None:
    series = small_series()
    bands = stack(series, layer_order(small_rank(series)))
    assert tuple(map(sum, zip(*(band.heights for band in bands), strict=True))) == totals(series)
    assert bands[0].upper == totals(series)
    assert bands[-1].lower == (0,) * len(series.event_index)
    assert all(above.lower == below.upper for above, below in itertools.pairwise(bands))


_ROUNDED = 0.11
"""Pixels: both edges of a layer are drawn to a tenth."""


@pytest.mark.parametrize("clock", ["issue", "time"])
def test_the_drawn_layers_are_as_thick_as_their_bytes(clock: str) -> None:
    series, root = small_series(), drawn(clock=clock)
    x = edges(series, "time" if clock == "time" else "issue")
    pixels_a_byte = (BOTTOM - TOP) / (1.05 * CAPACITY)
    layers = {e.attrib["data-category"]: e.attrib["d"] for e in with_class(root, "layer")}
    seen = 0
    for i, total in enumerate(totals(series)):
        if x[i + 1] == x[i]:
            continue
        middle = 1000 * ((x[i] + x[i + 1]) / 2 - x[0]) / (x[-1] - x[0])
        heights = {name: height_at(path, middle) for name, path in layers.items()}
        assert sum(heights.values()) == pytest.approx(total * pixels_a_byte, abs=_ROUNDED * len(heights))
        for name, values in zip(series.categories, series.values, strict=True):
            assert heights[name] == pytest.approx(values[i] * pixels_a_byte, abs=_ROUNDED)
        seen += 1
    assert seen >= 4


def test_layers_that_come_and_go_lie_on_those_that_are_held_each_largest_first() -> None:
    assert layer_order(small_rank()) == ("activation", "backward_temp", "sharded_param", "opt_state")


def test_the_peak_is_marked_where_the_series_is_highest() -> None:
    root = drawn()
    mark = with_class(root, "peak-mark")[0]
    assert int(mark.attrib["data-bytes"]) == max(totals(small_series())) == 26 * GIB
    assert number(mark, "cx") == pytest.approx(100 * 45 / 61, abs=0.01)
    assert number(mark, "cy") == pytest.approx(BOTTOM - (BOTTOM - TOP) * 26 / (40 * 1.05), abs=0.01)


def test_the_peak_is_named_with_bytes_phase_event_and_layer() -> None:
    words = " ".join(drawn().itertext())
    for part in ("peak 26.00 GiB, backward", "bwd:pre_backward_end:root", "model.layers.3", "device 29.00 GiB"):
        assert part in words


def test_a_long_event_loses_its_middle_only() -> None:
    event = "bwd:pre_backward_end:model.layers." + "9" * 80 + ".tail"
    words = [e.text or "" for group in with_class(drawn(small_rank(event=event)), "peak-words") for e in group]
    assert [w for w in words if "\u2026" in w and w.startswith("bwd:pre") and w.endswith(".tail")]
    assert max(map(len, words)) <= 56


def test_the_capacity_is_a_line_on_the_scale_of_the_bytes() -> None:
    line = with_class(drawn(), "capacity")[0]
    assert number(line, "y1") == number(line, "y2") == pytest.approx(TOP + (BOTTOM - TOP) * (1 - 1 / 1.05), abs=0.01)
    assert "capacity 40.00 GiB" in "".join(drawn().itertext())


def test_a_capacity_far_above_is_drawn_at_the_edge_and_says_so() -> None:
    root = drawn(capacity=400 * GIB)
    assert number(with_class(root, "capacity")[0], "y1") == TOP
    assert "above this scale" in "".join(root.itertext())


def test_no_capacity_no_line() -> None:
    assert not with_class(drawn(capacity=None), "capacity")


def test_phase_bands_cover_the_axis_once_and_are_named() -> None:
    strips = with_class(drawn(), "strip")
    assert ["".join(e.itertext()) for e in strips] == ["forward", "backward", "optimizer"]
    assert sum(number(e, "width") for e in strips) == pytest.approx(100, abs=0.02)
    assert [(r.first, r.end) for r in phase_runs(small_series())] == [(0, 2), (2, 5), (5, 6)]


def test_dates_never_run_backwards() -> None:
    x = edges(small_series(), "time")
    assert list(x) == sorted(x)
    assert x[:6] == (0.0, 0.1, 0.1, 0.5, 0.5, 0.9)


def test_a_series_without_a_timeline_has_no_time() -> None:
    assert has_time(small_series())
    assert not has_time(small_series(time_s=(0.0,) * 6))


def test_the_chart_can_be_told_in_words() -> None:
    root = drawn()
    title, description = text_alternative(small_rank(), CAPACITY, "issue")
    assert root.attrib["role"] == "img"
    labels = {e.attrib["id"]: e.text for e in root if e.tag in ("title", "desc")}
    assert labels == {root.attrib["aria-labelledby"]: title, root.attrib["aria-describedby"]: description}
    assert "26.00 GiB allocated, phase backward" in description
    assert "activation 9.00 GiB, sharded_param 8.00 GiB, backward_temp 5.00 GiB" in description


def test_a_category_that_is_not_known_is_drawn_and_escaped() -> None:
    name = 'new"><script>alert(1)</script>'
    series = small_series(categories=("opt_state", "activation", "sharded_param", name))
    assert name in {e.attrib["data-category"] for e in with_class(drawn(small_rank(series)), "layer")}


def test_one_sample_is_enough() -> None:
    series = small_series(event_index=(7,), time_s=(0.0,), phases=("forward",), values=((GIB,), (0,), (GIB,), (0,)))
    assert len(with_class(drawn(small_rank(series)), "layer")) == 2


def test_memory_that_is_always_zero_can_be_drawn() -> None:
    series = small_series(values=((0,) * 6,) * 4)
    assert not with_class(drawn(small_rank(series, device_bytes=0), capacity=None), "layer")


def test_no_series_is_refused() -> None:
    with pytest.raises(ValueError, match="no memory series"):
        memory_chart(small_rank().model_copy(update={"memory": None}), CAPACITY, "issue", "r1")


@pytest.mark.parametrize("gib", [0.003, 0.4, 1, 7, 79.65, 180, 20_000])
def test_ticks_are_round_and_few(gib: float) -> None:
    marks = gib_ticks(gib * GIB)
    assert marks[0][0] == 0
    assert 3 <= len(marks) <= 10
    assert len({label for _, label in marks}) == len(marks)
    assert marks[-1][0] <= gib * GIB * 1.001


def test_ticks_lie_inside() -> None:
    assert ticks(3.0, 61.0, 8) == (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)


def test_each_category_of_the_interface_has_its_own_swatch() -> None:
    looks = [(s.tone, s.texture) for s in CATEGORIES.values()]
    assert len(set(looks)) == len(looks)
    assert {s.tone for s in CATEGORIES.values()} == set(TONES)


def _oklab(colour: str, seen: tuple[tuple[float, float, float], ...]) -> tuple[float, ...]:
    """Place of a colour in Oklab (Ottosson 2020), as somebody sees it."""
    raw = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in raw]
    r, g, b = (sum(x * y for x, y in zip(row, linear, strict=True)) for row in seen)
    cones = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
             0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
             0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b)
    l, m, s = (max(c, 0.0) ** (1 / 3) for c in cones)
    return (0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
            1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
            0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s)


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_tones_can_be_told_apart(eyes: str, scheme: int) -> None:
    places = [_oklab(pair[scheme], SEEN[eyes]) for pair in TONES.values()]
    nearest = min(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
                  for a, b in itertools.combinations(places, 2))
    assert nearest > (0.1 if eyes == "all cones" else 0.055)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_names_on_layers_can_be_read(scheme: int) -> None:
    for name, pair in TONES.items():
        tone = luminance(pair[scheme])
        ink = 1.0 if tone < 0.26 else luminance("#10141a")
        assert (max(tone, ink) + 0.05) / (min(tone, ink) + 0.05) >= 3.3, name
