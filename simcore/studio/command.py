"""`rankscope studio`: a page on this machine. Imports the engine and the server when called."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simcore.errors import InputError, Problem

__all__ = ["studio"]


def studio(
    scenario: Annotated[str, typer.Argument(metavar="[SCENARIO]", help="Scenario file or recipe to begin with.")] = "",
    *,
    host: Annotated[str, typer.Option(help="Address to listen at; by default this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
) -> None:
    """Serve a page that shows a job's ranks, verdict, time and cost while it is edited; prints its link.

    Elsewhere than on this machine the link has a token, without which nothing is answered. Ends with Ctrl-C. Needs
    rankscope[studio]. Exit code 2 for an address that cannot be had, and for a file that cannot be read.
    """
    try:
        from simcore.studio.serving import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise InputError(Problem("", f"needs {error.name}: pip install 'rankscope[studio]'")) from None
    serve(_start(scenario) if scenario else None, host, port, typer.echo)


def _start(path: str) -> dict[str, Any]:
    """Keys of the scenario to begin with; InputError for a file with none or several."""
    from simcore.inputs.loading import load
    from simcore.recipes.answers import Answers
    from simcore.recipes.importing import Opener

    found = load(path, opened=Opener(Answers(), lambda imported: None))
    if len(found) != 1:
        raise InputError(Problem(path, f"holds {len(found)} scenarios, expected one"))
    return dict(found[0].document.data)
