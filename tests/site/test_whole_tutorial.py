"""Every answer of the tutorial is what its command prints; `make test` asks the quick ones only."""

from __future__ import annotations

from test_tutorial import asked_again


def test_every_answer_is_what_its_command_prints() -> None:
    different = [page.name for page, text in asked_again() if page.read_text(encoding="utf-8") != text]
    assert different == [], "run: python tests/test_tutorial.py --write"
