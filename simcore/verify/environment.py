"""The environment in which frameworks run: made once under the user's cache folder, from pinned packages alone.

One environment serves all frameworks. Its folder has the Python version and a digest of the pins in its name, so that
other pins are another environment; files `pins/NAME.txt` are installed when the first scenario needs them. They are
complete, and are installed without dependencies: some frameworks ask for versions of transformers that exclude each
other. By uv if it is there; where it is not, or fails, by pip, which has a configuration of indexes of its own. Torch
is the build without CUDA, or is not installed: the common index's cannot be imported without CUDA's libraries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from simcore.batch.lock import locked
from simcore.errors import InputError, Problem
from simcore.inputs.paths import exists, writing
from simcore.verify.ask import last_words

__all__ = ["cache_folder", "environment"]

PINS: Final = Path(__file__).parent / "pins"
CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds without CUDA, which are a tenth as large (pytorch.org, Get Started)."""
_INSTALLING: Final = 3600
"""Seconds for the packages of one file."""
_EXPECT_CPU: Final = f"""
import importlib.util, pathlib, runpy, sys
built = runpy.run_path(str(pathlib.Path(importlib.util.find_spec("torch").origin).with_name("version.py")))
if built.get("cuda") or built.get("hip"):
    sys.exit(f"error: {{built['__version__']}} is not the build of torch without CUDA, which {CPU_INDEX} has")
"""
"""Torch is not imported: what it imports itself is installed later."""


def cache_folder() -> Path:
    """Folder for what can be made again: XDG_CACHE_HOME/rankscope, or where the system keeps such things."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():  # the XDG specification: a relative path is ignored
        return Path(given) / "rankscope"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "rankscope" / "Cache"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "rankscope"


def environment(pins: Sequence[str], say: Callable[[str], None]) -> Path:
    """Returns the Python of an environment that has the packages of all files `pins`; makes it, or adds to it.

    `say`: is told what takes long. InputError if the environment cannot be made, such as without a network.
    """
    digest = sha256(b"\n".join(file.read_bytes() for file in sorted(PINS.glob("*.txt")))).hexdigest()
    folder = cache_folder() / f"verify-python{sys.version_info[0]}.{sys.version_info[1]}-{digest[:12]}"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if all(exists(_stamp(folder, name)) for name in pins):
        return python
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock"), folder):
        if not exists(python):
            say(f"making an environment in {folder}")
            _expect([[_maker(folder)]], folder)
        for name in pins:
            if not exists(_stamp(folder, name)):
                say(f"installing the packages of {name}, once")
                _expect(_installers(python, name), folder)
                _stamp(folder, name).touch()
    return python


def _stamp(folder: Path, name: str) -> Path:
    return folder / f"{name}.installed"


def _maker(folder: Path) -> list[str]:
    uv = shutil.which("uv")
    return ([uv, "venv", "-q", "--python", sys.executable, str(folder)] if uv else
            [sys.executable, "-m", "venv", str(folder)])


def _installers(python: Path, name: str) -> list[list[list[str]]]:
    """Ways to install a file of pins, each of commands that must all succeed: of torch, the build without CUDA.

    PyTorch's own index has it; where that is out of reach the user's indexes may: uv is asked once more, then pip.
    """
    is_torch, uv = name == "torch", shutil.which("uv")
    given = ["--no-deps", "-r", str(PINS / f"{name}.txt")]
    shown = [[str(python), "-I", "-c", _EXPECT_CPU]] if is_torch else []
    again = ["--force-reinstall"] if is_torch and uv else []  # over what uv installed
    index = ["--retries", "1", "--extra-index-url", CPU_INDEX] if is_torch and sys.platform == "linux" else []
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *again, *index, *given]
    ways = [[[str(python), "-m", "ensurepip"], pip, *shown]]  # an environment of uv's has no pip
    if uv:
        plain = [uv, "pip", "install", "-q", "--python", str(python), *given]
        backends = [["--torch-backend", "cpu"], []] if is_torch else [[]]
        ways = [[[*plain, *backend], *shown] for backend in backends] + ways
    return ways


def _expect(ways: Sequence[Sequence[Sequence[str]]], folder: Path) -> None:
    """Tries ways until all commands of one succeed; InputError with the last one's last words if none does."""
    failed = ""
    for commands in ways:
        failed = next((said for said in map(_failure, commands) if said), "")
        if not failed:
            return
    raise InputError(Problem(str(folder), f"the environment cannot be made; name one with --python: {failed}"))


def _failure(command: Sequence[str]) -> str:
    """Why a command failed; "" if it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8",  # noqa: S603
                              errors="replace", timeout=_INSTALLING, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return _reason(done.stderr or done.stdout) if done.returncode else ""


def _reason(text: str) -> str:
    """The first line that an installer calls an error (pip follows it with advice), else its last words."""
    errors = (line for line in text.splitlines() if line.lower().startswith("error"))
    return next(errors, last_words(text))[:300]
