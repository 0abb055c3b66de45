"""Answers of a search on the disk as they come, so that a search that was stopped goes on where it was.

[Note: journal of a search]
A folder has `journal.jsonl`: a first line that says which search it is, then lines with a stage ("memory" or "time"),
indices of candidates and their answers. Lines are whole or absent, whatever ended the process. A search
that finds its own first line takes the answers over; another search is refused. When the search is done, its result is
written to `answer.json` as a whole, and a row for each candidate to `data` (`rows.py`). They are the same bytes for any
number of processes and interruptions; the journal's lines may stand in another order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from simcore.batch.fingerprint import DIFFERENCES, SHARD, fingerprint
from simcore.batch.lock import locked
from simcore.batch.unfinished import GrowingLines, whole_lines
from simcore.errors import InputError, Problem
from simcore.executors.shard import Shard, expect_whole, shard_of
from simcore.inputs.loading import Entry
from simcore.inputs.paths import is_file, write_whole, writing
from simcore.results.found import SearchResult
from simcore.search.judge import Judged, Refused, Sized, Timed, judged
from simcore.search.space import Space
from simcore.tables.data_set import DATA

__all__ = ["ANSWER", "JOURNAL", "Answered", "Journal", "Memory", "journal"]

JOURNAL: Final = "journal.jsonl"
ANSWER: Final = "answer.json"
Answered = Judged | Timed
"""Answer of either stage."""


class Memory:
    """A journal without a file: what is known is kept in memory alone."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, Answered]] = {"memory": {}, "time": {}}
        self._same: dict[Answered, Answered] = {}

    def known(self, stage: str) -> dict[int, Answered]:
        """Answers of a stage by the index of the candidate, from before this search."""
        return self._known[stage]

    def takes(self, line: bytes) -> bool:
        """True if a line of a journal has answers, which are then known; equal ones are kept once."""
        try:
            row = json.loads(line)
            answers = [_answer(each) for each in row["answers"]]
            known = self._known[row["stage"]]
            known.update((int(at), self._same.setdefault(answer, answer))
                         for at, answer in zip(row["at"], answers, strict=True))
        except (ValueError, KeyError, TypeError):
            return False
        return True

    def add(self, stage: str, indices: Sequence[int], answers: Sequence[Answered]) -> None:
        """Keeps nothing: the search has it."""

    def end(self, result: SearchResult) -> None:
        """Writes nothing."""


class Journal(Memory):
    """A journal in a folder, open for writing."""

    def __init__(self, folder: Path, head: dict[str, Any]) -> None:
        """Reads what is there. InputError if it is another search's, or cannot be read or written."""
        super().__init__()
        self._folder, path = folder, folder / JOURNAL
        first = _line(head)
        size = self._taken_up(path, first, head) if path.exists() else 0
        self._lines = GrowingLines(path, size)
        if not size:
            self._lines.add(first)

    def _taken_up(self, path: Path, first: bytes, head: dict[str, Any]) -> int:
        """Bytes of the file up to the last line that can be used."""
        size = 0
        with writing(path):
            for line in whole_lines(path):
                if not size and line != first:
                    message = f"is of another search: {_difference(line, head)}; name another folder or remove it"
                    raise InputError(Problem(str(path), message))
                if size and not self.takes(line):
                    break
                size += len(line)
        return size

    def add(self, stage: str, indices: Sequence[int], answers: Sequence[Answered]) -> None:
        """Appends the answers on some candidates. InputError if they cannot be written."""
        self._lines.add(_line({"stage": stage, "at": list(indices), "answers": [_row(each) for each in answers]}))

    def end(self, result: SearchResult) -> None:
        """Writes the result beside the journal. InputError if it cannot be written."""
        file = self._folder / ANSWER
        with writing(file):
            write_whole(file, result.model_dump_json(indent=1) + "\n")

    def close(self) -> None:
        """Closes the journal's file, which stays."""
        self._lines.file.close()


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def _row(answer: Answered) -> list[Any] | None:
    return None if answer is None else [type(answer).__name__, asdict(answer)]


def _answer(row: Any) -> Answered:
    if row is None:
        return None
    made = {"Refused": Refused, "Sized": Sized, "Timed": Timed}[row[0]](**row[1])
    assert isinstance(made, Refused | Sized | Timed)
    return made


def _difference(line: bytes, head: dict[str, Any]) -> str:
    try:
        before = json.loads(line)
        changed = [key for key in head if before.get(key) != head[key]]
    except (ValueError, AttributeError):
        return "its first line cannot be read"
    return "; ".join(DIFFERENCES.get(key, f"another {key}") for key in changed) or DIFFERENCES["engine"]


@contextmanager
def journal(folder: Path | None, space: Space, shard: Shard | None = None, parts: Sequence[Path] = (),
            ) -> Iterator[Memory]:
    """Context with the journal of a search in `folder`, which is made; None: one without a file.

    `shard`: the journal is of that part of the candidates. `parts`: folders of all shards, whose answers are taken
    over. InputError if the folder is not empty and has no journal, if another process writes to it, if its journal is
    of another search; and if parts are of another search, missing, or there twice.
    """
    if parts:
        expect_whole({str(part): _shard(part, space) for part in parts})
    if folder is None:
        yield _with_parts(Memory(), parts)
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        others = [path for path in folder.iterdir() if path.name not in (JOURNAL, ANSWER, ".lock", DATA)]
    if others and not (folder / JOURNAL).exists():
        raise InputError(Problem(str(folder), f"expected an empty folder or one of a search, found {others[0].name}"))
    with locked(folder / ".lock", folder):
        kept = Journal(folder, _head(space) | ({} if shard is None else {SHARD: str(shard)}))
        with closing(kept):
            yield _with_parts(kept, parts)


def _with_parts(known: Memory, parts: Sequence[Path]) -> Memory:
    """A journal that has taken over the answers of shards, which stay in their own folders."""
    for part in parts:
        with writing(part):
            for at, line in enumerate(whole_lines(part / JOURNAL)):
                if at and not known.takes(line):
                    break
    return known


def _shard(folder: Path, space: Space) -> Shard:
    """Shard whose journal a folder has; InputError if it is none of this search."""
    path, head = folder / JOURNAL, _head(space)
    if not is_file(path):
        raise InputError(Problem(str(folder), "has no journal of `search --shard`"))
    with writing(path):
        first = next(whole_lines(path), b"")
    try:
        shard = str(json.loads(first)[SHARD])
    except (ValueError, KeyError, TypeError):
        raise InputError(Problem(str(folder), "has no journal of `search --shard`")) from None
    if first != _line(head | {SHARD: shard}):
        raise InputError(Problem(str(folder), f"is a shard of another search: {_difference(first, head)}"))
    return shard_of(shard, str(folder))


def _head(space: Space) -> dict[str, Any]:
    """First line of a search's journal: digests of the scenario, its files and the engine, and the space."""
    base = space.base
    asked = {"gpus": space.gpus, "frameworks": space.frameworks, "topologies": space.topologies,
             "free": [*space.degrees, *(["options"] if space.options else []),
                      *(["leaner"] if space.leaner else [])], "values": dict(space.axes),
             "degrees": dict(space.given), "where": [one.text for one in space.conditions]}
    made_by = fingerprint([Entry(base.name, base.name, base)], judged)
    return {**made_by, "space": json.loads(json.dumps(asked))}
