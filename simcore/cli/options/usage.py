"""Wrong use of the command line, one line each: what was expected and what came.

Typer prints four lines, of which the last tells the fault. Its errors carry the option, and as their cause the error of
pydantic, whose types are in https://docs.pydantic.dev/latest/errors/validation_errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import typer
from typer._click.exceptions import (
    BadParameter,
    ClickException,
    MissingParameter,
    NoArgsIsHelpError,
    NoSuchOption,
    UsageError,
)

from simcore.errors import InputError, Problem

__all__ = ["called"]

_CHOICES: Final = " is not one of "
_QUOTED: Final = re.compile("'([^']*)'")
_EXPECTED: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "greater_than_equal": lambda bound: f"at least {bound['ge']:,}",
    "less_than_equal": lambda bound: f"at most {bound['le']:,}",
    "int_parsing": lambda _: "a whole number",
    "int_parsing_size": lambda _: "a whole number of fewer digits",
}
"""Words for what a type of pydantic's errors expects, from its context."""


def called(app: typer.Typer) -> None:
    """Runs the command of `sys.argv`. Raises SystemExit with its exit code, InputError for wrong use of options."""
    try:
        code = app(standalone_mode=False)
    except NoArgsIsHelpError as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except ClickException as error:
        raise InputError(_problem(error)) from None
    raise SystemExit(code or 0)


def _problem(error: ClickException) -> Problem:
    if isinstance(error, NoSuchOption):
        of = f" of rankscope {_command(error)}" if _command(error) else ""
        like = f", did you mean {' or '.join(sorted(error.possibilities))}" if error.possibilities else ""
        return Problem(error.option_name, f"unknown option{of}{like}")
    if isinstance(error, BadParameter) and not isinstance(error, MissingParameter) and error.param is not None:
        return Problem(max(error.param.opts, key=len, default=error.param.name or ""), _wrong_value(error))
    words = error.format_message().rstrip(".").replace("'", "").replace("(s)", "")
    return Problem(_command(error) if isinstance(error, UsageError) else "", f"{words[:1].lower()}{words[1:]}")


def _command(error: UsageError) -> str:
    """Name of the command that was used wrongly; "" if it is not known, or none was given."""
    return error.ctx.info_name or "" if error.ctx is not None and error.ctx.parent is not None else ""


def _wrong_value(error: BadParameter) -> str:
    from pydantic import ValidationError  # late, so that `--help` starts at once

    before, _, choices = error.message.partition(_CHOICES)
    if choices:
        return f"expected {', '.join(_QUOTED.findall(choices))}, got {before.removeprefix('Value error, ')}"
    for one in error.__cause__.errors() if isinstance(error.__cause__, ValidationError) else ():
        if one["type"] in _EXPECTED:
            return f"expected {_EXPECTED[one['type']](one.get('ctx', {}))}, got {str(one['input'])[:40]!r}"
    return error.message
