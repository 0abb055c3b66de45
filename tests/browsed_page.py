"""The studio's page in a browser tab, and what a person does with it."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

from browser import Tab, family, processor_seconds

__all__ = ["LIMIT_S", "Page"]

LIMIT_S = 60.0


class Page:
    """The studio's page in a tab. `studio`: number of the studio's process; `clicks`: what a person did so far."""

    def __init__(self, shown: Tab, address: str, shots: Path, studio: int) -> None:
        self.tab, self.address, self.shots, self.studio, self.clicks = shown, address, shots, studio, 0

    def processor_s(self) -> float:
        """Seconds of a processor that the studio and the browser have taken."""
        return sum(map(processor_seconds, (*family(self.studio), *family(self.tab.process))))

    def open(self, width: int = 1280, *, dark: bool = False, address: str = "") -> None:
        self.tab.open("about:blank")
        self.tab.open(address or self.address, width, dark=dark)
        self.until("document.querySelector('[data-part=verdict] .verdict')")
        self.clicks = 0

    def run(self, script: str) -> Any:
        return self.tab.run(script)

    def until(self, condition: str, limit_s: float = LIMIT_S) -> None:
        end = time.monotonic() + limit_s
        while not self.run(f"!!({condition})"):
            assert time.monotonic() < end, f"{condition}; {self.text('#notice')}"
            time.sleep(0.03)

    def settled(self) -> None:
        """Waits until the answer in view is that of the job."""
        self.until("!document.body.classList.contains('stale') && document.getElementById('busy').textContent === ''")

    def drawn(self) -> None:
        """Waits until every picture in view is that of the job."""
        self.settled()
        self.until("!document.querySelector('.old, [aria-busy=true]')")

    def text(self, selector: str) -> str:
        """Text of an element; also of one that is not drawn because it is far from the screen."""
        return str(self.run(f"(one => one.innerText || one.textContent || '')"
                            f"(document.querySelector({json.dumps(selector)}) || {{}})"))

    def click(self, selector: str) -> None:
        """A click of the mouse, where a person would click: on what has stopped to move.

        Parts far from the screen are laid out after a scroll has reached them, so a click that follows at once can
        fall beside the element; like a person, this then clicks again.
        """
        self.clicks += 1
        end = time.monotonic() + LIMIT_S
        while not self._clicked(selector):
            assert time.monotonic() < end, f"{selector}: no click falls on it"

    def _clicked(self, selector: str) -> bool:
        """One press of the mouse on an element that stands still; false where it fell beside the element."""
        place, before = self._place(selector), None
        while place != before:
            time.sleep(0.05)
            place, before = self._place(selector), place
        self.run(f"""(() => {{ const found = document.querySelector({json.dumps(selector)}); window.fell_on = null;
            addEventListener('click', event => {{ window.fell_on = found.contains(event.target); }},
                             {{ capture: true, once: true }}); }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.tab.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
        return self.run("window.fell_on") is not False

    def _place(self, selector: str) -> Any:
        """Middle of an element, [x, y], once it is in view."""
        return self.run(f"""(() => {{ const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{ block: 'center' }}); const box = found.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2]; }})()""")

    def step(self, axis: str, by: int) -> None:
        """A click on plus or minus of a degree, once its legal values are there."""
        button = f"[data-axis={axis}] button:nth-of-type({2 if by > 0 else 1})"
        self.until(f"!document.querySelector('{button}').disabled")
        before = self.text(f"[data-axis={axis}] .value")
        self.click(button)
        self.until(f"document.querySelector('[data-axis={axis}] .value').innerText !== {json.dumps(before)}")
        self.settled()

    def choose(self, selector: str, value: str) -> None:
        """A value of a list, or a text that is typed into a field."""
        self.clicks += 1
        self.run(f"""(() => {{ const field = document.querySelector({json.dumps(selector)}); field.focus();
            field.value = {json.dumps(value)}; field.dispatchEvent(new Event('change', {{ bubbles: true }})); }})()""")

    def set(self, key: str, value: str) -> None:
        """A field of the job."""
        self.choose(f"#field-{key.replace('.', '-')}", value)
        self.settled()

    def drop(self, name: str, content: bytes) -> None:
        """A file, dropped on the page."""
        self.clicks += 1
        self.run(f"""(() => {{ const data = new DataTransfer();
            const bytes = Uint8Array.from(atob('{base64.b64encode(content).decode()}'), one => one.charCodeAt(0));
            data.items.add(new File([bytes], {json.dumps(name)}));
            dispatchEvent(new DragEvent('drop', {{ dataTransfer: data, cancelable: true }})); }})()""")

    def answer(self, topology: str = "dgx-h100", gpus: str = "8", **others: str) -> None:
        """Answers in the form of a recipe, those that it asks for, which is then used."""
        self.until("!!document.querySelector('#recipe .asked')")
        for field, value in {"topology": topology, "gpus": gpus, **others}.items():
            selector = f"#asked-{field}"
            if self.run(f"!!document.querySelector('{selector}')"):
                self.choose(selector, value)
        self.click("#recipe .asked [type=submit]")

    def measures(self, name: str) -> list[float]:
        """Milliseconds of each measure of that name."""
        entries = f"performance.getEntriesByName('{name}').map(entry => entry.duration)"
        return list(json.loads(self.run(f"JSON.stringify({entries})")))

    def picture(self, name: str) -> None:
        """A picture of the whole page, in which every part is that of the job."""
        self.drawn()
        self.run("scrollTo(0, 0)")
        self.tab.picture(self.shots / f"{name}.png")
