"""Answers on layouts that were met: the same as computed ones, and other ones where anything that matters is other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.models.graph import model_config
from simcore.search.judge import judged, timed
from simcore.search.known import Known
from simcore.simulation.simulation import Simulation

ROOT = Path(__file__).parents[2]
BASE = Scenario.model_validate({
    "name": "base", "model": "llama-tiny", "topology": "dgx-h100", "framework": "fsdp2", "mesh": {"dp_shard": 4},
    "training": {"seq_len": 128, "global_batch_size": 8}})
CHANGES: list[dict[str, Any]] = [
    {"mesh.dp_shard": 2}, {"mesh.dp_replicate": 2}, {"training.seq_len": 256}, {"training.micro_batch_size": 2},
    {"training.global_batch_size": 16}, {"training.recompute": "full"}, {"training.method": "lora"},
    {"training.optimizer.name": "sgd"}, {"training.precision.params": "bf16"}, {"training.loss": "hf_keep_logits"},
    {"framework": "ddp", "mesh.dp_shard": 1, "mesh.dp_replicate": 4},
    {"framework_options": {"reshard_after_forward": False}}, {"topology": "dgx-a100"},
    {"topology": {"file": "dgx-h100", "gpus_per_node": 2}}, {"limits.max_fill": 0.5},
    {"limits.usable_memory": "20 GiB"}, {"environment.expandable_segments": True},
    {"environment.cublas_workspace_config": ":4096:8"}, {"model": {"config": "llama-tiny", "overrides": {
        "num_hidden_layers": 3}}}, {"checkpoint.load": "every_rank"}]


def counted() -> tuple[Known[int], list[str]]:
    """A cache, and the names of the scenarios for which it computed an answer."""
    asked: list[str] = []

    def answer(simulation: Simulation) -> int:
        asked.append(simulation.job.scenario.name)
        return len(asked)

    return Known(answer), asked


def test_a_layout_is_answered_once() -> None:
    known, asked = counted()
    assert [known(one) for one in (BASE, changed(BASE, {}), changed(BASE, {"name": "other"}))] == [1, 1, 1]
    assert asked == ["base"]


@pytest.mark.parametrize("keys", CHANGES, ids=lambda keys: json.dumps(keys)[:60])
def test_any_other_key_is_another_layout(keys: dict[str, Any]) -> None:
    known, asked = counted()
    first = known(BASE)
    assert known(changed(BASE, keys)) != first
    assert len(asked) == len(known) == 2


def test_answers_met_again_are_those_of_a_first_meeting() -> None:
    once = [(judged(BASE, [keys]), timed(BASE, [keys])) for keys in CHANGES[:6]]
    assert [(judged(BASE, [keys]), timed(BASE, [keys])) for keys in CHANGES[:6]] == once
    assert len({repr(answers) for answers in once}) == len(once)


def test_files_that_have_changed_make_other_layouts(tmp_path: Path) -> None:
    config, machine = tmp_path / "config.json", tmp_path / "machine.yaml"
    fields = dict(model_config("llama-tiny", None, "model"))
    config.write_text(json.dumps(fields), encoding="utf-8")
    text = (ROOT / "topologies" / "dgx-h100.yaml").read_text(encoding="utf-8")
    machine.write_text(text, encoding="utf-8")
    asked = changed(BASE, {"model": str(config), "topology": str(machine)})
    known, _ = counted()
    assert [known(asked) for _ in range(2)] == [1, 1]
    config.write_text(json.dumps(fields | {"num_hidden_layers": 5}), encoding="utf-8")
    assert known(asked) == 2
    machine.write_text(text + "\n# written again\n", encoding="utf-8")
    assert known(asked) == 3


def test_answers_used_long_ago_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcore.search.known._MOST", 2)
    known, asked = counted()
    one, two, three = (changed(BASE, {"training.seq_len": length}) for length in (64, 128, 256))
    for asked_again in (one, two, one, three, one):
        known(asked_again)
    assert len(asked) == 3
    known(two)
    assert len(asked) == 4
    known.clear()
    assert not len(known)
