"""`rankscope init` and `rankscope schema`: a first scenario file, and their schema. Imports the engine when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["init", "schema"]

Json = Annotated[bool, typer.Option("--json", help="Print a list of results as JSON, nothing else.")]


def schema(*, result: Annotated[bool, typer.Option("--result", help="Schema of results, not of scenarios.")] = False,
           json: Json = False) -> None:
    """Print the JSON Schema of scenario files, for editors; with --result that of results.

    The output is the schema with and without --json.
    """
    from simcore.cli.output import print_schema

    print_schema(result=result)


def init(
    file: Annotated[str, typer.Argument(help="Where to write it; - is standard output.")] = "scenario.yaml",
    *,
    name: Annotated[str | None, typer.Option(help="Its name; omitted: the file's.")] = None,
    model: str = "nemotron-3-nano-30b-a3b",
    framework: str = "fsdp2",
    topology: str = "dgx-h100",
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    json: Json = False,
) -> None:
    """Write a first scenario with a comment beside every key.

    Exit code 2, and no file, if FILE exists without --force or a value is wrong; a layout that the framework refuses is
    written. --json only leaves out the message that FILE was written.
    """
    from simcore.cli.output import write_new
    from simcore.docgen.first_scenario import expect_readable, starter_text

    path = Path("scenario.yaml" if file == "-" else file)
    text = starter_text(name or path.stem, model, framework, topology)
    expect_readable(text, str(path))
    if file == "-":
        typer.echo(text, nl=False)
        return
    write_new(path, text, force=force)
    if not json:
        typer.echo(f"wrote {path}; next: rankscope run {path}")
