"""The folder of `run -o`: the same batch goes on, another is refused, and no line is ever lost or torn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from checkout import ROOT
from fakes import FakeEntry, entry, report, unreadable, work
from simcore.batch import unfinished as part
from simcore.batch.fingerprint import fingerprint
from simcore.batch.folder import Existing, opened
from simcore.batch.run import Outcome, Work, attempt
from simcore.batch.stored import read_results
from simcore.cli.report import results_of
from simcore.cli.session import Ran, run_entries
from simcore.errors import InputError
from simcore.executors.interrupts import Interrupts
from simcore.inputs.loading import Entry
from simcore.inputs.paths import writing
from simcore.lint.all_problems import answered_in_full
from simcore.results.report import Report
from simcore.simulate import check, simulate

ENTRIES = [entry(f"s{i}", ("fits", "oom", "illegal", "crash")[i % 4]) for i in range(12)]


def run(folder: Path, entries: list[FakeEntry] | None = None, existing: Existing = Existing.REFUSE,
        engine: Callable[..., Report] = work, jobs: int = 1) -> Ran:
    return run_entries(cast("list[Entry]", entries or ENTRIES), cast("Work", engine), jobs, folder, existing)


def only(*names: str) -> Callable[..., Report]:
    """An engine that stops the whole process, as it were, at any other name."""

    def engine(scenario: object, **_: object) -> Report:
        name = str(vars(scenario)["name"])
        if name not in names:
            raise Killed
        return work(cast("FakeEntry", scenario))  # type: ignore[arg-type]

    engine.__module__, engine.__qualname__ = work.__module__, work.__qualname__
    return engine


class Killed(BaseException):
    """Passes everything, as kill -9 does."""


@pytest.fixture
def undisturbed(tmp_path: Path) -> bytes:
    run(tmp_path / "undisturbed")
    return (tmp_path / "undisturbed" / "results.jsonl").read_bytes()


def killed(folder: Path, count: int, existing: Existing = Existing.REFUSE) -> None:
    with pytest.raises(Killed):
        run(folder, existing=existing, engine=only(*(e.name for e in ENTRIES[:count])))


def names(path: Path) -> list[str]:
    return [one.name for one in read_results(path)]


def test_a_killed_batch_goes_on_where_it_was(tmp_path: Path, undisturbed: bytes,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    killed(folder, 5)
    assert not (folder / "results.jsonl").exists()
    assert len((folder / "results.jsonl.part").read_bytes().splitlines()) == 5
    ran = run(folder, engine=only(*(e.name for e in ENTRIES[5:])))
    assert [o.report.name for o in ran.outcomes] == [e.name for e in ENTRIES]
    assert [o.code for o in ran.outcomes] == [0, 1, 2, 3] * 3
    assert (folder / "results.jsonl").read_bytes() == undisturbed
    assert sorted(p.name for p in folder.iterdir()) == [".batch", "data", "results.jsonl"]
    assert "going on: 5 of 12 results taken over" in capsys.readouterr().err


def test_a_finished_batch_is_read_and_not_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = run(tmp_path / "out"), run(tmp_path / "out", engine=only())
    assert again.outcomes == first.outcomes
    assert "holds all results of this batch already (12); --overwrite computes them again" in capsys.readouterr().err
    with pytest.raises(Killed):
        run(tmp_path / "out", existing=Existing.OVERWRITE, engine=only())


def test_overwriting_does_not_go_on_from_what_was_begun_without(tmp_path: Path) -> None:
    killed(tmp_path / "out", 5)
    with pytest.raises(Killed):
        run(tmp_path / "out", existing=Existing.OVERWRITE, engine=only(*(e.name for e in ENTRIES[5:])))


@pytest.mark.parametrize("size", [1, 100, 4097])
@pytest.mark.parametrize("tail", [b"", b"\n", b"\0" * 10, b"{}\n"])
def test_a_torn_or_foreign_tail_is_cut(tmp_path: Path, undisturbed: bytes, size: int, tail: bytes) -> None:
    folder = tmp_path / "out"
    killed(folder, 5)
    with (folder / "results.jsonl.part").open("ab") as file:
        file.write(undisturbed.splitlines()[5][:size] + tail)
    run(folder)
    assert (folder / "results.jsonl").read_bytes() == undisturbed


def test_results_before_their_turn_are_kept_too(tmp_path: Path, undisturbed: bytes) -> None:
    folder = tmp_path / "out"
    entries, engine = cast("list[Entry]", ENTRIES), cast("Work", work)
    with opened(folder, entries, engine, Existing.REFUSE) as kept:
        for index in (3, 0, 7, 1, 4):
            kept.add(index, attempt(entries[index], engine))
    assert names(folder / "results.jsonl.part") == ["s0", "s1"]
    ran = run(folder, engine=only(*(f"s{i}" for i in (2, 5, 6, 8, 9, 10, 11))))
    assert len(ran.outcomes) == 12
    assert (folder / "results.jsonl").read_bytes() == undisturbed


def test_another_batch_is_refused_and_changes_nothing(tmp_path: Path, undisturbed: bytes) -> None:
    folder = tmp_path / "undisturbed"
    with pytest.raises(InputError, match=r"holds 12 results of another batch \(other scenarios.*--append.*--overwrite"):
        run(folder, [entry("other")])
    with pytest.raises(InputError, match="other options"):
        run_entries(cast("list[Entry]", ENTRIES), lambda scenario: report(), 1, folder)
    assert (folder / "results.jsonl").read_bytes() == undisturbed
    (folder / "results.jsonl").write_bytes(undisturbed.splitlines(keepends=True)[0])
    with pytest.raises(InputError, match="changed since"):
        run(folder)


def test_an_unfinished_batch_is_not_pushed_aside(tmp_path: Path) -> None:
    killed(tmp_path / "out", 5)
    for existing in (Existing.REFUSE, Existing.APPEND):
        with pytest.raises(InputError, match=r"another batch of 12 that is not finished .*: finish that one first"):
            run(tmp_path / "out", [entry("other")], existing)
    assert len(run(tmp_path / "out", [entry("other")], Existing.OVERWRITE).outcomes) == 1
    assert names(tmp_path / "out" / "results.jsonl") == ["other"]


def test_append_puts_one_batch_behind_the_other_once(tmp_path: Path, undisturbed: bytes) -> None:
    folder = tmp_path / "out"
    run(folder, [entry("first")])
    before = (folder / "results.jsonl").read_bytes()
    killed(folder, 5, Existing.APPEND)
    assert (folder / "results.jsonl").read_bytes() == before
    for _ in range(2):
        assert len(run(folder, existing=Existing.APPEND).outcomes) == 12
        assert (folder / "results.jsonl").read_bytes() == before + undisturbed
    assert [o.report.name for o in run(folder, [entry("first")], engine=only()).outcomes] == ["first"]


def test_append_takes_a_file_from_elsewhere(tmp_path: Path, undisturbed: bytes) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.jsonl").write_bytes(undisturbed.rstrip(b"\n"))
    with pytest.raises(InputError, match="not written by run -o"):
        run(tmp_path / "out", [entry("new")])
    run(tmp_path / "out", [entry("new")], Existing.APPEND)
    assert names(tmp_path / "out" / "results.jsonl") == [*(e.name for e in ENTRIES), "new"]


def test_overwriting_keeps_the_old_until_the_new_is_there(tmp_path: Path, undisturbed: bytes) -> None:
    folder = tmp_path / "out"
    run(folder, [entry("old")])
    before = (folder / "results.jsonl").read_bytes()
    killed(folder, 5, Existing.OVERWRITE)
    assert (folder / "results.jsonl").read_bytes() == before
    run(folder, existing=Existing.OVERWRITE, engine=only(*(e.name for e in ENTRIES[5:])))  # the same line goes on
    assert (folder / "results.jsonl").read_bytes() == undisturbed


def test_an_interrupted_batch_does_not_push_aside_what_it_is_to_replace(tmp_path: Path, undisturbed: bytes) -> None:
    """Neither results of another batch, nor all of its own that are computed anew."""
    folder = tmp_path / "undisturbed"
    for entries in (ENTRIES, [entry("s0"), entry("new")]):
        with opened(folder, cast("list[Entry]", entries), cast("Work", work), Existing.OVERWRITE) as kept:
            kept.add(0, attempt(cast("Entry", entries[0]), cast("Work", work)))
            assert kept.end() == str(folder / "results.jsonl.part")
        assert (folder / "results.jsonl").read_bytes() == undisturbed


def test_a_file_put_there_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    killed(tmp_path / "out", 5)
    (tmp_path / "out" / "results.jsonl").write_text("mine\n")
    with pytest.raises(InputError, match="was changed since this batch began"):
        run(tmp_path / "out")
    assert (tmp_path / "out" / "results.jsonl").read_text() == "mine\n"


def test_an_interrupted_batch_shows_what_it_has(tmp_path: Path, undisturbed: bytes) -> None:
    folder = tmp_path / "out"
    entries, engine = cast("list[Entry]", ENTRIES), cast("Work", work)
    for first in (0, 1):  # twice: it then shows more
        with opened(folder, entries, engine, Existing.REFUSE) as kept:
            for index in range(first, 12, 3):
                kept.add(index, attempt(entries[index], engine))
            assert kept.end() == str(folder / "results.jsonl")
    assert names(folder / "results.jsonl") == [f"s{i}" for i in (0, 1, 3, 4, 6, 7, 9, 10)]
    run(folder)
    assert (folder / "results.jsonl").read_bytes() == undisturbed


def test_without_its_part_an_interrupted_batch_begins_again(tmp_path: Path, undisturbed: bytes) -> None:
    folder = tmp_path / "out"
    with opened(folder, cast("list[Entry]", ENTRIES), cast("Work", work), Existing.REFUSE) as kept:
        kept.add(0, attempt(cast("Entry", ENTRIES[0]), cast("Work", work)))
        kept.end()
    (folder / "results.jsonl.part").unlink()
    run(folder)
    assert (folder / "results.jsonl").read_bytes() == undisturbed


@pytest.mark.parametrize("at", range(1, 9))
def test_a_kill_between_any_two_steps_of_the_end_loses_nothing(
    tmp_path: Path, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Every change of a name on the disk is a step: before it, the process may be gone."""
    folder, steps = tmp_path / "out", []
    real = Path.replace

    def step(self: Path, target: Path) -> Path:
        steps.append(target)
        if len(steps) == at:
            raise Killed
        return real(self, target)

    monkeypatch.setattr(Path, "replace", step)
    with suppress(Killed):
        run(folder)
    monkeypatch.undo()
    run(folder)
    assert (folder / "results.jsonl").read_bytes() == undisturbed
    assert sorted(p.name for p in folder.iterdir()) == [".batch", "data", "results.jsonl"]


def test_a_folder_is_written_to_by_one_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path / "out", cast("list[Entry]", ENTRIES), cast("Work", work), Existing.REFUSE), pytest.raises(
            InputError, match=rf"another run \(process {os.getpid()}\) is writing"):
        run(tmp_path / "out")
    assert len(run(tmp_path / "out").outcomes) == 12


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    code = ("import os, sys; from pathlib import Path; from simcore.batch.lock import locked\n"
            "with locked(Path(sys.argv[1]), Path('x')): os.kill(os.getpid(), 9)")
    root = str(ROOT)
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "out"], check=False, env={"PYTHONPATH": root})
    assert done.returncode == -9
    (tmp_path / "folder" / ".batch").mkdir(parents=True)
    (tmp_path / "out").rename(tmp_path / "folder" / ".batch" / "lock")
    assert len(run(tmp_path / "folder").outcomes) == 12


def test_nothing_is_touched_where_nothing_can_be_read(tmp_path: Path) -> None:
    assert [o.code for o in run(tmp_path / "out", [unreadable("typo")]).outcomes] == [2]
    assert not (tmp_path / "out").exists()
    run(tmp_path / "out", [entry("a")])
    with pytest.raises(InputError, match=r"(?s)another batch.*typo\.yaml:7: unknown key"):
        run(tmp_path / "out", [entry("a"), unreadable("typo")])


def test_a_full_disk_costs_what_comes_after_it(tmp_path: Path, undisturbed: bytes,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    real = part.GrowingLines.add

    def add(self: part.GrowingLines, line: bytes) -> None:
        if self.size > len(undisturbed) / 2:
            raise OSError(28, "No space left on device")
        real(self, line)

    monkeypatch.setattr(part.GrowingLines, "add", lambda self, line: _converted(add, self, line))
    ran = run(tmp_path / "out")
    assert ran.ended == 2
    assert ["No space left" in str(p) for p in ran.problems] == [True]
    assert 5 < len(ran.outcomes) < 12
    monkeypatch.undo()
    run(tmp_path / "out")
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == undisturbed


def test_a_full_disk_while_early_results_take_their_turn(tmp_path: Path, undisturbed: bytes,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """The line in its turn is on the disk, and a waiting one after it no longer fits: both are known results."""
    outcomes = [attempt(cast("Entry", e), cast("Work", work)) for e in ENTRIES]
    with opened(tmp_path / "out", cast("list[Entry]", ENTRIES), cast("Work", work), Existing.REFUSE) as folder:
        folder.add(1, outcomes[1])
        monkeypatch.setattr(part.Part, "catch_up", _full)
        with pytest.raises(InputError, match="No space left"):
            folder.add(0, outcomes[0])
        assert list(folder.outcomes()) == outcomes[:2]
    monkeypatch.undo()
    run(tmp_path / "out")
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == undisturbed


def _full(lines: part.Part) -> None:
    with writing(Path("results.jsonl.part")):
        raise OSError(28, "No space left on device")


def _converted(add: Callable[[part.GrowingLines, bytes], None], lines: part.GrowingLines, line: bytes) -> None:
    with writing(lines.path):
        add(lines, line)


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    lines = part.GrowingLines(tmp_path / "x", 0)
    lines.add(b"whole\n")

    class Full:
        def write(self, data: bytes) -> int:
            if len(data) < 6:
                raise OSError(28, "No space left on device")
            return real.write(data[:3]) or 0

        seek, truncate = lines.file.seek, lines.file.truncate

    real = lines.file
    lines.file = Full()  # type: ignore[assignment]
    with pytest.raises(InputError, match="No space left"):
        lines.add(b"another\n")
    real.close()
    assert (tmp_path / "x").read_bytes() == b"whole\n"


def test_readers_see_whole_lines_of_a_killed_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path / "out", 5)
    with (tmp_path / "out" / "results.jsonl.part").open("ab") as file:
        file.write(b'{"name": "to')
    assert [one.name for one in results_of(tmp_path / "out", ())] == [f"s{i}" for i in range(5)]
    assert "is not finished" in capsys.readouterr().err


def test_files_that_a_kill_left_half_written_are_removed(tmp_path: Path) -> None:
    killed(tmp_path / "out", 5)
    for name in (".results.jsonl.0123456789abcdef.tmp", ".batch/.contents.json.0123456789abcdef.tmp"):
        (tmp_path / "out" / name).touch()
    (tmp_path / "out" / ".0123456789abcdef.tmp").touch()  # of another command, which may be at work
    run(tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        ".0123456789abcdef.tmp", ".batch", "data", "results.jsonl"]
    assert sorted(p.name for p in (tmp_path / "out" / ".batch").iterdir()) == ["contents.json", "lock"]


def test_the_same_at_any_number_of_workers(tmp_path: Path, undisturbed: bytes) -> None:
    run(tmp_path / "out", jobs=3)
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == undisturbed


def test_a_result_read_back_is_the_one_that_was_written() -> None:
    """Results taken over from an earlier run are printed like computed ones."""
    from small import scenario

    result = simulate(scenario("fsdp2", {"dp_shard": 8}))
    assert Report.model_validate_json(result.model_dump_json()).model_dump_json() == result.model_dump_json()


@pytest.mark.parametrize("name", ["results.jsonl", "results.jsonl.part", ".batch/lock", ".batch/contents.json",
                                  ".batch/ahead.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_is_not_written_to(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "out" / ".batch").mkdir(parents=True)
    path, other = tmp_path / "out" / name, tmp_path / "precious"
    other.write_text("precious")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(other)
    else:
        path.mkdir()
    with pytest.raises(InputError, match="no regular file"):
        run(tmp_path / "out")
    assert other.read_text() == "precious"


@pytest.mark.parametrize("lines", ["1e999", "-5", "1" + "0" * 23, "13"])
def test_numbers_that_no_batch_has_are_not_believed(tmp_path: Path, lines: str) -> None:
    run(tmp_path / "out")
    contents = tmp_path / "out" / ".batch" / "contents.json"
    text = contents.read_text()
    contents.write_text(text.replace('"lines": 12', f'"lines": {lines}'))
    assert contents.read_text() != text
    with pytest.raises(InputError, match="holds 12 results of another batch"):
        run(tmp_path / "out")


def test_a_part_of_which_nothing_is_known_is_not_thrown_away(tmp_path: Path) -> None:
    run(tmp_path / "out")
    part_file = (tmp_path / "out" / "results.jsonl").rename(tmp_path / "out" / "results.jsonl.part")
    with pytest.raises(InputError, match="`rankscope report` and `rankscope export` read it as it is"):
        run(tmp_path / "out")
    assert len(part_file.read_bytes().splitlines()) == 12


def test_a_run_whose_lock_is_removed_stops(tmp_path: Path, undisturbed: bytes) -> None:
    """Another run could have begun: what this one has is kept, and goes on."""
    def engine(scenario: object, **_: object) -> Report:
        if str(vars(scenario)["name"]) == "s5":
            (tmp_path / "out" / ".batch" / "lock").unlink()
        return work(cast("FakeEntry", scenario))  # type: ignore[arg-type]

    engine.__module__, engine.__qualname__ = work.__module__, work.__qualname__
    ran = run(tmp_path / "out", engine=engine)
    assert (ran.ended, names(tmp_path / "out" / "results.jsonl.part")) == (2, [e.name for e in ENTRIES[:5]])
    assert "its lock was removed" in ran.problems[0].message
    run(tmp_path / "out")
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == undisturbed


def test_a_file_of_results_has_a_bound(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / "results.jsonl").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match=r"expected at most 4,294,967,296 bytes"):
        run(tmp_path / "out")


def test_a_line_that_no_result_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcore.batch.folder.MAX_LINE", 1000)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.jsonl").write_bytes(b"\0" * 5000)
    with pytest.raises(InputError, match="a line has 1,000 bytes or more"):
        run(tmp_path / "out")


@pytest.mark.parametrize("topology", ["t.yaml", "t.json", "t"])
def test_a_file_that_scenarios_name_makes_another_batch(tmp_path: Path, topology: str) -> None:
    from simcore.inputs.loading import read

    text = (f"name: a\nmodel: llama-tiny\nframework: fsdp2\ntopology: {topology}\nmesh: {{dp_shard: 8}}\n"
            "training: {seq_len: 64}\n")
    (tmp_path / "a.yaml").write_text(text)
    made = []
    for efficiency, price in (("one", 1), ("two", 1), ("two", 2)):
        (tmp_path / topology).write_text(f"name: t\nefficiency: {efficiency}.yaml\n")
        (tmp_path / f"{efficiency}.yaml").write_text(f"x: {price}\n")
        _forget()
        made.append(fingerprint(read([tmp_path / "a.yaml"]), simulate))
    assert len({json.dumps(row) for row in made}) == 3
    assert len({row["scenarios"] for row in made}) == 1
    assert len({row["files"] for row in made}) == 3


def _forget() -> None:
    from simcore.batch.fingerprint import _file

    _file.cache_clear()


def test_signals_give_the_codes_that_shells_expect() -> None:
    asked = Interrupts()
    assert asked.code == 0
    asked.note(15, None)
    assert asked.code == 143
    assert asked.pipe.poll()
    with pytest.raises(KeyboardInterrupt):
        asked.note(2, None)
    asked.close()


def test_outcomes_carry_their_codes_through_a_folder(tmp_path: Path) -> None:
    entries = [entry("a"), entry("b", "oom"), entry("c", "illegal"), entry("d", "illegal", swept=True),
               unreadable("e"), entry("f", "crash")]
    codes = [0, 1, 2, 0, 2, 3]
    assert [o.code for o in run(tmp_path / "out", entries).outcomes] == codes
    again: list[Outcome] = [*run(tmp_path / "out", entries, engine=only()).outcomes]
    assert [o.code for o in again] == codes


def test_work_is_described_alike_in_every_process() -> None:
    """A function that is an argument has an address in its text, which would make a batch another one."""
    options = fingerprint([], partial(answered_in_full, partial(check, rules_only=True), rank=1))["options"]
    again = subprocess.run([sys.executable, "-c", (
        "from functools import partial; from simcore.batch.fingerprint import fingerprint; "
        "from simcore.lint.all_problems import answered_in_full; from simcore.simulate import check; "
        "work = partial(answered_in_full, partial(check, rules_only=True), rank=1); "
        "print(fingerprint([], work)['options'])")], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == options
