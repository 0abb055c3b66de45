"""Results of all shards of a batch, read from their folders, as if one run had computed them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simcore.batch.fingerprint import DIFFERENCES, SHARD, Fingerprint, fingerprint
from simcore.batch.folder import MANIFEST
from simcore.batch.manifest import read_contents
from simcore.batch.run import Outcome, Work, outcome_of
from simcore.batch.unfinished import RESULTS, whole_lines
from simcore.errors import InputError, Problem
from simcore.executors.shard import Shard, expect_whole, shard_of
from simcore.inputs.paths import is_file, writing
from simcore.results.report import Report
from simcore.tables.data_set import digest_of

if TYPE_CHECKING:
    from simcore.inputs.loading import Entry

__all__ = ["outcomes_of_shards"]


def outcomes_of_shards(folders: Sequence[Path], entries: Sequence[Entry], work: Work) -> list[Outcome]:
    """Outcomes of all entries, in order, from the folders of `run --shard`.

    InputError, with the folder, if one has no finished shard, or one of another batch; and if shards are missing or
    there twice.
    """
    asked = fingerprint(entries, work)
    shards = {str(folder): _shard(folder, asked) for folder in folders}
    expect_whole(shards)
    found: dict[int, Outcome] = {}
    for folder in folders:
        indices = shards[str(folder)].part(range(len(entries)))
        reports = [_report(line, folder) for line in whole_lines(folder / RESULTS)]
        if [report.name for report in reports] != [entries[index].name for index in indices]:
            raise InputError(Problem(str(folder / RESULTS), "has not the results of its shard"))
        found |= {index: outcome_of(entries[index], report) for index, report in zip(indices, reports, strict=True)}
    return [found[index] for index in range(len(entries))]


def _shard(folder: Path, asked: Fingerprint) -> Shard:
    """Shard whose results a folder has; InputError if that is none of the batch."""
    contents = read_contents(folder / MANIFEST)
    if not is_file(folder / RESULTS) or not contents.known:
        raise InputError(Problem(str(folder), "has no finished results of `run --shard`"))
    with writing(folder):
        batches = contents.published.get(digest_of(folder / RESULTS), ())
    made_by = batches[0].made_by if len(batches) == 1 else {}
    if SHARD not in made_by:
        raise InputError(Problem(str(folder), "has no results of `run --shard`, or they were changed since"))
    if differing := [DIFFERENCES[name] for name in asked if made_by.get(name) != asked[name]]:
        raise InputError(Problem(str(folder), f"is a shard of another batch ({'; '.join(differing)})"))
    if not batches[0].finished:
        raise InputError(Problem(str(folder), f"shard {made_by[SHARD]} is not finished: run it again, and it goes on"))
    return shard_of(made_by[SHARD], str(folder))


def _report(line: bytes, folder: Path) -> Report:
    try:
        return Report.model_validate_json(line)
    except ValueError:
        raise InputError(Problem(str(folder / RESULTS), "a line is no result")) from None
