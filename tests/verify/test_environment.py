"""The environment of frameworks: where it lies, what is installed when, and what is said where it cannot be made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checkout import ROOT
from simcore.errors import InputError
from simcore.verify import environment as made
from simcore.verify.sides.registry import SIDES
from simcore.verify.sides.side import Side

PINS = sorted((ROOT / "simcore/verify/pins").glob("*.txt"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder; an installer that writes down what it is asked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake = tmp_path / "installer"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n', encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setattr(made, "_maker", lambda at: [sys.executable, "-c", (
        f"import pathlib; at = pathlib.Path({str(at)!r}) / 'bin'; at.mkdir(parents=True); (at / 'python').touch()")])
    monkeypatch.setattr(made, "_installers", lambda python, name: [[[str(fake), name]]])
    return tmp_path


def test_packages_of_a_framework_are_added_once(folder: Path) -> None:
    said: list[str] = []
    first = made.environment(("torch", "transformers"), said.append)
    assert made.environment(("torch", "adapters"), said.append) == first
    assert made.environment(("torch", "adapters"), said.append).is_relative_to(folder / "rankscope")
    assert (folder / "asked").read_text(encoding="utf-8").split() == ["torch", "transformers", "adapters"]
    assert [line.split()[0] for line in said] == ["making", "installing", "installing", "installing"]


def test_an_environment_that_cannot_be_made_is_one_line_and_is_tried_again(folder: Path) -> None:
    (folder / "installer").write_text(
        "#!/bin/sh\n(echo 'ERROR: no network'; echo 'ERROR: see advice') >&2\nexit 1\n", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(InputError, match="cannot be made; name one with --python: ERROR: no network"):
            made.environment(("torch",), lambda _: None)


@pytest.mark.parametrize("uv", [None, "/bin/uv"])
def test_torch_is_the_build_without_cuda_and_nothing_brings_its_own_versions(
        uv: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By uv or by pip; where PyTorch's own index is out of reach uv is asked once more, pip asks all at once."""
    monkeypatch.setattr("shutil.which", lambda name: uv)
    torch, others = (made._installers(tmp_path / "python", name) for name in ("torch", "adapters"))
    assert ("--torch-backend" in torch[0][0]) == (uv is not None)
    assert (made.CPU_INDEX in torch[-1][1]) == (sys.platform == "linux")
    assert [len(torch), len(others)] == ([1, 1] if uv is None else [3, 2])
    installs = [command for way in (*torch, *others) for command in way if "install" in command]
    assert len(installs) == len(torch) + len(others)
    assert all("--no-deps" in command for command in installs)
    assert made.CPU_INDEX not in others[-1][1]


def test_a_torch_with_cuda_is_not_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be imported where CUDA's libraries are not: the next way is tried; if none is left, it is said."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text("raise ImportError('libcudnn.so.9')", encoding="utf-8")
    version = folder / "torch/version.py"
    version.write_text("__version__ = '2.13.0'\ncuda = '13.0'\nhip = None\n", encoding="utf-8")
    shown = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}){made._EXPECT_CPU}"]
    another = [sys.executable, "-c", f"open({str(version)!r}, 'a').write('cuda = None')"]
    monkeypatch.setattr(made, "_installers", lambda python, name: [[shown]])
    for _ in range(2):
        with pytest.raises(InputError, match=r"error: 2\.13\.0 is not the build of torch without CUDA, which http"):
            made.environment(("torch",), lambda _: None)
    monkeypatch.setattr(made, "_installers", lambda python, name: [[shown], [another, shown]])
    assert made.environment(("torch",), lambda _: None).name == "python"


def test_a_cache_folder_is_absolute_or_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert made.cache_folder().is_relative_to(tmp_path)
    assert made.cache_folder().name == "rankscope"


def test_every_package_is_pinned_to_the_version_of_the_stored_truth() -> None:
    truth = {line.strip().lower() for name in ("requirements.txt", "requirements-nodeps.txt")
             for line in (ROOT / "tests/truth" / name).read_text(encoding="utf-8").splitlines() if "==" in line}
    pinned = {line.strip().lower() for file in PINS for line in file.read_text(encoding="utf-8").splitlines()
              if not line.startswith("#")}
    assert pinned - truth == {"setuptools==84.2.1"}  # torch asks for it, and the truth's environment brought its own


def test_sides_name_files_of_pins() -> None:
    named = {name for side in SIDES.values() for name in side.pins}
    assert named == {file.stem for file in PINS}


@pytest.mark.parametrize("side", SIDES.values(), ids=SIDES)
def test_sides_name_scripts_with_a_function(side: Side) -> None:
    script = ROOT / "simcore/verify/real" / f"{side.script}.py"
    assert "def found(case" in script.read_text(encoding="utf-8")
