from __future__ import annotations

from pathlib import Path

import pytest

from house_figures import COUNTED, Tree, figures, main

FILES = {
    "simcore/__init__.py": '"""The package."""\n',
    "simcore/rank.py": '"""What a rank holds."""\n\nfrom simcore import stage\n\n\n'
                       "def held() -> tuple[int, int, int]:\n"
                       "    found = hasattr(module, 'standing')\n    return found, isinstance(flow, UnshardFlow), 0\n",
    "simcore/stage.py": '"""Stages."""\n\n\nclass Stage:\n    """One."""\n\n'
                        "    options: tuple[tuple[str, str], ...]\n\n"
                        '    def rank(self) -> int:\n        """Of a stage."""\n        from simcore.rank import held\n'
                        "        return held()[0]\n",
    "viz/__init__.py": "",
    "tests/test_rank.py": '"""Whether a rank holds it."""\n',
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        tmp_path.joinpath(name).parent.mkdir(exist_ok=True)
        tmp_path.joinpath(name).write_text(text, encoding="utf-8")
    return tmp_path


def test_every_figure_is_counted(root: Path) -> None:
    assert figures(root) == {
        "files": 4, "files in the root of simcore": 3, "files of the largest package": 3, "files over 400 lines": 0,
        "import circles": 1, "modules imported by one file only": 2, "hasattr, getattr on modules": 1,
        "fields of string pairs": 1, "isinstance on hooks and strategies": 1, "riddle openings": 2,
        "riddle openings in tests": 1, "public functions without docstring": 1, "vague local names": 1,
        "tuple returns of 3 and more": 1, "lines of the longest file": 12, "lines of the longest function": 4,
    }


def test_an_import_inside_a_function_closes_a_circle(root: Path) -> None:
    assert list(COUNTED["import circles"](Tree(root))) == ["simcore.rank, simcore.stage"]


def test_a_figure_is_listed_by_its_places(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(root), "--list", "riddle openings", "--in", "simcore/stage"]) == 0
    assert capsys.readouterr().out == "simcore/stage.py:10 Of a stage.\n"


def test_each_checkout_is_a_column(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(root), str(root)]) == 0
    assert "import circles                              1        1\n" in capsys.readouterr().out
