"""Measured curves: exact at their points, between them a line, beyond them a guess that is called one."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkout import ROOT
from pages import shown, write
from simcore.errors import InputError
from simcore.hardware.collective_curves import Curve, Curves, curve_names, find_curves, load_curves

NAMES = curve_names()

# (file, collective, ranks): microseconds at 512 B, 1 MiB and 512 MiB, picked by hand from the source's tables.
PICKED: Final = {
    ("h100-sxm", "all_gather", 8): (10.14, 17.13, 1401.5),
    ("h100-sxm", "all_reduce", 4): (9.46, 18.12, 2299.71),
    ("h200-sxm", "all_reduce", 8): (16.01, 26.14, 2040.31),
    ("b200-sxm", "reduce_scatter", 8): (16.13, 20.37, 766.45),
    ("b300-sxm", "all_to_all", 4): (10.57, 17.57, 802.0),
    ("gb200", "all_to_all", 4): (10.68, 17.85, 825.37),
    ("gb300", "all_gather", 2): (8.21, 12.4, 599.03),
    ("a100-sxm", "reduce_scatter", 8): (15.58, 23.43, 2207.1),
    ("rtx-pro-6000", "all_gather", 8): (14.22, 75.26, 20405.3),
    ("l40s", "all_reduce", 8): (22.6, 863.2, 649471.0),
}


def curves(name: str) -> Curves:
    return load_curves(find_curves(name))


def points(name: str) -> list[tuple[str, int, int, str]]:
    """(collective, ranks, bytes, microseconds) of a file, read as plain text."""
    found, collective, ranks = [], "", [""]
    for line in (ROOT / "topologies" / "nccl" / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if head := re.match(r"  (\w+): \|", line):
            collective = head[1]
        elif line.startswith("    bytes"):
            ranks = line.split()[1:]
        elif line.startswith("    "):
            size, *times = line.split()
            found += [(collective, int(n), int(size), us) for n, us in zip(ranks, times, strict=True)]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_measured_point_is_returned_exactly(name: str) -> None:
    measured_curves = curves(name)
    rows = points(name)
    assert len(rows) in {4 * 3 * 21, 4 * 2 * 21}
    for collective, ranks, size, us in rows:
        curve = measured_curves.measured(collective, ranks)
        assert curve is not None
        assert curve.ns(size) == round(float(us) * 1000)


@pytest.mark.parametrize("picked", PICKED, ids=lambda picked: "-".join(map(str, picked)))
def test_tables_stand_in_the_right_columns(picked: tuple[str, str, int]) -> None:
    name, collective, ranks = picked
    curve = curves(name).measured(collective, ranks)
    assert curve is not None
    assert tuple(curve.ns(size) for size in (2**9, 2**20, 2**29)) == tuple(round(us * 1000) for us in PICKED[picked])


@pytest.mark.parametrize("name", NAMES)
def test_files_name_their_source_and_version(name: str) -> None:
    measured_curves = curves(name)
    assert re.fullmatch(r"2\.\d+(\.\d+)?", measured_curves.nccl)
    assert measured_curves.nccl in measured_curves.source


@given(size=st.integers(2**9, 2**29))
def test_between_two_points_lies_what_they_say(size: int) -> None:
    curve = curves("h100-sxm").measured("all_to_all", 4)
    assert curve is not None
    below = max(s for s in curve.sizes if s <= size)
    above = min(s for s in curve.sizes if s >= size)
    low, high = sorted((curve.ns(below), curve.ns(above)))
    assert low <= curve.ns(size) <= high


def test_half_way_in_logarithms_is_the_geometric_mean() -> None:
    assert Curve((100, 10_000), (1_000, 16_000)).ns(1_000) == 4_000


def test_beyond_its_points_a_curve_keeps_its_last_bandwidth_and_its_first_time() -> None:
    curve = Curve((100, 200), (1_000, 1_500))
    assert (curve.ns(2_000), curve.ns(1), curve.ns(0)) == (15_000, 1_000, 1_000)


def test_the_running_maximum_never_falls() -> None:
    assert Curve((1, 2, 3, 4), (5, 4, 9, 8)).rising().times == (5, 5, 9, 9)


def test_an_unmeasured_number_of_ranks_has_no_curve() -> None:
    measured_curves = curves("h100-sxm")
    assert [measured_curves.measured("all_gather", ranks) is None for ranks in (1, 2, 3, 6, 8, 16)] == [
        True, False, True, True, False, True]
    assert (measured_curves.most_ranks("all_gather"), measured_curves.most_ranks("send_recv")) == (8, 0)


def test_leaving_a_point_out_tells_how_far_the_line_is_off() -> None:
    assert list(Curve((1, 10, 100), (100, 400, 400)).left_out()) == [pytest.approx(-0.5)]


HEAD = "machine: two GPUs\nnccl: '2.30'\nsource: ours\ncurves:\n  all_gather: |\n"


@pytest.mark.parametrize(("text", "told"), [
    ("    bytes 2\n    512 1.0\n", "two or more lines"),
    ("    size 2\n    512 1.0\n    1024 2.0\n", "a line of `bytes`"),
    ("    bytes 2 4\n    512 1.0\n    1024 2.0 3.0\n", "3 numbers in every line"),
    ("    bytes 2\n    1024 1.0\n    512 2.0\n", "bytes that rise"),
    ("    bytes 2\n    512 0.0\n    1024 2.0\n", "above zero"),
    ("    bytes 2\n    512 inf\n    1024 2.0\n", "expected a time in microseconds, got inf"),
    ("    bytes 2\n    512 nan\n    1024 2.0\n", "expected a time in microseconds, got nan"),
    ("    bytes 2\n    512 1e99\n    1024 2.0\n", "expected a time in microseconds, got 1e99"),
    ("    bytes 2\n    512 1.0\n    99999999999999999999 2.0\n", "bytes that rise"),
    ("    bytes 2\n    512 fast\n    1024 2.0\n", "could not convert"),
    ("    bytes 2\n    512 1.0\n    1024 2.0\n  gather: |\n    bytes 2\n    1 1\n    2 2\n", "curves.gather"),
])
def test_a_table_that_is_none_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"own\.yaml:\d+: .*{told}"):
        load_curves(path)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no curves 'h100-smx'; did you mean h100-sxm\? Known: a100-sxm"):
        find_curves("h100-smx")


# ---- the page -------------------------------------------------------------------------------------------------------
PAGE = ROOT / "docs" / "collectives.md"


def errors(name: str) -> dict[str, list[float]]:
    """By collective, how far the line between its neighbours is from each inner point."""
    found: dict[str, list[float]] = {}
    for (collective, _), curve in curves(name).by_ranks.items():
        found.setdefault(collective, []).extend(abs(error) for error in curve.left_out())
    return found


def left_out() -> str:
    """Median, nine in ten and worst error of leaving one point out, by file and collective."""
    collectives = list(curves(NAMES[0]).curves)
    lines = [f"| file | {' | '.join(collectives)} |", "|---" * (1 + len(collectives)) + "|"]
    for name in NAMES:
        found = errors(name)
        each = [found[collective] for collective in collectives]
        told = (f"{median(e):.1%}, {quantiles(e, n=10)[-1]:.0%}, {max(e):.0%}" for e in each)
        lines.append(f"| {name} | {' | '.join(told)} |")
    return "\n".join(lines)


def measured() -> str:
    """Collectives by number of ranks, and their rates at the largest message."""
    collectives = list(curves(NAMES[0]).curves)
    lines = [f"| file | machine | NCCL | ranks | {' | '.join(collectives)} |", "|---" * (4 + len(collectives)) + "|"]
    for name in NAMES:
        measured_curves = curves(name)
        ranks = [n for kind, n in measured_curves.by_ranks if kind == collectives[0]]
        rates = [", ".join(bus_bandwidth(kind, n, measured_curves.by_ranks[kind,
                                                                           n]) for n in ranks) for kind in collectives]
        cells = [name, measured_curves.machine, measured_curves.nccl, ", ".join(map(str, ranks)), *rates]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def bus_bandwidth(collective: str, ranks: int, curve: Curve) -> str:
    """As nccl-tests defines it, in GB/s."""
    factor = (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks
    return f"{curve.sizes[-1] * factor / curve.times[-1]:.4g}"


TABLES = {"measured": measured, "left out": left_out}


@pytest.mark.parametrize("name", TABLES)
def test_the_page_shows_what_the_files_say(name: str) -> None:
    assert shown(PAGE, name) == TABLES[name](), "run: PYTHONPATH=tests python tests/hardware/test_collective_curves.py"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "l40s"])
def test_half_of_all_points_are_met_within_six_percent_by_their_neighbours(name: str) -> None:
    assert all(0 < median(found) < 0.06 for found in errors(name).values())


if __name__ == "__main__":
    write(PAGE, TABLES)
