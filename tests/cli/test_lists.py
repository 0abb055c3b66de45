"""`rankscope models`, `machines`, `frameworks`, `options`, `examples`: 80 columns, JSON, one line for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from command import Run

LISTS = [("models",), ("machines",), ("frameworks",), ("options", "megatron"), ("options", "fsdp2"), ("examples",)]


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_a_list_fits_into_80_columns(ran: Run, command: tuple[str, ...]) -> None:
    told = ran(*command)
    assert (told.code, told.err) == (0, "")
    assert [line for line in told.out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_json_has_the_records_of_the_text(ran: Run, command: tuple[str, ...]) -> None:
    records = json.loads(ran(*command, "--json").out)
    text = ran(*command).out
    assert records
    assert [record["name"] for record in records if record["name"] not in text] == []


def test_a_model_has_a_row_with_size_methods_and_repository(ran: Run) -> None:
    lines = ran("models").out.splitlines()
    row = next(number for number, line in enumerate(lines) if line.startswith("qwen3-8b "))
    assert lines[row].split() == ["qwen3-8b", "8.19B", *["FLQ"] * 4, "FL", "F", *["FLQ"] * 4]
    assert lines[row + 1] == "    Qwen/Qwen3-8B, qwen3"


@pytest.mark.parametrize("name", ["llama-3.1-70b", "meta-llama/Llama-3.3-70B-Instruct", "LLAMA-3.3-70B"])
def test_one_model_is_told_by_any_of_its_names(ran: Run, name: str) -> None:
    told = ran("models", name).out
    assert told.startswith("llama-3.1-70b: 70,553,706,496 parameters, 80 layers, llama\n")
    assert "    megatron: full, lora; refused: qlora\n" in told
    [record] = json.loads(ran("models", name, "--json").out)
    assert record["name"] == "llama-3.1-70b"


def test_options_tell_values_default_and_what_they_say(ran: Run) -> None:
    told = ran("options", "megatron").out
    assert "use_distributed_optimizer: true | false, default true\n    optimizer states are split over" in told


@pytest.mark.parametrize(("arguments", "message"), [
    (("models", "qwen9"), "unknown model 'qwen9' (did you mean "), (("options", "fsdp3"), "did you mean 'fsdp2'"),
    (("options",), "missing argument framework"), (("machines", "x"), "unexpected extra argument"),
])
def test_wrong_words_are_one_line(ran: Run, arguments: tuple[str, ...], message: str) -> None:
    told = ran(*arguments)
    assert (told.code, told.out) == (2, "")
    assert message in told.err
    assert len(told.err.splitlines()) == 1


def test_help_of_a_list_loads_no_engine() -> None:
    code = "import sys; import simcore.cli.app; print([m for m in ('simcore.models', 'pydantic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
