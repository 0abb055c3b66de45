"""Scripts as people write them: the words that the reader finds are those that bash hands to the launchers.

Each script of `scripts/` runs in bash, in an empty environment, with launchers that only write down their words. What
the reader knows must be the same; of the scripts named `open_` some words depend on the machine, which it must say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from simcore.recipes.shell.script import Started, read_script

SCRIPTS = Path(__file__).with_name("scripts")
LAUNCHERS = ("torchrun", "accelerate")
WRITES = '#!/bin/sh\n{ printf "%s\\0" "${0##*/}" "$@"; printf "\\n\\0"; } >>"$TOLD"\n'
STARTS = '#!/bin/sh\nwhile [ $# -gt 0 ] && [ "$1" != bash ]; do shift; done\nexec "$@"\n'
OPEN = {"open_read": "which line 1 reads",
        "open_source": "which the file that is sourced at line 2 may change", "open_ways": "(lines 3 and 5 set $TP; "}
BASH = shutil.which("bash")

pytestmark = pytest.mark.skipif(BASH is None, reason="bash is missing")


@pytest.fixture(scope="module")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bin")
    for name, text in (*((name, WRITES) for name in LAUNCHERS), ("srun", STARTS)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def by_bash(script: Path, launchers: Path, folder: Path) -> list[list[str]]:
    """Words of every launcher that bash starts, in order; the script runs beside the files that it sources."""
    for file in (script, SCRIPTS / "conf.inc"):
        shutil.copy(file, folder)
    told = folder / "told"
    told.touch()
    subprocess.run([str(BASH), script.name], cwd=folder, check=False, timeout=20, stdin=subprocess.DEVNULL,
                   capture_output=True, env={"PATH": os.pathsep.join((str(launchers), "/usr/bin", "/bin")),
                                             "TOLD": str(told)})
    found: list[list[str]] = [[]]
    for word in told.read_text(encoding="utf-8").split("\0")[:-1]:
        if word == "\n":
            found.append([])
        else:
            found[-1].append(word)
    return found[:-1]


def by_reader(script: Path) -> list[Started]:
    """Commands with one of the launchers among their first words."""
    beside = {"conf.inc": (SCRIPTS / "conf.inc").read_text(encoding="utf-8")}
    commands = read_script(script.read_text(encoding="utf-8"), script.name, beside=beside).commands
    return [one for one in commands if any(word.text in LAUNCHERS for word in one.words[:4])
            and one.words[0].text != "echo"]


def words(command: Started) -> list[str | None]:
    """Words from the launcher on; None for one that is not known."""
    start = next(number for number, word in enumerate(command.words) if word.text in LAUNCHERS)
    return [None if word.unknown else word.text for word in command.words[start:]]


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.sh") if path.stem not in OPEN))
def test_words_are_those_of_bash(name: str, launchers: Path, tmp_path: Path) -> None:
    script = SCRIPTS / f"{name}.sh"
    expected = by_bash(script, launchers, tmp_path)
    assert expected
    assert [words(one) for one in by_reader(script)] == expected
    assert not any(one.within for one in by_reader(script))


@pytest.mark.parametrize("name", sorted(OPEN))
def test_what_depends_on_the_machine_is_said_and_nothing_else_differs(name: str, launchers: Path,
                                                                      tmp_path: Path) -> None:
    script = SCRIPTS / f"{name}.sh"
    [command] = by_reader(script)
    [expected] = by_bash(script, launchers, tmp_path)
    assert any(OPEN[name] in word.unknown for word in command.words)
    assert is_part([word for word in words(command) if word is not None], expected)


def is_part(part: Sequence[str], whole: Sequence[str]) -> bool:
    """True if the words stand in the whole in this order."""
    rest = iter(whole)
    return all(word in rest for word in part)
