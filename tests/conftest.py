"""Fixtures of every test, in one process or in several."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from command import Ran, Run
from simcore.cli import app as cli
from simcore.frameworks.common import transformers

pytest.register_assert_rewrite("eventlog", "claims")
settings.register_profile("shared machine", deadline=None)  # an example may wait for a core
settings.load_profile("shared machine")
gc.set_threshold(100_000, 20, 50)  # as the command does; tests, too, seldom make circles
os.environ.pop("COLUMNS", None)  # a terminal may tell its width; tables are tested as a pipe gets them


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs `rankscope` with arguments, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["rankscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Ran(end.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def _fused_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps attention one kernel: records are of a CPU, whose kernel takes grouped heads in fp32, unlike CUDA's."""
    monkeypatch.setattr(transformers, "runs_math", lambda job, options: False)


@pytest.fixture
def _listening() -> Iterator[None]:
    """A shell that starts tests in the background lets them ignore Ctrl-C, and their children with them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
