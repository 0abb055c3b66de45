"""Pictures of the studio in `docs/studio.md` show it as it is: the tutorial's recipe, mended, and its frontier.

    make studio-pictures      # takes them again

They are compared at a glance, as small grey pictures, because fonts differ between machines.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator

from browsed_page import Page
from checkout import ROOT
from tutorial import recipe

FOLDER = ROOT / "docs" / "pictures"
MOST_BYTES, WIDTH, HEIGHT = 120_000, 1280, 800
MOST_DIFFERENT = 3.0
"""Mean difference of two grey values, of 255, of the small pictures."""
GREY = """(async () => {
    const grey = async text => {
        const picture = new Image(); picture.src = 'data:image/webp;base64,' + text; await picture.decode();
        const board = new OffscreenCanvas(128, 80).getContext('2d');
        board.drawImage(picture, 0, 0, 128, 80);
        const all = board.getImageData(0, 0, 128, 80).data;
        return Array.from({ length: all.length / 4 }, (_, at) => (all[4 * at] + all[4 * at + 1] + all[4 * at + 2]) / 3);
    };
    const [one, other] = [await grey(%s), await grey(%s)];
    return one.reduce((sum, value, at) => sum + Math.abs(value - other[at]), 0) / one.length;
})()"""


def shot(page: Page) -> bytes:
    """A picture of what is in view."""
    page.settled()
    page.run("window.scrollTo(0, 0)")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
    return base64.b64decode(page.tab.call("Page.captureScreenshot", format="webp", quality=80, clip=clip)["data"])


def different(page: Page, one: bytes, other: bytes) -> float:
    texts = (json.dumps(base64.b64encode(each).decode()) for each in (one, other))
    return float(page.run(GREY % tuple(texts)))


def mended(page: Page) -> Iterator[tuple[str, bytes]]:
    """The tutorial's recipe, dropped on the page; then the first change that makes it fit."""
    page.open(WIDTH)
    page.drop("recipe.yaml", recipe().encode())
    page.until("!document.getElementById('recipe').hidden")
    page.answer()
    page.until("document.getElementById('field-model').value.includes('wen3-8')")
    page.until("/Out of memory/.test(document.querySelector('[data-part=verdict]').innerText)")
    page.until("document.querySelector('[data-changes]')")
    yield "studio-oom", shot(page)
    page.click("[data-changes]")
    page.until("/Fits/.test(document.querySelector('[data-part=verdict]').innerText)")
    yield "studio-fits", shot(page)


def test_the_pictures_show_the_studio_as_it_is(page: Page) -> None:
    shots = dict(mended(page))
    page.tab.open("about:blank", WIDTH)
    for name, taken in shots.items():
        file = FOLDER / f"{name}.webp"
        assert len(taken) < MOST_BYTES, name
        if os.environ.get("WRITE"):
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(taken)
        assert different(page, file.read_bytes(), taken) < MOST_DIFFERENT, f"{name}: make studio-pictures"
    assert different(page, *shots.values()) > MOST_DIFFERENT  # it tells one from the other
