"""Answers of pip-audit, and the verdict of `make audit` on them: no answer from a database is no clean result."""

from __future__ import annotations

import json
from typing import Any

import audit
import pytest

CLEAN = {"name": "numpy", "version": "2.4.6", "vulns": []}
FLAWED = {"name": "requests", "version": "2.19.0", "vulns": [{"id": "PYSEC-2018-28", "fix_versions": ["2.20.0"]}]}
LEFT_OUT = {"name": "typer", "skip_reason": "Dependency not found on PyPI and could not be audited: typer (0.29.2)"}


def answer(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


@pytest.mark.parametrize(("said", "code", "told"), [
    (answer(CLEAN), 0, ["no known vulnerabilities in 1 packages"]),
    (answer(CLEAN, FLAWED), 1, ["requests 2.19.0: PYSEC-2018-28, fixed in 2.20.0"]),
    (answer(CLEAN, LEFT_OUT), 69, ["no answer about 1 of 2 packages, typer first"]),
    (answer(FLAWED, LEFT_OUT), 1, ["requests 2.19.0: PYSEC-2018-28, fixed in 2.20.0",
                                   "no answer about 1 of 2 packages, typer first"]),
    (answer(), 69, ["no package was asked about"]),
    ("", 69, ["no answer"]),
    ("[]", 69, ["no answer"]),
])  # fmt: skip
def test_an_answer_becomes_an_exit_code(said: str, code: int, told: list[str]) -> None:
    assert audit.verdict(said) == (code, told)


def test_the_next_database_is_asked_where_one_is_silent(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"pypi": answer(LEFT_OUT), "osv": answer(CLEAN)}
    monkeypatch.setattr(audit, "ask", lambda service, _: answers[service])
    assert audit.main(["x.lock"]) == 0
    assert capsys.readouterr().out == "audit: no known vulnerabilities in 1 packages\n"


def test_without_a_database_nothing_is_called_safe(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(audit, "ask", lambda service, _: {"pypi": answer(LEFT_OUT), "osv": ""}[service])
    assert audit.main(["x.lock"]) == 69
    assert capsys.readouterr().out == (
        "audit: not done, vulnerabilities stay unknown (pypi: no answer about 1 of 1 packages, typer first; "
        "osv: no answer)\n")
