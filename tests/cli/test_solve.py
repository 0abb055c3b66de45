"""`rankscope solve`: one row a scenario, JSON, exit codes, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import small
from command import Run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(json.dumps(small.scenario("fsdp2", {"dp_shard": 4}, model="llama-3.2-3b").normalised()))
    return path


def test_the_fewest_gpus_are_a_row(ran: Run, file: Path) -> None:
    told = ran("solve", file, "--set", "limits.usable_memory=30 GiB")
    assert (told.code, told.err) == (0, "")
    (found,) = json.loads(ran("solve", file, "--set", "limits.usable_memory=30 GiB", "--json").out)
    row = next(line for line in told.out.splitlines()[1:] if line.strip().startswith("small"))
    assert row.split()[1:4] == [str(found[key]) for key in ("value", "likely", "possible")]
    assert found["beyond"] == found["value"] - 1


def test_what_never_fits_is_exit_1_and_what_is_refused_exit_2(ran: Run, file: Path) -> None:
    never = ran("solve", file, "--for", "micro_batch", "--set", "limits.usable_memory=1 GiB")
    assert (never.code, never.err) == (1, "")
    refused = ran("solve", file, "--set", "mesh.tp=3")
    assert refused.code == 2
    assert refused.err.startswith("rankscope: small: ")
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("--for", "x"), ("--set", "nothing=1")])
def test_wrong_words_are_exit_2(ran: Run, file: Path, arguments: tuple[str, str]) -> None:
    assert ran("solve", file, *arguments).code == 2


def test_free_layouts_give_a_limit_and_the_best_there(ran: Run, file: Path) -> None:
    asked = ("solve", file, "--for", "gpus", "--free", "mesh", "--set", "limits.usable_memory=30 GiB")
    told = ran(*asked)
    assert (told.code, told.err) == (0, "")
    (found,) = json.loads(ran(*asked, "--json").out)
    assert f"fewest GPUs: {found['value']} surely fits; {found['beyond']} does not" in told.out
    assert {one["num_gpus"] for one in found["best"]["best"]} == {found["value"]}
    never = ran("solve", file, "--for", "sequence", "--free", "training.recompute", "--set",
                "limits.usable_memory=1 GiB")
    assert (never.code, "none surely fits" in never.out) == (1, True)


@pytest.mark.parametrize("arguments", [("--gpus", "4"), ("--free", "nothing"), ("--free", "mesh", "--gpus", "x"),
                                       ("--framework", "jax")])
def test_wrong_spaces_are_one_line(ran: Run, file: Path, arguments: tuple[str, ...]) -> None:
    told = ran("solve", file, *arguments)
    assert told.code == 2
    assert len(told.err.strip().splitlines()) == 1


@pytest.mark.parametrize(("present", "named"), [
    ("sequence", ("--max", "seq_len")), ("micro_batch", ("--max", "micro_batch_size")),
    ("global_batch", ("--max", "global_batch_size")), ("gpus", ("--min", "gpus"))])
def test_a_quantity_has_two_spellings(ran: Run, file: Path, present: str, named: tuple[str, str]) -> None:
    small_card = ("--set", "limits.usable_memory=30 GiB", "--json")
    assert ran("solve", file, *named, *small_card) == ran("solve", file, "--for", present, *small_card)


def test_the_answer_is_a_line_before_the_table(ran: Run, file: Path) -> None:
    told = ran("solve", file, "--max", "seq_len", "--set", "limits.usable_memory=30 GiB")
    (found,) = json.loads(ran("solve", file, "--max", "seq_len", "--set", "limits.usable_memory=30 GiB", "--json").out)
    first = told.out.splitlines()[0]
    assert first.startswith(f"small: longest sequence: {found['value']:,} surely fits (")
    assert f"; {found['beyond']:,} does not: {found['beyond_verdict']}, " in first
    assert first.endswith(found["why"])


def test_the_smallest_gpu_and_the_fewest_dollars(ran: Run, file: Path) -> None:
    card = ran("solve", file, "--gpu-of", "dgx-h100,l40s,rtx-4090", "--free", "training.recompute")
    assert (card.code, card.err) == (0, "")
    assert card.out.startswith("small: smallest GPU: ")
    (found,) = json.loads(ran("solve", file, "--min", "cost", "--gpus", "2", "--json").out)
    assert found["value"] == found["best"]["best"][0]["usd_per_million_tokens"] > 0


@pytest.mark.parametrize(("arguments", "says"), [
    (("--max", "seq_len", "--min", "gpus"), "one question at a time"),
    (("--gpu-of", "moon"), "no topology 'moon'"), (("--gpu-of", ","), "expected machines"),
    (("--where", "mesh.tp == 1"), "expected --free"), (("--allow", "bf16-params"), "expected --free"),
    (("--free", "mesh", "--where", "mesh.tq == 1"), "no key of a scenario"),
    (("--min", "cost", "--set", "topology=rtx-4080", "--gpus", "1", "--set", "training.method=lora"), "no price")])
def test_wrong_questions_are_one_line(ran: Run, file: Path, arguments: tuple[str, ...], says: str) -> None:
    told = ran("solve", file, *arguments)
    assert (told.code, told.out) == (2, "")
    assert says in told.err
    assert len(told.err.strip().splitlines()) == 1
