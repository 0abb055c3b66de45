"""One case, judged within its bounds: whatever escapes is a fault of its own."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

from fuzz.bounds import BYTES, SECONDS, WALL, TooLong, bounded
from fuzz.case import PIPE, Fault, Findings, Input, Kind, Special

__all__ = ["judged", "write"]


def judged(kind: Kind, given: Input, seconds: float = SECONDS) -> Findings:
    """Findings on an input, run in a folder that has only the input's files."""
    found, back = Findings(), Path.cwd()
    with TemporaryDirectory(prefix="fuzz-") as folder:
        inner = Path(folder) / "in" / "here"  # what is written to `..` stays inside, too
        inner.mkdir(parents=True)
        os.chdir(inner)
        try:
            write(given, Path())
            with bounded(seconds):
                kind.judge(given, found)
        except TooLong:
            told = f"took more than {seconds:g} s of the processor, or {WALL:g} s of the clock"
            found.faults.append(Fault("answered in time", told))
        except MemoryError as error:
            told = f"took more than {BYTES >> 20} MiB at {_place(error)}"
            found.faults.append(Fault("answered in little memory", told))
        except Exception as error:  # noqa: BLE001 - the reason why there is a fuzzer
            found.faults.append(Fault(f"{type(error).__name__} at {_place(error)}", str(error)))
        finally:
            os.chdir(back)
    return found


def write(given: Input, folder: Path) -> None:
    """The files of an input below a folder, at their relative paths."""
    for name, held in given.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name == PIPE:
            os.mkfifo(path)
        elif isinstance(held, Special):
            _make(path, held)
        else:
            path.write_bytes(given.content(name))


def _make(path: Path, special: Special) -> None:
    match special.how:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(special.to)
        case "folder":
            path.mkdir()
        case "sparse":
            with path.open("wb") as file:
                file.truncate(special.size)


def _place(error: BaseException) -> str:
    """The innermost function of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}simcore{os.sep}" in frame.filename or
            f"{os.sep}viz{os.sep}" in frame.filename] or frames
    return f"{Path(ours[-1].filename).name} {ours[-1].name}" if ours else "?"
