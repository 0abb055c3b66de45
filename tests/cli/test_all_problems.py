"""All problems of a file at once, each at its line, as `run` and `check` tell them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from command import Run
from simcore.inputs.loading import read
from simcore.lint.all_problems import answered_in_full, in_full
from simcore.simulate import check
from studio_jobs import RECIPE

WRONG = """\
name: bad
model: llama-3.1-8b
framework: automodel
topology: dgx-h100
mesh: {tp: 3, dp_shard: 2}
training:
  seq_len: 4096
  global_batch_size: 7
framework_options: {zzz: 1}
"""
LINES = {8: "expected a multiple of 2", 9: "unknown option 'zzz'", 5: "must be divisible by TP size"}


@pytest.mark.parametrize("command", ["run", "check"])
def test_every_problem_of_a_file_has_its_line(ran: Run, command: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(WRONG)
    code, _, told = ran(command, str(file))
    assert code == 2
    found = {int(line): words for line, words in re.findall(r"bad\.yaml:(\d+): (.*)", told)}
    assert found.keys() == LINES.keys()
    assert all(words in found[line] for line, words in LINES.items())
    code, text, _ = ran(command, str(file), "--set", "training.global_batch_size=8", "--json")
    problems = json.loads(text)[0]["problems"]
    assert (code, [one["where"].rpartition(":")[2] for one in problems]) == (2, ["9", "5"])


def test_a_recipe_is_told_what_its_scenario_would_be_refused_for_too(ran: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(f"{RECIPE.replace('Qwen3-8B', 'Qwen3-8X')}mine: 3\n")
    for answers, wanted in (((), ("9:", "machine", "number of GPUs", "1:")),
                            (("--gpus", "8", "--topology", "dgx-h100"), ("9:", "1:"))):
        code, _, told = ran("check", str(file), *answers)
        lines = told.splitlines()
        assert (code, len(lines)) == (2, len(wanted)), told
        assert all(words in line for words, line in zip(wanted, lines, strict=True)), told
        assert "unknown model 'Qwen/Qwen3-8X'" in lines[-1]


def test_a_sweep_and_what_is_legal_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(f"{WRONG}sweep: {{training.recompute: [none, full]}}\n")
    entries = read([file])
    assert [in_full(entry) for entry in entries] == entries
    file.write_text(WRONG.replace("7", "8").replace("tp: 3", "tp: 2").replace("{zzz: 1}", "{}"))
    (entry,) = read([file])
    assert entry.scenario is not None
    assert answered_in_full(check, entry.scenario) == check(entry.scenario)


SECOND: dict[str, tuple[str, ...]] = {
    "model: llama-3.1-8b\nframework: megatron\nmesh: {cp: 4, dp_shard: 4}\ntraining: {seq_len: 32768}\n"
    "framework_options: {cp_comm_type: a2a+p2p, hierarchical_context_parallel_sizes: [-2, -2]}": ("two sizes",),
    "model: llama-3.1-8b\nframework: megatron\nmesh: {cp: 8, tp: 4}\ntraining: {seq_len: 65536}\n"
    "framework_options: {cp_comm_type: a2a+p2p, hierarchical_context_parallel_sizes: [4, 2]}": ("share out",),
    "model: glm-5\nframework: automodel\nmesh: {dp_shard: 32, cp: 2, ep: 64}\ntraining: {seq_len: 4096}\n"
    "framework_options: {attn: sdpa}": ("GLM DSA context parallelism",),
    "model: llama-3.1-8b\nframework: automodel\nmesh: {tp: 3, dp_shard: 2, ep: 2}\ntraining: {seq_len: 4096}": (
        "requires a MoE model", "by TP size"),
    "model: llama-3.2-1b\nframework: fsdp1\nmesh: {dp_shard: 8}\ntraining: {method: lora, seq_len: 4096}\n"
    "framework_options: {wrap: layers_adapters, forward_prefetch: true}": ("layers_adapters with forward_prefetch",),
}
"""Jobs with what they are refused for: sizes and meshes that a second sentence would take from what was put aside."""


def test_a_rule_about_a_value_that_nobody_wrote_says_nothing(tmp_path: Path) -> None:
    file, found = tmp_path / "second.yaml", {}
    for text, wanted in SECOND.items():
        file.write_text(f"name: second\ntopology: dgx-h100\n{text}\n")
        (entry,) = read([file])
        assert entry.scenario is not None
        told = [row.message for row in answered_in_full(check, entry.scenario).problems]
        if len(told) != len(wanted) or not all(words in said for words, said in zip(wanted, told, strict=True)):
            found[text] = told
    assert found == {}
