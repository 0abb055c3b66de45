"""The built site, behind a server of this process, and a browser tab that shows it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from browser import Tab, tab
from checkout import ROOT

SITE = ROOT / "build" / "site"


class Served(SimpleHTTPRequestHandler):
    """Files of the site, without a line for each request."""

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="session")
def site() -> Path:
    assert (SITE / "index.html").is_file(), "run: make site"
    return SITE


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def shown() -> Iterator[Tab]:
    with tab() as made:
        yield made
