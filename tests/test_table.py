"""What lies on a rank and two results side by side, as a person sees them."""

from __future__ import annotations

import io

from rich.console import Console

from fakes import rank, report
from simcore import table
from simcore.compare import compare


def shown(*parts: object, width: int = 240) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(*parts, sep="\n")
    return stream.getvalue()


def test_placement_lists_components_padding_and_total() -> None:
    text = shown(*table.placement(report(ranks=(rank(None, apportioned=True),))))
    assert "ranks 0-3 (4 alike), stage 0, pp=0 dp_shard=0-3" in text
    assert "apportioned" in text
    total = next(line for line in text.splitlines() if line.strip().startswith("total"))
    for word in ("2,147,483,648", "536,870,912", "4.00 GiB", "1.00 GiB", "2.00 GiB", "7.00 GiB"):
        assert word in total
    assert "1.00 KiB" in text


def test_comparison_shows_signs_and_percent() -> None:
    text = shown(table.comparison(compare(report("a", 40), report("b", 50))))
    device = next(line for line in text.splitlines() if "device" in line)
    for word in ("40.00 GiB", "50.00 GiB", "+10.00 GiB", "+25.0"):
        assert word in device
