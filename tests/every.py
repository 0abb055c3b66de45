"""One rule over many cases in one test, which names every case that breaks it.

A test of its own for each of hundreds of cases costs more than most rules do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["expect_of_every"]

T = TypeVar("T")


def expect_of_every(cases: Iterable[tuple[str, T]], rule: Callable[[T], None]) -> None:
    """Raises AssertionError with the names of all cases for which `rule` does, or if there are no cases."""
    num, broken = 0, []
    for num, (name, case) in enumerate(cases, 1):  # noqa: B007 - counted
        try:
            rule(case)
        except AssertionError as error:
            broken.append(f"{name}: {error}")
        except Exception as error:
            error.add_note(f"in the case {name}")
            raise
    assert num, "no cases"
    assert not broken, "\n".join([f"{len(broken)} of {num} cases:", *broken])
