"""Colours of frameworks in the picture of a search: each stands out from light and from dark paper, and from others."""

from __future__ import annotations

import re
from itertools import combinations

from checkout import ROOT

STYLES = ROOT / "viz/style.css", ROOT / "simcore/studio/page/studio.css"


def variables(text: str, name: str) -> dict[str, str]:
    return dict(re.findall(rf"--({name}[\w-]*): (#[0-9a-f]{{6}})", text))


def parts(color: str) -> list[int]:
    return [int(color[at:at + 2], 16) for at in (1, 3, 5)]


def luminance(color: str) -> float:
    """Relative luminance of WCAG 2.2."""
    red, green, blue = (part / 12.92 if (part := value / 255) <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
                        for value in parts(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_each_framework_stands_out_from_the_paper_and_from_the_others() -> None:
    ours, pages = (path.read_text(encoding="utf-8") for path in reversed(STYLES))
    light, dark = ours.split("@media (prefers-color-scheme: dark)", 1)
    papers = re.findall(r"--paper: (#[0-9a-f]{6})", pages)
    for paper, hues in zip(papers[:2], (variables(light, "hue"), variables(dark, "hue")), strict=True):
        assert len(hues) == 9
        for hue in hues.values():
            high, low = sorted((luminance(hue), luminance(paper)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 3, (hue, paper)  # WCAG 2.2, 1.4.11
        for one, other in combinations(hues.values(), 2):
            assert sum(abs(a - b) for a, b in zip(parts(one), parts(other), strict=True)) > 60, (one, other)
