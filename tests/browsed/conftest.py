"""The studio as a process of its own, and a browser tab that shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from browsed_page import Page
from browser import tab
from checkout import ROOT


@pytest.fixture(scope="session")
def studio() -> Iterator[tuple[int, str]]:
    """Number of the studio's process, and its address."""
    script = Path(sys.executable).with_name("rankscope")
    with subprocess.Popen([script, "studio", "--port", "0"], stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        yield served.pid, served.stdout.readline().split()[3]
        served.terminate()


@pytest.fixture(scope="session")
def page(studio: tuple[int, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    shots = Path(os.environ.get("SHOTS") or tmp_path_factory.mktemp("shots"))
    shots.mkdir(parents=True, exist_ok=True)
    with tab() as shown:
        process, address = studio
        made = Page(shown, address, shots if shots.is_absolute() else ROOT / shots, process)
        made.open()
        made.until("performance.getEntriesByName('all pictures').length")  # workers are warm
        yield made
