"""A headless Chromium that tests drive over its own pipe (DevTools protocol): no driver, no port, no network.

Messages are JSON texts that end with a NUL, written to the browser's file descriptor 3 and read from its 4
(`--remote-debugging-pipe`).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Tab", "family", "processor_seconds", "tab"]

_AS_3_AND_4 = """import fcntl, os, sys
hears, tells = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(hears, 3), os.dup2(tells, 4)
os.execvp(sys.argv[3], sys.argv[3:])"""
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


class Tab:
    """One page of the browser.

    `complaints`: what came on its console, refusals of the content policy included. `requests`: what it asked for.
    """

    def __init__(self, to_browser: int, from_browser: int, process: int) -> None:
        self.to_browser, self.from_browser, self.process = to_browser, from_browser, process
        self.number, self.rest, self.session, self.before_s = 0, b"", "", 0.0
        self.complaints: list[str] = []
        self.events: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> Any:
        """Answer of the browser to one command."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.from_browser], [], [], 60)
            assert ready, "the browser says nothing"
            read = os.read(self.from_browser, 1 << 20)
            assert read, "the browser has ended"
            self.rest += read
        text, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, told = message.get("method", ""), message.get("params", {})
        self.events.append(method)
        if method in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(told)[:500])
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])

    def shape(self, width: int, *, dark: bool) -> None:
        """Gives the screen a width in pixels, and light or dark colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path | str, width: int = 1280, *, dark: bool = False) -> float:
        """Shows a file, or an address; the seconds until it was loaded and drawn."""
        self.shape(width, dark=dark)
        self.events.clear()
        self.before_s = self._seconds()
        start = time.monotonic()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while "Page.loadEventFired" not in self.events:
            self._next()
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        return time.monotonic() - start

    def busy(self) -> float:
        """Seconds of a processor that pages took since the last one was asked for."""
        return self._seconds() - self.before_s

    def _seconds(self) -> float:
        return sum(map(processor_seconds, _renderers(self.process)))

    def memory(self) -> float:
        """Bytes of memory that only the process of the page in view has."""
        return max(map(_private_bytes, _renderers(self.process)), default=0.0)

    def run(self, script: str) -> Any:
        """The value of an expression in the page. AssertionError if it throws."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, as from a keyboard."""
        text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        codes = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes.get(key, 0),
                      **({"text": text} if text and kind == "keyDown" else {}))

    def picture(self, file: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        width, height = max(size["width"], self.run("innerWidth")), min(size["height"], 16000)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def tab() -> Iterator[Tab]:
    """A new browser with one tab; the test is skipped where there is no Chromium."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        pytest.skip("no chromium on this machine: pages were not opened in a browser")
    hears, to_browser = os.pipe()
    from_browser, tells = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                   f"--user-data-dir={profile}", "--no-first-run", "about:blank"]
        process = subprocess.Popen([sys.executable, "-c", _AS_3_AND_4, str(hears), str(tells), *command],
                                   pass_fds=(hears, tells), process_group=0,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(hears)
        os.close(tells)
        try:
            yield _attached(Tab(to_browser, from_browser, process.pid))
        finally:
            os.close(to_browser)
            os.close(from_browser)
            process.terminate()
            process.wait(30)


def _renderers(browser: int) -> Iterator[int]:
    """Processes of the browser that draw pages."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
            family = int((folder / "stat").read_text().rpartition(")")[2].split()[2])
        except OSError:
            continue
        if family == os.getpgid(browser) and "--type=renderer" in command:
            yield int(folder.name)


def family(process: int) -> list[int]:
    """Numbers of a process and of all that it started."""
    found = [process]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def processor_seconds(process: int) -> float:
    """Seconds of a processor that a process has taken; 0 for one that has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _private_bytes(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024.0 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def _attached(made: Tab) -> Tab:
    target = made.call("Target.createTarget", url="about:blank")["targetId"]
    made.session = made.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        made.call(f"{domain}.enable")
    return made
