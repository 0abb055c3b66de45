"""Other values for a key that was put aside: a problem that goes with one of them is none of its own.

A second problem is judged with a value in the place of the first one's key, which the user did not write. So the job is
asked again with other values there. What is legal then, or told of other numbers, hangs on the key that is to be mended
anyway, and is not told beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.inputs.document import Document
from simcore.inputs.sweep import split_key
from simcore.inputs.yaml_parser import KeyPath
from simcore.results.report import ProblemRow

__all__ = ["independent"]

Ask = Callable[[Document], Sequence[ProblemRow]]
_LENGTHS: Final = (4096, 8192)
"""Tokens: lengths as usual as the one that stands in the place of a wrong one."""
_RANKS: Final = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Mesh axes whose product is the number of GPUs."""
_MOST: Final = 4
"""Values of an option that are tried at most."""


def independent(problems: Sequence[ProblemRow], document: Document, wrong: Document, aside: set[str],
                ask: Ask) -> Sequence[ProblemRow]:
    """Returns those of `problems`, a refused job's, that do not hang on the value of a key that was put aside.

    `document`: the job with the keys `aside` put aside; `wrong`: the job as it was written; `ask`: problems of a job.
    """
    own = [row for row in problems if not any(_names(row.message, key) for key in aside)]
    for other in _others(document, wrong, aside):
        if not own:
            break
        found = ask(other)
        own = [row for row in own if found and not _differs(row, found)]
    return own


def _names(message: str, key: str) -> bool:
    """True for a message that says the key: what it says is of the value in its place."""
    return key in message and "." in key


def _differs(row: ProblemRow, found: Sequence[ProblemRow]) -> bool:
    """True if the same key is refused for something else, such as other numbers."""
    here = [one.message for one in found if one.where == row.where]
    return bool(here) and row.message not in here


def _others(document: Document, wrong: Document, aside: set[str]) -> Iterator[Document]:
    """Jobs in which one key of those put aside has yet another value."""
    for key in sorted(aside):
        first, _, name = key.partition(".")
        written = _value(wrong, split_key(key))
        if first == "mesh" and type(written) is int:
            yield from _meshes(document, name, written)
        elif key == "training.seq_len":
            yield from (document.with_value(split_key(key), length, key) for length in _LENGTHS)
        elif first == "framework_options":
            yield from (document.with_value(split_key(key), value, key) for value in _options(document, name)
                        if value != written)


def _meshes(document: Document, axis: str, written: int) -> Iterator[Document]:
    """Meshes with as many GPUs as were written, on an axis that shards, and with two on the axis itself."""
    mesh = dict(document.data["mesh"])
    if axis in _RANKS:
        kept = "dp_replicate" if axis == "dp_shard" else "dp_shard"
        yield document.with_value(("mesh",), {**mesh, kept: (mesh.get(kept) or 1) * written}, "mesh")
    if written != 2:
        yield document.with_value(("mesh",), {**mesh, axis: 2}, "mesh")


def _options(document: Document, option: str) -> Sequence[Any]:
    """Values of an option of the job's framework: those that are written in its table, and small numbers."""
    name = document.data.get("framework")
    if name not in known_frameworks():
        return ()
    adapter = framework_adapter(name)
    known = [one for code in adapter.implementations for one in adapter.options(code).get(option, ())]
    values = [value for one in known for value in ({bool: (True, False), int: (1, 2)}.get(one, ())
                                                   if isinstance(one, type) else (one,))]
    return [value for at, value in enumerate(values) if value is not None and value not in values[:at]][:_MOST]


def _value(document: Document, path: KeyPath) -> Any:
    data: Any = document.data
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data
