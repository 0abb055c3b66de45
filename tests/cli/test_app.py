"""The command line around an engine of the tests' own: streams, exit codes, gates."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from checkout import ROOT
from fakes import FakeEntry, FakeScenario, answered, entry, report, unreadable, work
from simcore.cli import app as cli
from simcore.errors import InputError, Problem
from simcore.results.report import Report


@pytest.fixture(autouse=True)
def _engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is `name=what the engine does with it`."""
    names = ("simcore.inputs.loading", "simcore.simulate", "simcore.docgen.first_scenario", "simcore.batch.advice",
             "simcore.lint.all_problems")
    loading, simulate, starter, advice, problems = (ModuleType(name) for name in names)
    vars(loading)["read"] = lambda paths, overrides, opened: [_read(str(path)) for path in paths]
    vars(loading)["settings_of"] = lambda overrides: {}
    vars(simulate).update(
        simulate=work, place=lambda scenario, *, rank=None: report(scenario.name, None),
        check=lambda scenario: report(scenario.name, None, ranks=(), time=None), check_step=lambda scenario: None)
    vars(starter)["starter_text"] = lambda name, model, framework, topology: f"name: {name}\nmodel: {model}\n"
    vars(starter)["expect_readable"] = lambda text, path: None
    vars(advice)["work"] = lambda num_scenarios, *, asked, drawn, shown: partial(work, advise=asked)
    vars(problems).update(in_full=lambda entry: entry, answered_in_full=answered, expect_all=lambda imported: None)
    for module in (loading, simulate, starter, advice, problems):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def _read(path: str) -> FakeEntry:
    name, _, does = path.partition("=")
    if does == "missing":
        raise InputError(Problem(path, "no such file"))
    return unreadable(name) if does == "bad" else entry(name, does.removeprefix("swept ") or "fits",
                                                        swept=does.startswith("swept "))


class Ran:
    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["rankscope", *arguments])
            with pytest.raises(SystemExit) as end:
                cli.main()
        self.code = end.value.code
        self.out, self.err = capsys.readouterr()

    def reports(self) -> list[Report]:
        return [Report.model_validate(row) for row in json.loads(self.out)]


Run = Callable[..., Ran]


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: Ran(capsys, *map(str, arguments))


@pytest.mark.parametrize(
    ("scenarios", "code"),
    [
        (["a"], 0),
        (["a", "b=oom"], 1),
        (["a=oom", "b=illegal"], 2),
        (["a=swept illegal"], 0),
        (["a=bad", "b"], 2),
        (["a=missing"], 2),
        (["a=crash", "b=bad"], 3),
        (["a", "b=interrupt", "c"], 130),
        ([], 2),
    ],
)
def test_the_exit_code_is_the_highest_of_the_scenarios(ran: Run, scenarios: list[str], code: int) -> None:
    assert ran("run", *scenarios).code == code


def test_json_is_alone_on_standard_output(ran: Run) -> None:
    result = ran("run", "a", "b=bad", "c=oom", "--json")
    assert [r.name for r in result.reports()] == ["a", "b", "c"]
    assert "b.yaml:7: unknown key 'tensor_paralel'" in result.err
    assert "does not fit: peak 100.00 GiB = 125% of 80.00 GiB, in backward at layers.51" in result.err


def test_a_person_gets_a_table_and_problems_apart(ran: Run) -> None:
    result = ran("run", "nano", "odd=illegal")
    assert "nano" in result.out
    assert "fits" in result.out
    assert "x.yaml:3: ep=3 does not divide 128 experts [fsdp2: experts]" in result.err


@pytest.mark.parametrize("arguments", [(), ("--max-fill", "99%"), ("--details",)])
def test_what_the_table_tells_is_not_told_again(ran: Run, arguments: tuple[str, ...]) -> None:
    result = ran("run", "a", "b=oom", *arguments)
    assert (result.code, result.err) == (1, "")
    assert "OOM" in result.out
    assert ran("run", "b=oom").err == ""


def test_findings_for_github_are_told_once(ran: Run) -> None:
    assert ran("run", "b=oom", "c=bad", "--format", "github").err == ""
    assert "does not fit" in ran("run", "b=oom", "--format", "junit").err


def test_the_limit_of_a_gate_is_the_one_that_was_asked(ran: Run) -> None:
    assert ran("run", "a", "--max-fill", "0.499").err.endswith("(limit 49.9%)\n")


def test_an_interrupted_batch_says_and_shows_what_it_kept(ran: Run, tmp_path: Path) -> None:
    result = ran("run", "a", "b=interrupt", "-o", tmp_path / "deep" / "out")
    assert "interrupted, 1 results kept" in result.err
    lines = (tmp_path / "deep" / "out" / "results.jsonl").read_text().splitlines()
    assert [Report.model_validate_json(line).name for line in lines] == ["a"]


def test_results_are_one_line_each_and_the_same_again(ran: Run, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        ran("run", "a", "b=oom", "c=bad", "-o", tmp_path / folder)
    one, two = ((tmp_path / folder / "results.jsonl").read_bytes() for folder in ("one", "two"))
    assert one == two
    assert len(one.splitlines()) == 3


@pytest.mark.parametrize(("share", "code"), [("92%", 0), ("50%", 0), ("49%", 1), ("0.4", 1), ("140%", 2), ("x", 2)])
def test_max_fill_lowers_what_is_allowed(ran: Run, share: str, code: int) -> None:
    assert ran("run", "a", "--max-fill", share).code == code


def test_a_baseline_lists_what_got_worse(ran: Run, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps([report("a", 30).model_dump(mode="json"), report("b", 40).model_dump(mode="json")]))
    result = ran("run", "a", "b", "new", "--baseline", old)
    assert result.code == 1
    assert "peak 40.00 GiB, +10.00 GiB (activation 10.00 GiB more) since the baseline" in result.err
    assert "b.yaml" not in result.err


def test_a_baseline_must_be_one(ran: Run, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"hello": 1}')
    assert ran("run", "a", "--baseline", tmp_path / "x.json").code == 2
    assert ran("run", "a", "--baseline", tmp_path / "none.json").code == 2


def test_github_reads_file_and_line(ran: Run) -> None:
    out = ran("run", "a", "b=oom", "c=bad", "--format", "github").out
    assert out.splitlines() == [
        "::error file=b.yaml,line=1,title=b::does not fit: peak 100.00 GiB = 125%25 of 80.00 GiB, "
        "in backward at layers.51; most of it: activation 96.00 GiB, opt_state 2.00 GiB",
        "::error file=c.yaml,line=7,title=c::unknown key 'tensor_paralel'",
    ]


def test_junit_counts_failures_and_errors(ran: Run) -> None:
    suite = ElementTree.fromstring(ran("run", "a", "b=oom", "c=bad", "--format", "junit").out)  # noqa: S314
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [case.get("name") for case in suite] == ["a", "b", "c"]


@pytest.mark.parametrize(("flag", "asked"), [((), None), (("--advise",), True), (("--no-advise",), False)])
def test_advice_is_left_to_the_number_of_scenarios_unless_asked_for(
    ran: Run, monkeypatch: pytest.MonkeyPatch, flag: tuple[str, ...], asked: bool | None
) -> None:
    heard: list[tuple[int, bool | None]] = []

    def chosen(num_scenarios: int, *, asked: bool | None, drawn: bool, shown: bool) -> object:
        heard.append((num_scenarios, asked))
        return work

    monkeypatch.setattr(sys.modules["simcore.batch.advice"], "work", chosen)
    assert ran("run", "a", "b=oom", *flag).code == 1
    assert heard == [(2, asked)]


def test_place_shows_components(ran: Run) -> None:
    result = ran("place", "nano", "--rank", "3")
    assert result.code == 0
    assert "routed_experts" in result.out
    assert ran("place", "nano", "--json").reports()[0].name == "nano"
    assert ran("place", "nano=bad").code == 2


def test_check_says_legal(ran: Run) -> None:
    assert "legal" in ran("check", "a").out
    assert ran("check", "a", "b=bad").code == 2


def test_schema_of_results_is_json_schema(ran: Run) -> None:
    schema = json.loads(ran("schema", "--result").out)
    assert "headroom_bytes" in schema["properties"]
    assert set(schema["$defs"]["Advice"]["properties"]) == {"changes", "verdict", "peak_bytes", "headroom_bytes",
                                                                "step_s", "num_gpus", "warning"}


def test_init_overwrites_nothing(ran: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert ran("init", file).code == 0
    assert file.read_text().startswith("name: mine\n")
    assert ran("init", file).code == 2
    assert ran("init", file, "--force", "--name", "x").code == 0
    assert ran("init", "-").out.startswith("name: scenario\n")


def test_an_output_folder_that_is_a_file_is_a_wrong_input(ran: Run, tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    result = ran("run", "a", "-o", tmp_path / "out")
    assert (result.code, result.out) == (2, "")
    assert "cannot be written" in result.err


def test_a_page_is_written_from_all_results(ran: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ModuleType("viz.pages.page")
    vars(page)["render"] = lambda reports: ",".join(r.name for r in reports)
    monkeypatch.setitem(sys.modules, "viz.pages.page", page)
    assert ran("run", "a", "b", "--html", tmp_path / "page.html").code == 0
    assert (tmp_path / "page.html").read_text() == "a,b"


def test_a_bug_outside_scenarios_is_one_line(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(paths: object, overrides: object, opened: object) -> list[FakeScenario]:
        raise KeyError("oops")

    monkeypatch.setattr(sys.modules["simcore.inputs.loading"], "read", broken)
    monkeypatch.delenv("RANKSCOPE_DEBUG", raising=False)
    result = ran("run", "a")
    assert result.code == 3
    assert result.err == (
        "bug in rankscope: KeyError: 'oops', please report; rerun with RANKSCOPE_DEBUG=1 for the traceback\n"
    )
    monkeypatch.setenv("RANKSCOPE_DEBUG", "1")
    assert "Traceback" in ran("run", "a").err


def test_usage_errors_are_exit_2(ran: Run) -> None:
    assert ran("run", "--no-such-option").code == 2
    assert ran("no-such-command").code == 2
    assert ran("run", "--example", "no-such-example").code == 2


def test_version_is_that_of_the_project(ran: Run) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    completed = ran("--version")
    assert (completed.code, completed.out, completed.err) == (0, f"{project['name']} {project['version']}\n", "")


def test_version_of_sources_that_are_not_installed(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert ran("--version").out == "rankscope, not installed\n"


def test_help_starts_without_the_engine() -> None:
    code = (
        "import sys; sys.argv = ['rankscope', '--help']\n"
        "from simcore.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'networkx', 'simpy', 'pydantic', 'ruamel', 'simcore.simulate'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "place" in done.stdout
