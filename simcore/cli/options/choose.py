"""Options of `run` and `search` that choose which of many results are shown: `--sort`, `--fits`, `--columns`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from simcore.tables.choice import Choice, Choosable

__all__ = ["Columns", "Fits", "Sort", "asked_choice"]

Sort = Annotated[str, typer.Option(metavar="COLUMN", help="Order of the results, -COLUMN for the largest first.")]
Fits = Annotated[bool, typer.Option("--fits", help="Show only those that fit.")]
Columns = Annotated[str, typer.Option(metavar="NAME,..", help="Columns of the table, such as verdict,peak_bytes.")]
T = TypeVar("T")


def asked_choice(among: Choosable[T], sort: str, top: int | None, columns: str, *, fits: bool, unsure: bool,
                 ) -> Choice[T]:
    """Choice from the texts of the options; `unsure`: an unsure verdict counts as fitting. InputError for no column."""
    verdicts = ["fits", *(["unsure"] if unsure else [])] if fits else []
    return among.choice(sort, top, columns, verdicts)
