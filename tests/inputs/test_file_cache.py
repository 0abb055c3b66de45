"""Values of files: read once, and again when a file has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.inputs.file_cache import FileCache


def test_it_reads_again_what_changed_itself_or_what_it_came_from(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("a")
    other.write_text("b")
    reads: list[Path] = []

    def read(file: Path) -> tuple[str, list[Path]]:
        reads.append(file)
        return file.read_text() + (other.read_text() if other.exists() else ""), [other]

    cache = FileCache(read)
    assert [cache(path), cache(path)] == ["ab", "ab"]
    assert len(reads) == 1
    other.write_text("longer")
    assert cache(path) == "alonger"
    path.write_text("other")
    assert cache(path) == "otherlonger"
    other.unlink()
    assert cache(path) == "other"


def test_what_cannot_be_read_is_not_kept(tmp_path: Path) -> None:
    cache = FileCache(lambda path: (path.read_text(), []))
    with pytest.raises(FileNotFoundError):
        cache(tmp_path / "a")
    (tmp_path / "a").write_text("a")
    assert cache(tmp_path / "a") == "a"


def test_very_many_files_are_not_all_kept(tmp_path: Path) -> None:
    cache = FileCache(lambda path: (path.read_text(), []))
    for number in range(200):
        (tmp_path / f"{number}").write_text(f"{number}")
        assert cache(tmp_path / f"{number}") == f"{number}"
    assert len(cache._kept) <= 64
