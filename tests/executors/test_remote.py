"""A chunk on a worker of a cluster: packed, computed in the folder of the command, packed again; unfit workers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.executors import remote
from simcore.executors.executor import Done, Unsent
from simcore.executors.remote import Packer, result_of, served


def where(task: int) -> tuple[int, str]:
    return task, str(Path.cwd())


def lock(task: int) -> object:
    return threading.Lock()


def test_a_chunk_is_answered_in_the_folder_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver").mkdir()
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    packed = Packer(where).packed(5, [1, 2])
    assert isinstance(packed, bytes)
    monkeypatch.chdir(tmp_path / "worker")
    result = result_of(5, served(packed), "--on dask")
    assert isinstance(result, Done)
    assert (result.chunk, list(result.answers)) == (5, [(task, str(tmp_path / "driver")) for task in (1, 2)])
    assert result.seconds >= 0
    assert str(Path.cwd()) == str(tmp_path / "worker")


def test_what_cannot_be_packed_is_said() -> None:
    unsent = Packer(where).packed(3, [threading.Lock()])
    assert isinstance(unsent, Unsent)
    assert "cannot pickle" in unsent.why
    packed = Packer(lock).packed(4, [1])
    assert isinstance(packed, bytes)
    back = result_of(4, served(packed), "--on dask")
    assert isinstance(back, Unsent)
    assert back.chunk == 4
    assert "cannot pickle" in back.why


def test_a_worker_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Packer(where).packed(1, [1])
    assert isinstance(packed, bytes)
    monkeypatch.setattr(remote, "engine", lambda: "another")
    with pytest.raises(InputError, match=r"--on ray: the worker on \S+ has another version of rankscope"):
        result_of(1, served(packed), "--on ray")


def test_a_worker_without_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "only-here"
    there.mkdir()
    monkeypatch.chdir(there)
    packed = Packer(where).packed(1, [1])
    assert isinstance(packed, bytes)
    monkeypatch.chdir(tmp_path)
    there.rmdir()
    with pytest.raises(InputError, match=r"has no folder .*only-here"):
        result_of(1, served(packed), "--on ray")
