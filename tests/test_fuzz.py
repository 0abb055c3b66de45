"""The fuzzer: a minute of it with a fixed seed, that the same seed draws the same, and that it can find a fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from checkout import ROOT
from fuzz import driver, invariants, pairs
from fuzz.bounds import TooLong, bounded
from fuzz.case import Content, Fault, Findings, Input, Kind, Special
from fuzz.commands import Said, expect_answers
from fuzz.drawing import changed, drawn_layout, parsed
from fuzz.driver import Job, run
from fuzz.kinds import KINDS, case_of, cases_named
from fuzz.mutations import extremes_of_schema, mutated_bytes, mutated_tree, paths
from fuzz.running import judged
from fuzz.shrinking import shrunk
from simcore.results.report import Report
from simcore.simulate import simulate

SEED, CASES = 16, 240
"""Number of the cases that every run of the tests judges."""
PLAIN: dict[str, Any] = {"name": "s", "model": "llama-tiny", "framework": "fsdp2", "topology": "dgx-h100",
                         "mesh": {"dp_shard": 4}, "training": {"seq_len": 64, "global_batch_size": 8}}


@pytest.mark.slow
def test_a_minute_of_it(tmp_path: Path) -> None:
    """In a process of its own, whose memory is bounded; `make fuzz` is the same for an hour."""
    root = ROOT
    path = os.pathsep.join([str(root), str(root / "tests")])
    done = subprocess.run([sys.executable, "-m", "fuzz", "--seed", str(SEED), "--cases", str(CASES), "--workers", "1",
                           "--keep", str(tmp_path)], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path}, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- it is the same again -------------------------------------------------------------------------------------------
def test_a_case_is_known_by_its_name() -> None:
    for number in range(40):
        case = case_of(3, number)
        assert cases_named(3, case.name) == case
    assert {case_of(3, number).kind.name for number in range(100)} == set(KINDS)
    with pytest.raises(ValueError, match="KIND-NUMBER"):
        cases_named(3, "layout")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_same_case_is_drawn_again(kind: Kind) -> None:
    first, again = (kind.draw(Random("3/x")) for _ in range(2))
    assert repr(first) == repr(again)
    assert repr(kind.draw(Random("3/y"))) != repr(first)


def test_most_layouts_are_legal() -> None:
    answered = [simulate(parsed(tree), timed=False).status for number in range(30)
                if (tree := drawn_layout(Random(f"legal {number}")))]
    assert answered.count("ok") >= 20


def test_numbers_of_the_schema_are_taken_to_their_ends() -> None:
    ends = set(map(repr, extremes_of_schema()))
    assert {repr((("mesh", "tp"), value)) for value in (0, 1, 2**20, 2**20 + 1)} <= ends
    assert len({path for path, _ in extremes_of_schema()}) > 30


def test_mutations_change_something_and_leave_the_seed_alone() -> None:
    before = json.dumps(PLAIN)
    trees = [mutated_tree(PLAIN, Random(number)) for number in range(200)]
    assert json.dumps(PLAIN) == before
    assert sum(tree != PLAIN for tree in trees) > 150
    assert len(list(paths(PLAIN))) == 9
    texts = [mutated_bytes(before.encode(), Random(number)) for number in range(200)]
    assert sum(text != before.encode() for text in texts) > 150


def test_microbatches_stay_when_ranks_change() -> None:
    assert changed(PLAIN, {"mesh.dp_shard": 8})["training"]["global_batch_size"] == 16
    assert PLAIN["mesh"]["dp_shard"] == 4


# ---- it can find a fault --------------------------------------------------------------------------------------------
def _report(**changes: Any) -> Report:
    return simulate(parsed({**PLAIN, **changes}))


def _broken(report: Report, change: dict[str, Any]) -> list[str]:
    """Names of the expectations that a changed answer breaks."""
    data = json.loads(report.model_dump_json())
    for key, value in change.items():
        *way, last = key.split(".")
        inner = data
        for part in way:
            inner = inner[int(part) if part.isdigit() else part]
        inner[last] = value if not callable(value) else value(inner[last])
    found = Findings()
    invariants.hold(Report.model_validate_json(json.dumps(data)), found)
    return [fault.check for fault in found.faults]


@pytest.mark.parametrize(("change", "check"), [
    ({"ranks.0.peak.allocated_bytes": 1}, "categories add up to the peak"),
    ({"ranks.0.peak.by_phase.backward": 10**15}, "the highest phase is the peak"),
    ({"ranks.0.num_ranks": 3}, "classes add up to the world"),
    ({"ranks.0.at_rest.attention.params_bytes": 10**12}, "what rests is within the peak"),
    ({"ranks.0.traffic.0.wire_bytes": 1}, "links carry what leaves a rank"),
    ({"ranks.0.traffic.0.payload_bytes": -(10**18)}, "no number is negative"),
    ({"time.step_s": 1e-9}, "parts add up to the step"),
    ({"time.executed_tflops_per_gpu": -365.06}, "no number is negative"),
    ({"time.executed_tflops_per_gpu": 1e-6}, "executed FLOPs are the model's or more"),
    ({"time.roofline.limit_s": 1e9}, "a step takes at least its limit"),
    ({"verdict": "oom"}, "what fits leaves room"),
    ({"ranks.0.peak.device_bytes": 5}, "a device holds what is allocated and what is outside"),
])
def test_an_invariant_can_fail(change: dict[str, Any], check: str) -> None:
    assert check in _broken(_report(), change)
    assert _broken(_report(), {}) == []


@pytest.mark.parametrize(("name", "other", "check"), [
    ("again", {"training": {"seq_len": 65, "global_batch_size": 8}}, "the same question again has the same answer"),
    ("longer", {"training": {"seq_len": 4096, "global_batch_size": 8}}, "a longer sequence needs no less"),
    ("sharded", {"mesh": {"dp_shard": 64}, "training": {"seq_len": 64, "global_batch_size": 128}},
     "more ranks hold no more each"),
    ("placed", {"mesh": {"dp_shard": 2}}, "run and place agree on what rests"),
    ("folded", {"training": {"seq_len": 128, "global_batch_size": 8}}, "folded peak is that of every rank"),
])
def test_a_pair_can_fail(name: str, other: dict[str, Any], check: str) -> None:
    found = Findings()
    pairs.PAIRS[name](PLAIN, _report(**other), found)
    assert check in [fault.check for fault in found.faults]
    found = Findings()
    pairs.PAIRS[name](PLAIN, _report(), found)
    assert found.faults == []


@pytest.mark.parametrize(("said", "check"), [
    (Said(3, "", 'Traceback\n  File "x/simcore/y.py", line 1, in f\nValueError: z\n'), "no bug: ValueError at y.py f"),
    (Said(4, "", ""), "exit code 0, 1 or 2"), (Said(2, "", "Traceback\n"), "no traceback"),
    (Said(2, "", "rankscope: it is wrong\n"), "a refusal has file and line"), (Said(2, "", ""), "a refusal says why"),
    (Said(2, "", "two\nlines\n"), "a message is a line that says whose it is"),
    (Said(2, "", "rankscope: a\x1b[31m\n"), "a message has no control characters"),
])
def test_what_is_said_can_be_wrong(said: Said, check: str) -> None:
    found = Findings()
    expect_answers(Input({}, ("run", "f.yaml"), ("file and line",)), said, found)
    assert check in [fault.check for fault in found.faults]


def test_words_for_no_number_are_found() -> None:
    found = Findings()
    expect_answers(Input({}, ("place", "f.yaml")), Said(0, "layer  nan  -5.0 GB\n", ""), found)
    assert [fault.check for fault in found.faults] == ["no number is infinite or none", "no bytes are negative"]
    found = Findings()
    expect_answers(Input({}, ("run", "--json")), Said(0, '[\n{"a": NaN}\n]\n', ""), found)
    assert [fault.check for fault in found.faults] == ["JSON is standard JSON"]


# ---- bounds, shrinking, the driver ----------------------------------------------------------------------------------
def _endless(given: Input, found: Findings) -> None:
    while True:
        pass


def _greedy(given: Input, found: Findings) -> None:
    bytearray(2**32)


def test_time_and_memory_are_bounded() -> None:
    of = [judged(Kind("x", 1, lambda _: Input({}), judge), Input({}), 0.2).faults[0].check
          for judge in (_endless, _greedy)]
    assert of == ["answered in time", "answered in little memory"]
    with pytest.raises(TooLong), bounded(0.1):
        _endless(Input({}), Findings())


def test_a_fault_is_shrunk_to_what_makes_it() -> None:
    tree = {"a": 1, "b": {"c": 1000, "d": [1, 2, 3]}, "e": "x"}

    def has_fault(given: Input) -> bool:
        held = given.files["f.yaml"]
        return isinstance(held, dict) and held.get("b", {}).get("c", 0) >= 7

    small = shrunk(Input({"f.yaml": tree, "t": b"1\n2\n3\n"}, ("run", "x")), has_fault)
    assert small.files["f.yaml"] == {"b": {"c": 7}}
    assert (small.files["t"], small.arguments) == (b"", ())


def test_what_is_found_is_kept_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start anew and find nothing; the summary of a fault is made here."""
    summary = run(Job(SEED, cases=2, workers=2, keep=tmp_path))
    assert summary.inputs.total() == 2
    assert "0 faults" in summary.told()
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_dies_between_cases_is_told_and_replaced() -> None:
    first = driver._started(SEED, 0)
    assert first is not None
    came = None
    while came is None and first.pipe.poll(60):
        came = driver._collected(first, SEED)
    assert came is not None
    first.process.kill()
    first.process.join()
    (other,), died = driver._next(first, SEED, 1)
    assert came.faults == []
    assert [fault.fault.check for fault in died] == ["a process survives"]
    other.end()


def test_inputs_are_kept_at_their_paths_and_names_are_shown(tmp_path: Path) -> None:
    files: dict[str, Content] = {"a/f.yaml": b"1", "b/f.yaml": b"2", "y\udcff.yaml": b"3",
                                 "p": Special("pipe"), "h": Special("sparse", size=2**40),
                                 "l": Special("link", "nowhere")}
    found = driver.Found("shape-1", Fault("x", "y\udcff"), Input(files))
    driver._keep(Job(1, keep=tmp_path), [found, found])
    kept = tmp_path / "shape-1"
    assert [(kept / "1" / name / "f.yaml").read_bytes() for name in "ab"] == [b"1", b"2"]
    assert (kept / "0" / "l").is_symlink()
    assert "y\\udcff" in (kept / "fault.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["run", "report", "validate", "explain", "read", "compare"])
def test_a_number_that_is_none_is_found_of_every_command(command: str) -> None:
    found = Findings()
    expect_answers(Input({}, (command, "nemotron-3-nano.yaml")), Said(0, "layer  nan\n", "odd\n"), found)
    assert [fault.check for fault in found.faults] == [
        "a message is a line that says whose it is", "no number is infinite or none"]


@pytest.mark.parametrize(("line", "is_placed"), [
    ("f.yaml:3: x", True), ("g.yaml:3: x", False), ("--set x: y", True), ("--rank: y", False),
    ("f.yaml: explains one scenario", True), ("g.yaml: no such file", False),
    ("m.json: no such file", True)])  # fmt: skip
def test_every_line_of_a_refusal_names_what_was_given(line: str, *, is_placed: bool) -> None:
    found = Findings()
    given = Input({"f.yaml": {"model": "m.json"}}, ("run", "f.yaml", "--set", "x=1"), ("file and line",))
    expect_answers(given, Said(2, "", f"rankscope: f.yaml:1: a\nrankscope: {line}\n"), found)
    assert (found.faults == []) == is_placed
