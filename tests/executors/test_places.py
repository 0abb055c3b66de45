"""Places by name: what is none, clusters that are not there, libraries that are not installed."""

from __future__ import annotations

import socket
import sys
import time

import pytest

from simcore.errors import InputError
from simcore.executors.interrupts import interrupts
from simcore.executors.places import place_named


@pytest.mark.parametrize("name", [
    "slurm", "dask:", "dask://", "dask://host", "dask://host:0", "dask://host:70000", "ray://:80", "ray://a b:80",
    "ray://host:x", "DASK", "dask://auto", "tcp://host:8786"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="expected dask, ray, dask://HOST:PORT"):
        place_named(name, None)


def test_a_number_of_processes_is_for_local_clusters() -> None:
    with pytest.raises(InputError, match="expected no -j with an address"):
        place_named("dask://host:8786", 4)


@pytest.mark.parametrize("library", ["dask", "ray"])
def test_a_library_that_is_missing_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, {"dask": "distributed", "ray": "ray"}[library], None)
    opened = place_named(library, 2)
    with interrupts() as asked, pytest.raises(InputError, match=rf"pip install 'rankscope\[{library}\]'"), \
            opened(abs, asked):
        pass


@pytest.mark.parametrize("library", ["dask", "ray"])
def test_a_cluster_that_cannot_be_reached_is_said_at_once(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of the library is used, so any module will do."""
    monkeypatch.setitem(sys.modules, {"dask": "distributed", "ray": "ray"}[library], sys)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        start = time.monotonic()
        with interrupts() as asked, pytest.raises(InputError, match="cannot be reached: connection refused"), \
                place_named(f"{library}://127.0.0.1:{port}", None)(abs, asked):
            pass
    assert time.monotonic() - start < 25
