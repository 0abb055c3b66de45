"""`rankscope models`, `machines`, `frameworks`, `options`, `examples`: what there is, within 80 columns or as JSON."""

from __future__ import annotations

import json as json_text
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.docgen.listing import Record

__all__ = ["LISTS"]

Json = Annotated[bool, typer.Option("--json", help="Print a list of records as JSON, nothing else.")]
_WIDTH: Final = 80
_SCALES: Final = ((10**12, "T"), (10**9, "B"), (10**6, "M"))


def models(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only this model, by any of its names.")] = "",
    *, json: Json = False,
) -> None:
    """List built-in models: family, size, Hugging Face id, and the methods that each framework runs.

    With NAME (a preset, a Hugging Face id, an alias) all that is known of one. Exit code 2 for an unknown name.
    """
    from simcore.docgen.listing import models as listed
    from simcore.models.names import find, how_to_go_on

    found = listed()
    if name:
        named = find(name)
        if named is None:
            raise InputError(Problem("", how_to_go_on(name)))
        found = [record for record in found if record["name"] == named.preset]
    _show(found, _one_model(found[0]) if name else _models(found), json=json)


def machines(*, json: Json = False) -> None:
    """List built-in machines: GPU, usable memory of one, GPUs of a node, and the price of one for an hour."""
    from simcore.docgen.listing import machines as listed

    found = listed()
    rows = [(r["name"], r["gpu"].removeprefix("NVIDIA "), f"{r['usable_gib']:.2f}", str(r["gpus_per_node"]),
             "" if r["usd_per_gpu_hour"] is None else f"{r['usd_per_gpu_hour']:.2f}") for r in found]
    head = ("machine", "GPU", "GiB", "GPUs", "USD/h")
    _show(found, _table(head, rows, right=(2, 3, 4)), json=json)


def frameworks(*, json: Json = False) -> None:
    """List frameworks: versions and layers (the default first), methods, and how many built-in models they train."""
    from simcore.docgen.listing import frameworks as listed

    found = listed()
    lines = [line for r in found for line in (
        f"{r['name']}: {', '.join(r['methods'])}; trains {r['models']} of the built-in models",
        *_wrapped(f"layers: {', '.join(r['layers'])}"), *_wrapped(f"versions: {', '.join(r['versions'])}"))]
    _show(found, lines, json=json)


def options(
    framework: Annotated[str, typer.Argument(help="Framework, such as fsdp2.")], *, json: Json = False,
) -> None:
    """List the keys of framework_options of a framework: values, default, and what each says.

    A default is told where the framework's table takes one for small models. Exit code 2 for an unknown framework.
    """
    from simcore.docgen.listing import options as listed
    from simcore.frameworks.registry import named_adapter

    found = listed(framework)
    every = list(named_adapter(framework).implementations)
    _show(found, [line for record in found for line in _option(record, every)], json=json)


def examples(*, json: Json = False) -> None:
    """List the scenarios that come with rankscope, each with its question; `rankscope run --example NAME` runs one."""
    from simcore.docgen.listing import examples as listed

    found = listed()
    lines = [line for r in found for line in (f"{r['name']}: {len(r['files'])} files", *_wrapped(r["title"]),
                                              *_wrapped(r["question"], "      "))]
    _show(found, lines, json=json)


LISTS: Final = (examples, frameworks, machines, models, options)
"""The commands of this module."""


def _show(found: Sequence[Record], lines: Iterable[str], *, json: bool) -> None:
    """Prints records as a JSON list, one a line, or as text."""
    if json:
        typer.echo("[\n" + ",\n".join(map(json_text.dumps, found)) + "\n]")
    else:
        typer.echo("\n".join(lines))


def _models(found: Sequence[Record]) -> Iterator[str]:
    numbered = dict(enumerate(found[0]["methods"], 1))
    yield from textwrap.wrap(
        "Methods that run, with the layers that a framework takes by default: F full, L LoRA, Q QLoRA; in small "
        "letters those that are placed only (`rankscope place`). Columns: "
        + ", ".join(f"{number} {framework}" for number, framework in numbered.items()) + ".", _WIDTH)
    rows = [(r["name"], _size(r["parameters"]), *map(_letters, r["answers"].values())) for r in found]
    head, *lines = _table(("model", "size", *map(str, numbered)), rows, right=(1,))
    yield from ("", head)
    for record, line in zip(found, lines, strict=True):
        yield from (line, f"    {record['repository'] or 'not published'}, {record['family']}")


def _letters(answers: Mapping[str, str]) -> str:
    """Initials of the methods that run, small ones of those that are only placed; "-" for none."""
    from simcore.docgen.asking import PLACED

    kept = {"yes": str.upper, PLACED: str.lower}
    return "".join(kept[word](method[0]) for method, word in answers.items() if word in kept) or "-"


def _one_model(record: Record) -> Iterator[str]:
    yield f"{record['name']}: {record['parameters']:,} parameters, {record['layers']} layers, {record['family']}"
    yield from _wrapped(f"config.json: {record['repository'] or 'made up, or assumed'}")
    if record["other_names"]:
        yield from _wrapped(f"also: {', '.join(record['other_names'])}")
    for framework, answers in record["answers"].items():
        taken = record["with"].get(framework, {})
        alike = {word: [f"{method} with {taken[method]}" if method in taken else method
                        for method, one in answers.items() if one == word] for word in answers.values()}
        yield f"    {framework}: " + "; ".join(", ".join(methods) if word == "yes" else f"{word}: {', '.join(methods)}"
                                            for word, methods in alike.items())


def _option(record: Record, every: Sequence[str]) -> Iterator[str]:
    default = "" if record["default"] is None else f", default {record['default']}"
    layers = "" if record["layers"] == every else f" (layers: {', '.join(record['layers'])})"
    yield from _wrapped(f"{record['name']}: {' | '.join(record['values'])}{default}{layers}", "")
    yield from _wrapped(record["says"])


def _size(parameters: int) -> str:
    """Number of parameters with three digits, such as 7.62B."""
    scale, letter = next(((s, name) for s, name in _SCALES if parameters >= s), (1000, "K"))
    digits = 2 if parameters < 10 * scale else 1 if parameters < 100 * scale else 0
    return f"{parameters / scale:.{digits}f}{letter}"


def _wrapped(text: str, indent: str = "    ") -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent or "    ",
                         break_on_hyphens=False)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Lines of a table with columns as wide as their widest cell; `right`: those that are aligned at the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    gap = " " if sum(widths) + 2 * len(widths) > _WIDTH else "  "
    return [gap.join(cell.rjust(width) if index in right else cell.ljust(width)
                     for index, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
            for row in (head, *rows)]
