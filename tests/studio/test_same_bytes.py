"""An answer of the studio is, byte for byte, what `rankscope run --json` prints."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from command import Run
from simcore.inputs.document import parse_document

pytestmark = pytest.mark.slow

SMALL = """\
model: llama-3.2-1b
topology: {topology}
framework: {framework}
mesh: {mesh}
training: {{seq_len: {length}, micro_batch_size: {micro}, method: {method}}}
"""
GRID = tuple(itertools.product(
    ("fsdp2", "automodel", "zero3", "megatron"), ("{dp_shard: 8}", "{dp_shard: 4, tp: 2}", "{dp_shard: 8, ep: 2}"),
    ("full", "lora"), (1, 2)))
"""Layouts that fit, and illegal ones."""
FULL = ("fsdp2", "{dp_shard: 2}", "full", 8)
"""A layout that does not fit, whose answer has advice."""
WRONG = ("model: nothing\n", "", "- 1\n", "name: x\nmodel: llama-3.2-1b\nframework: fsdp2\ntopology: dgx-h100\n"
         "mesh: {dp_shard: 0}\ntraining: {seq_len: 1, colour: red}\n", "a: [\n")


def texts() -> list[str]:
    machines = [*((one, "dgx-h100", 512) for one in GRID), (FULL, "rtx-4090", 4096)]
    small = [f"name: small-{n}\n" + SMALL.format(framework=framework, mesh=mesh, method=method, micro=micro,
                                                topology=topology, length=length)
             for n, ((framework, mesh, method, micro), topology, length) in enumerate(machines)]
    return [*small, *WRONG]


def test_fifty_scenarios_have_the_same_answers(client: TestClient, ran: Run, tmp_path: Path) -> None:
    every, verdicts = texts(), set[str]()
    assert len(every) >= 50
    for number, text in enumerate(every):
        name = f"s{number}.yaml"
        (tmp_path / name).write_text(text, encoding="utf-8")
        studio = client.post("/api/answer", json={"name": name, "text": text})
        assert studio.text == ran("run", "--json", name).out, text
        verdicts |= {str(one["verdict"] or one["status"]) for one in studio.json()}
    assert verdicts >= {"fits", "oom", "illegal", "error"}


def test_values_of_a_form_have_the_answer_of_their_file(client: TestClient) -> None:
    text = texts()[0]
    values = parse_document(text, "studio.yaml").data
    from_text, from_values = (client.post("/api/answer", json=fields).text for fields in ({"text": text},
                                                                                        {"values": values}))
    assert from_text == from_values
