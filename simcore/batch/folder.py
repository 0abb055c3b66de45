"""The folder of `run -o`: results that survive interruptions, of one batch, or of several with `--append`.

    results.jsonl       complete lines at any moment: a finished batch, or the results of an interrupted one
    results.jsonl.part  the batch under way (`unfinished.py`); it becomes results.jsonl when the last result is in it
    data/               a row of each result in results.jsonl (`data_set.py`), where pyarrow is installed
    .batch/             the lock, the manifest of both files (`manifest.py`), results that came before their turn

Results stay on the disk: `outcomes` reads them from there. The same batch started again continues, or, if finished, is
read. Another batch is refused, unless it is to be appended or to replace the old one; old results stay until all new
results are written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from simcore.batch.fingerprint import DIFFERENCES, SHARD, Fingerprint, fingerprint
from simcore.batch.kept import Kept, Places
from simcore.batch.lock import locked
from simcore.batch.manifest import Batch, Contents, read_contents, write_contents
from simcore.batch.rows import Rows
from simcore.batch.run import Outcome, Work
from simcore.batch.unfinished import PART, RESULTS, Part, whole_lines
from simcore.errors import InputError, Problem
from simcore.inputs.bounds import MAX_LINE, MAX_RESULTS
from simcore.inputs.paths import exists, is_file, remove_unfinished, stamp, whole, writing
from simcore.results.report import Report
from simcore.tables.data_set import digest_of, is_data_of

if TYPE_CHECKING:
    from simcore.executors.shard import Shard
    from simcore.inputs.loading import Entry

__all__ = ["MANIFEST", "Existing", "Folder", "opened"]

_HIDDEN: Final = ".batch"
_CONTENTS: Final = "contents.json"
MANIFEST: Final = f"{_HIDDEN}/{_CONTENTS}"
"""Path of the manifest in a folder of results."""
_AHEAD: Final = "ahead.jsonl"


class Existing(StrEnum):
    """Choice for a folder with results of another batch: refuse it, append to them, or overwrite all of them."""

    REFUSE = "refuse"
    APPEND = "append"
    OVERWRITE = "overwrite"


@contextmanager
def opened(folder: Path, entries: Sequence[Entry], work: Work, existing: Existing,
           shard: Shard | None = None) -> Iterator[Folder]:
    """Context with the folder of results, locked against other processes and opened for one batch.

    The batch is `work` (the function that simulates one scenario) on `entries`; results of the same batch that are in
    the folder are read. `shard`: the folder is for that part of the entries alone. `existing`: what to do with results
    of another batch. InputError if the folder cannot be written, another process writes to it, or `existing` does not
    allow to change what it holds.
    """
    with writing(folder):
        (folder / _HIDDEN).mkdir(parents=True, exist_ok=True)
    _expect_files(folder)
    with locked(folder / _HIDDEN / "lock", folder) as is_locked:
        for path in _files_of(folder):
            remove_unfinished(path)
        made_by = fingerprint(entries, work) | ({} if shard is None else {SHARD: str(shard)})
        open_folder = Folder(folder, entries if shard is None else shard.part(entries), made_by, is_locked)
        try:
            open_folder.take_up(existing)
            yield open_folder
        finally:
            open_folder.close()


def _files_of(folder: Path) -> list[Path]:
    return [folder / RESULTS, folder / PART, *(folder / _HIDDEN / name for name in ("lock", _CONTENTS, _AHEAD))]


def _expect_files(folder: Path) -> None:
    """Raises InputError for a pipe, device, folder or link in the place of a file that is to be written."""
    for path in _files_of(folder):
        if os.path.lexists(path) and (path.is_symlink() or not is_file(path)):
            raise InputError(Problem(str(path), "cannot be written: it is there, and no regular file"))
        if (size := stamp(path).size) > MAX_RESULTS:
            raise InputError(Problem(str(path), f"expected at most {MAX_RESULTS:,} bytes, got {size:,}"))


class Folder:
    """One folder of results that is open for one batch, the scenarios `entries`.

    `made_by`: fingerprint of the batch; `is_locked`: returns False once the lock file was removed. `known`: indices in
    `entries` of the scenarios whose results exist; `num_fits`: number of them that fit; `told`: message for the user
    about results taken over from an earlier run, "" if there are none; `rows`: rows of the results, None if they are in
    place already.
    """

    def __init__(self, folder: Path, entries: Sequence[Entry], made_by: Fingerprint,
                 is_locked: Callable[[], bool]) -> None:
        self.folder, self._entries, self._made_by, self._is_locked = folder, entries, made_by, is_locked
        self.results, self._part_file = folder / RESULTS, folder / PART
        self._file, self._ahead = folder / _HIDDEN / _CONTENTS, folder / _HIDDEN / _AHEAD
        self._contents = read_contents(self._file)
        self._part: Part | None = None
        self._base = 0  # results of older batches before those of this one
        self.known: set[int] = set()
        self.num_fits = 0
        self.rows: Rows | None = None
        self.told = ""

    def take_up(self, existing: Existing) -> None:
        """Continues this batch if it was interrupted, reads it if it is finished, else begins it.

        Fills `known` and `told`. Results of another batch: APPEND keeps them before the new ones (InputError if that
        batch is not finished), OVERWRITE replaces them, REFUSE raises InputError. OVERWRITE also begins this batch
        again, unless its interrupted run had OVERWRITE too. InputError if `results.jsonl` was changed in the meantime.
        """
        there, under_way, anew = self._published(), self._under_way(), existing is Existing.OVERWRITE
        is_same = bool(under_way) and under_way[-1].made_by == self._made_by
        if is_same and (self._contents.anew or not anew):
            self._go_on(under_way)
        elif anew:
            self._begin((), anew=True)
        elif any(self._is_this(batch) for batch in there):
            self._read(there)
        elif not under_way and (not there or there[-1].made_by == self._made_by):
            self._begin(there[:-1])  # an interrupted run's published lines are not enough to continue without its part
        elif existing is Existing.APPEND and not under_way and all(batch.finished for batch in there):
            self._begin(there)
        else:
            raise InputError(Problem(str(self.folder), self._refusal(there, under_way)))

    def _is_this(self, batch: Batch) -> bool:
        return batch.finished and batch.made_by == self._made_by

    def _published(self) -> tuple[Batch, ...]:
        """Batches of the file of results; one without a fingerprint if its origin is unknown."""
        if not exists(self.results):
            return ()
        with writing(self.results), self.results.open("rb") as file:
            known = self._contents.published.get(digest_of(self.results))
            lines = 0 if known else sum(1 for _ in self._lines(file))
        return known or ((Batch({}, lines, lines),) if lines else ())

    def _under_way(self) -> tuple[Batch, ...]:
        """Batches of the part, if it has any result that is not in the other file too."""
        if not is_file(self._part_file):
            return ()
        lines = sum(1 for _ in whole_lines(self._part_file))
        lines += sum(1 for _ in whole_lines(self._ahead)) if is_file(self._ahead) else 0
        batches = self._contents.under_way
        if not batches:
            return (Batch({}, lines, lines),) if lines else ()
        return batches if lines > sum(batch.lines for batch in batches[:-1]) else ()

    def _refusal(self, there: Sequence[Batch], under_way: Sequence[Batch]) -> str:
        last = (under_way or there)[-1]
        finished = not under_way and all(batch.finished for batch in there)
        holds = f"holds {sum(batch.lines for batch in there):,} results" + (
            " of another batch" if finished else f", and another batch of {last.scenarios:,} that is not finished")
        why = [words for part, words in DIFFERENCES.items() if last.made_by and last.made_by.get(part) !=
               self._made_by.get(part)] or ["not written by run -o, or changed since"]
        do = "--append adds to them" if finished else "finish that one first" if last.made_by else (
            "`rankscope report` and `rankscope export` read it as it is")
        return f"{holds} ({'; '.join(why)}); nothing was changed: {do}, or take another folder, or --overwrite"

    def _begin(self, base: tuple[Batch, ...], *, anew: bool = False) -> None:
        """Opens an empty part, or one that begins with all existing results."""
        with writing(self._part_file):  # first, so that a part of unknown origin is never thrown away
            self._part_file.unlink(missing_ok=True)
            self._ahead.unlink(missing_ok=True)
        # Noted before it is written: a part that a kill left with older results alone is then known to be no loss.
        self._note(Contents(self._current(), (*base, self._batch(0)), self._digest(), anew=anew))
        with writing(self._part_file), whole(self._part_file) as file:
            if base:
                self._copy_results(file, sum(batch.lines for batch in base))
        self._part = self._opened_part(base)

    def _copy_results(self, file: BinaryIO, count: int) -> None:
        with self.results.open("rb") as old:
            for line in islice(self._lines(old), count):
                file.write(line if line.endswith(b"\n") else line + b"\n")

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        """Lines of the file of results that are not blank; InputError for a line that is too long for a result."""
        for line in iter(partial(file.readline, MAX_LINE), b""):
            if len(line) == MAX_LINE:
                raise InputError(Problem(str(self.results), f"holds no results: a line has {MAX_LINE:,} bytes or more"))
            if line.strip():
                yield line

    def _go_on(self, batches: tuple[Batch, ...]) -> None:
        shown = self._current().get(self._digest(), ())
        if self._digest() not in ("", self._contents.replaces) and (not shown or shown[-1].made_by != self._made_by):
            message = "was changed since this batch began, which would replace it: move it away, or take --overwrite"
            raise InputError(Problem(str(self.results), message))
        self._part = self._opened_part(batches[:-1])
        self._part.catch_up()
        self.told = f"going on: {len(self.known):,} of {len(self._entries):,} results taken over"

    def _opened_part(self, base: tuple[Batch, ...]) -> Part:
        self._base = count = sum(batch.lines for batch in base)
        self._begin_rows()
        size = 0
        for number, line in enumerate(islice(whole_lines(self._part_file), count)):
            size += len(line)
            self._add_row(number, line)
        return Part(self._part_file, self._ahead, size, self._fits)

    def _read(self, there: tuple[Batch, ...]) -> None:
        """Reads the finished lines of this batch, and writes the rows of all if they are not in place."""
        at = next(i for i, batch in enumerate(there) if self._is_this(batch))
        self._base = sum(batch.lines for batch in there[:at])
        if not is_data_of(self.folder, self._digest()):
            self._begin_rows()
        mine = range(self._base, self._base + there[at].lines)
        for number, line in enumerate(whole_lines(self.results)):
            if number not in mine:
                self._add_row(number, line)
            elif not self._fits(number - self._base, line):
                raise InputError(Problem(f"{self.results}:{number + 1}", "is no result of this batch"))
        self.told = f"holds all results of this batch already ({len(self.known):,}); --overwrite computes them again"

    def _begin_rows(self) -> None:
        self.rows = Rows(self.folder, self.folder / _HIDDEN / "data")

    def _add_row(self, number: int, line: bytes) -> None:
        """Adds the row of an older batch's result; of one that this version cannot read there is none."""
        if self.rows is not None:
            with suppress(ValueError):  # as pydantic says it
                self.rows.add(number, Report.model_validate_json(line))

    def _fits(self, index: int, line: bytes) -> bool:
        """True if a line is the result of that entry, which is then known."""
        if index >= len(self._entries):
            return False
        try:
            report = Report.model_validate_json(line)
        except ValueError:  # as pydantic says it
            return False
        if report.name != self._entries[index].name:
            return False
        self._know(index, report)
        return True

    def _know(self, index: int, report: Report) -> None:
        self.known.add(index)
        self.num_fits += report.job_verdict == "fits"
        if self.rows is not None:
            self.rows.add(self._base + index, report)

    def add(self, index: int, outcome: Outcome) -> None:
        """Writes the outcome of scenario `index`, in any order; nothing if the batch was only read.

        InputError if it cannot be written, with all previous ones kept, or if the lock file was removed.
        """
        self._expect_lock()
        if self._part is not None:
            self._part.add(index, outcome.report.model_dump_json().encode() + b"\n")
            self._know(index, outcome.report)  # before others are moved: a full disk may end that
            self._part.catch_up()

    def end(self) -> str:
        """Finishes the files of this run; returns the path of the file with its results, for the user.

        If every scenario has its result, `results.jsonl.part` becomes `results.jsonl`. If not, its results are copied
        to `results.jsonl`, unless that has results which would be lost, or cannot be written: then the path of the part
        is returned. Nothing is written if the batch was only read. InputError if a finished batch cannot be moved.
        """
        if self._part is None:
            self._end_rows(self._digest)
            return str(self.results)
        if len(self.known) == len(self._entries):
            self._publish(self._part)
            return str(self.results)
        with suppress(InputError):  # a full disk: the part has everything
            if self._is_locked() and self._shows_less():
                self._show(self._part)
                self._part.close()
                self._part = None
                return str(self.results)
        if self.rows is not None:
            self.rows.drop()
        return str(self._part_file)

    def outcomes(self) -> Kept:
        """Outcomes of all known results in the order of the entries, read from the disk when they are asked for."""
        indices = sorted(self.known)
        return Kept([self._entries[index] for index in indices], self._places(len(indices)))

    def _places(self, count: int) -> Places:
        """Files that have the known results, in order, each with the first bytes of their lines."""
        if self._part is None:
            return [(self.results, _starts(self.results, self._base, count))]
        in_turn = self._part.num_lines
        waiting = (start for _, (start, _) in sorted(self._part.early.items()))
        return [(self._part_file, _starts(self._part_file, self._base, in_turn)), (self._ahead, waiting)]

    def _end_rows(self, digest: Callable[[], str]) -> None:
        """Puts the rows in place, if there are new ones; `digest`: gives that of the file of results."""
        if self.rows is not None:
            self._expect_lock()
            self.rows.end(self.results, digest())

    def _expect_lock(self) -> None:
        if not self._is_locked():
            message = "its lock was removed while this run was writing: another run may write too, so this one stops"
            raise InputError(Problem(str(self.folder), message))

    def _publish(self, part: Part) -> None:
        self._expect_lock()
        part.sync()
        part.close()
        batches = (*self._contents.under_way[:-1], self._batch(len(self._entries)))
        with writing(self.results):
            digest = digest_of(self._part_file)
            self._note(replace(self._contents, published={**self._current(), digest: batches}))
            self._part_file.replace(self.results)
        self._part = None
        with suppress(InputError):  # entries for files that are gone do no harm
            self._note(Contents({digest: batches}))
        with suppress(OSError):
            self._ahead.unlink(missing_ok=True)
        self._end_rows(lambda: digest)

    def _shows_less(self) -> bool:
        """True if all results of the file of results, if it exists, are in the part too."""
        there, base = self._published(), self._contents.under_way[:-1]
        if there == base:
            return True
        last = there[-1]
        return there[:-1] == base and last.made_by == self._made_by and last.lines <= min(
            len(self.known), last.scenarios - 1)

    def _show(self, part: Part) -> None:
        batches = (*self._contents.under_way[:-1], self._batch(len(self.known)))
        with writing(self.results), whole(self.results) as file:
            part.copy_to(file)
            file.flush()
            digest = digest_of(Path(file.name))
            self._note(replace(self._contents, published={**self._current(), digest: batches}))
        self._end_rows(lambda: digest)

    def _current(self) -> dict[str, tuple[Batch, ...]]:
        """Batches by digest of the file of results that exists now."""
        digest = self._digest()
        return {digest: self._contents.published[digest]} if digest in self._contents.published else {}

    def _digest(self) -> str:
        """Digest of the file of results; empty if it does not exist."""
        with writing(self.results):
            return digest_of(self.results) if is_file(self.results) else ""

    def _batch(self, lines: int) -> Batch:
        return Batch(self._made_by, len(self._entries), lines)

    def _note(self, contents: Contents) -> None:
        write_contents(self._file, contents)
        self._contents = contents

    def close(self) -> None:
        """Closes the files of the batch under way, which stay in the folder under their names."""
        if self.rows is not None:
            self.rows.drop()
        if self._part is not None:
            self._part.close()


def _starts(path: Path, base: int, count: int) -> Iterator[int]:
    """First bytes of `count` lines of a file, after `base` others."""
    start = 0
    for number, line in enumerate(islice(whole_lines(path), base + count)):
        if number >= base:
            yield start
        start += len(line)
