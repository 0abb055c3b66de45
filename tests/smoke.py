"""A smoke set: every command once, and its help, with the versions of the environment that runs this file.

`make lowest` runs it where the wheel is installed with the lowest versions that pyproject.toml allows, without pytest:

    python -I -W error tests/smoke.py EXPECTED.json SCENARIO...

EXPECTED.json is what `run --json` says of these scenarios under other versions: the same bytes have to come. The first
scenario fits; the others may not. Without -I Python would import what lies beside this file.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple
from unittest import mock

from typer.main import get_group

from simcore.cli import app as cli
from simcore.cli.explain import What
from simcore.cli.export import Format

ROOT: Final = Path(__file__).resolve().parents[1]
HELP_ALONE: Final = {"calibrate", "studio"}  # needs torch and a GPU; serves until it is ended (`failures_of_studio`)
DOES_NOT_FIT: Final = 1


class Call(NamedTuple):
    """Arguments of `rankscope`, and the exit code that is expected of them."""

    arguments: tuple[object, ...]
    code: int = 0


def calls(scenarios: list[str], folder: Path) -> list[Call]:
    """Every command, every format and every number that is explained; files go to the folder."""
    first, results, snapshot = scenarios[0], folder / "batch" / "results.jsonl", folder / "kept.snapshot"
    return [
        Call(("run", "--no-advise", "-o", results.parent, "-j", 2, *scenarios), DOES_NOT_FIT),
        Call(("run", "--example", "first-look", "--html", folder / "run.html", "--max-fill", "92%")),
        Call(("run", first, "--format", "junit")),
        Call(("place", first, "--rank", 3)),
        Call(("check", *scenarios)),
        Call(("compare", first, first)),
        *(Call((name,)) for name in ("models", "machines", "frameworks", "examples")),
        Call(("models", "qwen3-8b")),
        Call(("options", "fsdp2")),
        Call(("import", _recipe(folder), "--gpus", 8, "--topology", "dgx-h100")),
        Call(("convert", _scenario(folder), "--to", "automodel")),
        Call(("lint", _recipe(folder), first, "--gpus", 8)),
        Call(("query", results.parent, "select count(*) from results")),
        Call(("solve", first, "--for", "micro_batch")),
        Call(("search", first, "--free", "mesh.ep", "--top", "2", "-j", "1", "--write", folder / "best")),
        Call(("validate", ROOT / "tests" / "truth" / "measured" / "axolotl.jsonl")),
        Call(("verify", first, "--python", folder / "no-python"), 2),
        Call(("schema",)),
        Call(("schema", "--result")),
        Call(("init", folder / "mine.yaml")),
        Call(("check", folder / "mine.yaml")),
        Call(("check", folder / "missing.yaml"), 2),
        *(Call(("explain", first, what)) for what in What),
        *(Call(("export", form, first, "-o", folder / f"kept.{form}")) for form in Format),
        Call(("read", snapshot, first)),
        Call(("report", results, "-o", folder / "batch.html")),
        Call(("report", first, "-o", folder / "one.html", "--figures", folder / "figures", "--png")),
    ]


def _recipe(folder: Path) -> Path:
    """Recipe of another tool, as a file in the folder."""
    file = folder / "recipe.yaml"
    file.write_text("base_model: qwen3-8b\ndatasets: [{path: mine}]\nsequence_len: 512\nmicro_batch_size: 2\n"
                    "gradient_accumulation_steps: 1\nbf16: true\nattn_implementation: flash_attention_2\n"
                    "optimizer: adamw_torch_fused\n", encoding="utf-8")
    return file


def _scenario(folder: Path) -> Path:
    """Scenario that a recipe can say, as a file in the folder."""
    file = folder / "small.yaml"
    file.write_text("name: small\nmodel: qwen3-8b\nframework: automodel\ntopology: dgx-h100\nmesh: {dp_shard: 8}\n"
                    "training: {seq_len: 512}\n", encoding="utf-8")
    return file


def run(*arguments: object) -> tuple[object, str, str]:
    """Exit code, standard output and standard error of `rankscope` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with (mock.patch.object(sys, "argv", ["rankscope", *map(str, arguments)]),
          contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)):
        try:
            cli.main()
        except SystemExit as end:
            return end.code, out.getvalue(), err.getvalue()


def failures_of(call: Call) -> list[str]:
    """Another exit code than expected, or a line of standard error that is not rankscope's own."""
    code, _, err = run(*call.arguments)
    if code == call.code and all(line.startswith("rankscope: ") for line in err.splitlines()):
        return []
    words = " ".join(map(str, call.arguments))
    return [f"rankscope {words}: expected exit code {call.code}, came {code}; standard error:\n{err}"]


def failures_of_script() -> list[str]:
    """The command that was installed, as a person calls it: its own process, warnings as Python shows them."""
    script = Path(sys.executable).with_name("rankscope")
    ended = subprocess.run([script, "--help"], capture_output=True, text=True, check=False)
    return [] if ended.returncode == 0 and not ended.stderr else [f"{script.name} --help: {ended.stderr}"]


def failures_of_studio() -> list[str]:
    """The studio answers a question at the address that it prints."""
    script = Path(sys.executable).with_name("rankscope")
    with subprocess.Popen([script, "studio", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as served:
        assert served.stdout is not None
        address = served.stdout.readline().split()[3]
        asked = urllib.request.Request(f"{address}api/scenario", b'{"values": {"name": "mine"}}',  # noqa: S310
                                       {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
                text = answer.read().decode()
        finally:
            served.terminate()
        _, err = served.communicate(timeout=30)
    return [] if "name: mine" in text and not err else [f"studio: {text}; {err}"]


def failures(expected: str, scenarios: list[str], folder: Path) -> list[str]:
    """Failures of all commands."""
    names, todo = sorted(get_group(cli.app).commands), calls(scenarios, folder)
    uncalled = set(names) - HELP_ALONE - {call.arguments[0] for call in todo}
    helps = [Call(("--help",)), *(Call((name, "--help")) for name in names)]
    found = [f"there is no call of the command {name}" for name in sorted(uncalled)]
    found += failures_of_script() + failures_of_studio()
    found += [told for call in [*helps, *todo] for told in failures_of(call)]
    if run("run", "--no-advise", "--json", *scenarios)[1] != expected:
        found.append("run --json: other results than those expected")
    return found


def main(expected: str, *scenarios: str) -> None:
    """Ends with exit code 1 and what is wrong, if anything is."""
    with tempfile.TemporaryDirectory() as folder:
        found = failures(Path(expected).read_text(encoding="utf-8"), list(scenarios), Path(folder))
    sys.exit("\n".join(found) or 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
