"""The palette: colours and textures that can be distinguished, also with colour blindness."""

from __future__ import annotations

import itertools

import pytest

from viz.palette import CATEGORIES, TONES, luminance

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as eyes without one kind of cones see it.
SEEN = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red cones": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green cones": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "no blue cones": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def test_each_category_of_the_interface_has_its_own_swatch() -> None:
    looks = [(s.tone, s.texture) for s in CATEGORIES.values()]
    assert len(set(looks)) == len(looks)
    assert {s.tone for s in CATEGORIES.values()} == set(TONES)


def _oklab(colour: str, seen: tuple[tuple[float, float, float], ...]) -> tuple[float, ...]:
    """Returns the colour in Oklab (Ottosson 2020), as eyes with the cone response `seen` see it."""
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
