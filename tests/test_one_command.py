"""`docs/one-command.md`: questions with one command each, and what it answers; quick ones are asked again.

    python tests/test_one_command.py --write      # asks all again, a few minutes of processor time

Of the slow ones the layouts that the page names are simulated again.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from typing import Final, NamedTuple

import pytest

from checkout import ROOT
from command import Run

PAGE: Final = ROOT / "docs" / "one-command.md"
_HEAD: Final = """# One command each

Questions that people come with, the command, and the beginning of its answer. Made by `python tests/test_one_command.py
--write`; a test asks the quick ones again, and simulates again what the others name. Times are processor seconds of one
core of the machine that wrote the page, start included. `*` marks the Pareto set; `--json` has all.
"""
_EXPLORE: Final = "scenarios/nano-explore"


class Question(NamedTuple):
    """A question, the command after `rankscope`, and how many lines of its answer the page shows.

    `again`: settings of the same file with which `run` gives the peak of a slow question's answer.
    """

    text: str
    command: str
    lines: int
    note: str = ""
    again: tuple[str, ...] = ()


QUESTIONS: Final = (
    Question("LoRA of Nemotron 3 Nano on 4 H100 under Automodel: how long may a sequence be?",
             f"solve {_EXPLORE}/lora.yaml --max seq_len --set mesh.dp_shard=4 --set mesh.ep=4 "
             "--set training.global_batch_size=4 --free training.recompute --set search=null", 6,
             "8k fits with much room; the longest needs recomputation."),
    Question("How few H100 for full fine-tuning, in each framework?",
             f"solve {_EXPLORE}/full.yaml --min gpus --free mesh --set search=null --set training.recompute=full "
             "--set 'sweep={framework: [automodel, fsdp2, megatron, megatron_fsdp, zero3]}'", 1,
             "Megatron needs 8 and not 16: tp 8 and tp 4 are found (next question).",
             ("framework=fsdp2", "mesh.dp_shard=8", "mesh.ep=4", "training.recompute=full")),
    Question("Which layouts of Megatron fit on 8 GPUs, surely or not?",
             f"search {_EXPLORE}/full.yaml --framework megatron --gpus 8 --free mesh --unsure fits "
             "--set training.recompute=full", 14),
    Question("The best layout of Qwen3-30B-A3B, full fine-tuning on 16 H100?",
             f"search {_EXPLORE}/full.yaml --set model=qwen3-30b-a3b --gpus 16 --top 5", 8, "",
             ("model=qwen3-30b-a3b", "mesh.dp_shard=16", "mesh.ep=16", "training.micro_batch_size=4",
              "training.recompute=full")),
    Question("Out of memory in the optimizer's step: why, and what helps?",
             f"run {_EXPLORE}/full.yaml --set model=llama-3.1-70b --set framework=fsdp2 --set mesh.dp_shard=16 "
             "--set mesh.ep=1 --set training.recompute=full --set training.global_batch_size=16", 10,
             "Changes that make it fit stand at the end of the answer, by what they cost."),
    Question("Megatron with tp 2 and ep 8 against FSDP2 with ep 8 on 64 GPUs: what does a million tokens cost?",
             f"search {_EXPLORE}/full.yaml --gpus 64 --framework megatron,fsdp2 --free mesh --objective cost "
             "--where 'mesh.ep == 8 and mesh.pp * mesh.cp * mesh.dp_replicate == 1 and training.micro_batch_size == 1' "
             "--where 'mesh.tp == 2 or framework == \"fsdp2\"'", 9,
             "`etp` is the width of experts; Megatron's default is tp."),
    Question("A thousand layouts: kept in a folder, drawn as a page",
             f"search {_EXPLORE}/lora.yaml --gpus 8,16 --framework automodel,megatron "
             "--free mesh,training.micro_batch_size -o nine --html nine.html", 6,
             "`rankscope report nine -o page.html --figures figures` draws it again without searching.",
             ("mesh.dp_replicate=4", "mesh.dp_shard=4", "mesh.ep=16", "training.micro_batch_size=4")),
    Question("How few GPUs for full fine-tuning of a dense model of 100B, on H100, H200 and B200?",
             "solve scenarios/claims/sheet-full.yaml --min gpus --set model=nemotron-dense-100b "
             "--set 'sweep={topology: [dgx-h100, dgx-h200, dgx-b200]}'", 1,
             "25, 13 and 10 are likely, 27, 14 and 11 sure.",
             ("model=nemotron-dense-100b", "topology=dgx-h100", "mesh.dp_shard=27")),
)
QUICK: Final = tuple(one for one in QUESTIONS if not one.again)
_ENVIRONMENT: Final = {"COLUMNS": "160", "NO_COLOR": "1"}
"""Width of what the page shows."""


def shown(out: str, question: Question) -> list[str]:
    """Lines of an answer that the page has: the first ones; of several limits the line of each."""
    lines = [line.rstrip() for line in out.splitlines()]
    if question.lines > 1:
        return lines[:question.lines]
    starts = [at for at, line in enumerate(lines) if ": fewest GPUs: " in line]
    return [line for at in starts for line in _paragraph(lines, at)]


def _paragraph(lines: list[str], at: int) -> list[str]:
    """A line with those into which a terminal breaks it."""
    more = next((n for n, line in enumerate(lines[at + 1:]) if not line or ": " in line), 0)
    return lines[at:at + 1 + more]


def block(question: Question, out: str, seconds: float) -> str:
    """Section of the page about a question."""
    answer = "\n".join(["$ rankscope " + question.command, *shown(out, question)])
    note = f"{question.note} " if question.note else ""
    return f"## {question.text}\n\n```text\n{answer}\n```\n\n{note}Time: {seconds:.1f} s.\n"


def page_block(question: Question) -> list[str]:
    """Lines of the answer that the page has."""
    page = PAGE.read_text(encoding="utf-8")
    (text,) = re.findall(rf"^## {re.escape(question.text)}\n\n```text\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    head, *answer = text.split("\n")
    assert head == f"$ rankscope {question.command}"
    return list(answer)


def test_the_page_has_every_question_and_no_other() -> None:
    heads = re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert heads == [question.text for question in QUESTIONS]
    assert PAGE.read_text(encoding="utf-8").startswith(_HEAD)


@pytest.mark.parametrize("question", QUICK, ids=lambda question: question.text[:40])
def test_quick_questions_are_answered_as_the_page_says(ran: Run, question: Question, monkeypatch: pytest.MonkeyPatch,
                                                       ) -> None:
    monkeypatch.chdir(ROOT)
    for name, value in _ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    told = ran(*shlex.split(question.command))
    assert told.code in (0, 1), told.err
    assert shown(told.out, question) == page_block(question)


@pytest.mark.parametrize("question", [one for one in QUESTIONS if one.again], ids=lambda question: question.text[:40])
def test_layouts_that_slow_answers_name_have_the_peaks_of_the_page(ran: Run, question: Question,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    file = shlex.split(question.command)[1]
    settings = [word for key in ("sweep=null", *question.again) for word in ("--set", key)]
    (report,) = json.loads(ran("run", file, *settings, "--json").out)
    peak = f"{max(rank['peak']['device_bytes'] for rank in report['ranks']) / 2**30:.2f} GiB"
    assert peak in " ".join(page_block(question)), peak


def write() -> None:
    """Asks all questions, and writes the page."""
    sections = []
    folder = tempfile.mkdtemp()
    for question in QUESTIONS:
        command = re.sub(r"(-o|--html) ", rf"\1 {folder}/", question.command)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-m", "simcore", *shlex.split(command)], cwd=ROOT, text=True,
                              capture_output=True, check=False, env={**os.environ, **_ENVIRONMENT})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode in (0, 1), done.stderr
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        sections.append(block(question, done.stdout, seconds))
    PAGE.write_text("\n".join([_HEAD, *sections]), encoding="utf-8")


if __name__ == "__main__" and "--write" in sys.argv:
    write()
