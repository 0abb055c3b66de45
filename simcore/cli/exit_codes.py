"""The end of the process: every outcome has an exit code, one line for the user, and no traceback."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from simcore.cli.stdio import lost, open_streams, replace_signs
from simcore.errors import InputError, Problem, RankscopeError
from simcore.inputs.paths import escaped, is_text

__all__ = ["ended"]

_INTERRUPTED = 130
_USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Error numbers of a system that is out of file descriptors or memory."""


def ended(command: Callable[[], object]) -> NoReturn:
    """Runs `command`, and ends the process with its exit code (0 to 3, or 128 + the number of a signal).

    Errors become one line on standard error without a traceback: 2 for the user's, 3 for a bug. Lost output: at least
    2.
    """
    gc.set_threshold(200_000, 20, 50)  # recordings end by reference counts: seldom walk the caches, not while importing
    open_streams()
    replace_signs(sys.stdout, sys.stderr)
    with suppress(ValueError):  # not the main thread
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _terminated)
    sys.exit(_flushed(_code_of(command)))


def _terminated(number: int, _frame: object) -> None:
    """Exits, so that files being written are cleaned up."""
    sys.exit(128 + number)


def _code_of(command: Callable[[], object]) -> int:
    try:
        _expect_text(sys.argv[1:])
        command()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    except RankscopeError as error:
        from simcore.cli.output import complain

        complain(error.problems)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        if error.filename is None and error.errno not in _USED_UP:
            return _bug(error)
        from simcore.cli.output import say

        say(f"{error.filename or 'the system refuses'}: {error.strerror}")
        return 2
    except Exception as error:  # noqa: BLE001 - the user sees one line and a way to report it
        return _bug(error)
    return 0


def _expect_text(arguments: Sequence[str]) -> None:
    """Raises InputError for arguments that are not text in this locale, because no result could name them."""
    for number, argument in enumerate(arguments, 1):
        if not is_text(argument):
            raise InputError(Problem(f"argument {number}", f"expected text, got other bytes: {escaped(argument)}"))


def _bug(error: Exception) -> int:
    if os.environ.get("RANKSCOPE_DEBUG"):
        import traceback

        traceback.print_exc()
    what = f"bug in rankscope: {type(error).__name__}: {error}"
    sys.stderr.write(f"{what}, please report; rerun with RANKSCOPE_DEBUG=1 for the traceback\n")
    return 3


def _flushed(code: int) -> int:
    """Exit code after flushing standard output; at least 2, with a message, if output was lost."""
    why = lost(sys.stdout)
    if why:
        sys.stderr.write(f"rankscope: standard output cannot be written: {why}\n")
    return max(code, 2) if why else code
