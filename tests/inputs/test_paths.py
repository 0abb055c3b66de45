"""Files that are written whole or not at all, and questions that never raise."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.inputs.paths import exists, is_dir, is_file, unusable, whole, write_whole, writing

LONG = "x" * 300


def test_a_file_is_there_at_once_with_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with whole(path) as file:
        file.write(b"n")
        file.flush()
        assert path.read_text() == "old"
        file.write(b"ew")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]  # noqa: PTH208


def test_what_fails_leaves_the_older_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(TypeError), whole(path) as file:
        file.write(b"new" + bytes("text"))  # type: ignore[arg-type]
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


def test_mode_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    write_whole(tmp_path / "b.txt", "\u00e9")
    assert (tmp_path / "b.txt").read_bytes() == b"\xc3\xa9"
    assert stat.S_IMODE((tmp_path / "b.txt").stat().st_mode) & 0o600 == 0o600


def test_devices_and_pipes_are_written_to_as_they_are(tmp_path: Path) -> None:
    write_whole(Path("/dev/null"), "text")
    assert not Path("/dev/null").is_file()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)


SHARED = Path("/dev/shm")  # noqa: S108 - a folder of its own in it


@pytest.mark.skipif(not SHARED.is_dir(), reason="has no file system in memory")
def test_a_file_system_in_memory_is_no_device() -> None:
    with tempfile.TemporaryDirectory(dir=SHARED) as folder:
        path = Path(folder, "a.txt")
        path.write_text("old")
        with suppress(ZeroDivisionError), whole(path) as file:
            file.write(b"x" * (1 // 0))
        assert path.read_text() == "old"


def test_names_of_any_length_are_written(tmp_path: Path) -> None:
    path = tmp_path / ("\u00e9" * 127)
    write_whole(path, "text")
    assert [one.read_text() for one in tmp_path.iterdir()] == ["text"]


def test_questions_about_impossible_paths_have_answers(tmp_path: Path) -> None:
    for path in (tmp_path / LONG, tmp_path / "a\0b"):
        assert (exists(path), is_dir(path), is_file(path)) == (False, False, False)
    assert (is_dir(tmp_path), is_file(tmp_path), exists(tmp_path)) == (True, False, True)
    assert "too long" in unusable(tmp_path / LONG)
    assert unusable(tmp_path / "new") == ""


def test_what_cannot_be_written_is_a_wrong_input(tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.txt"
    with pytest.raises(InputError, match="cannot be written: No such file"), writing(path):
        write_whole(path, "text")
