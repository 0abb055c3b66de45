"""Numbers of rows that tests/truth/README.md says of lists; `python tests/test_truth_readme.py --write` counts them."""

from __future__ import annotations

import json
import re
import sys

from checkout import ROOT

PAGE = ROOT / "tests" / "truth" / "README.md"
COUNTED = re.compile(r"^\| `([\w./+-]+\.json)` \| (\d+) \|", re.MULTILINE)


def counted(text: str) -> str:
    """Page with the numbers of rows that its lists have; files with sections keep the number that they have."""
    def line(found: re.Match[str]) -> str:
        rows = json.loads((PAGE.parent / found[1]).read_text(encoding="utf-8"))
        return f"| `{found[1]}` | {len(rows) if isinstance(rows, list) else found[2]} |"

    return COUNTED.sub(line, text)


def test_the_page_names_every_file_once_with_its_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = [found[1] for found in COUNTED.finditer(text)]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
    assert counted(text) == text


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(counted(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
