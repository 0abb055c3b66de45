"""`docs/commands.md` names every command and every option, and no other."""

from __future__ import annotations

import re

import typer.main

from checkout import ROOT
from simcore.cli.app import app

PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def sections() -> dict[str, str]:
    """Command -> its section; a heading names one command or several."""
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)[1:]
    return {name: text for head, text in zip(parts[::2], parts[1::2], strict=True) for name in head.split(", ")}


def test_every_command_has_a_section() -> None:
    assert set(sections()) - {"Exit codes", "In Python"} == set(COMMANDS)


def test_every_option_is_named_and_exists() -> None:
    missing, unknown = [], []
    for name, command in COMMANDS.items():
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
                   if option.startswith("-")} - {"--help"}
        section = sections()[name]
        missing += [(name, option) for option in options if f"`{option}" not in section and f"[{option}" not in section]
        others = {option for one in COMMANDS.values() for p in one.params for option in (*p.opts, *p.secondary_opts)}
        unknown += [option for option in re.findall(r"`(--[\w-]+)", section) if option not in others]
    assert [one for one in missing if one[1] not in ("--json", "--set")] == []
    assert unknown == []
