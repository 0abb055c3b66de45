"""A scenario becomes a recipe that asks for the same, or the key that it cannot say is refused at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.errors import InputError, NotYet
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.conversion.converting import convert

AUTOMODEL = """\
name: mine
model: qwen3-8b
framework: automodel
topology: dgx-h100
mesh: {dp_shard: 8}
training:
  seq_len: 512
  micro_batch_size: 2
  global_batch_size: 32
"""


def scenario(text: str = AUTOMODEL) -> Scenario:
    return parse_scenario(parse_document(text, "mine.yaml"))


def test_a_recipe_has_its_launch() -> None:
    made = convert(scenario(), "automodel")
    made.expect_complete()
    assert made.launch == "automodel mine.yaml --nproc-per-node 8\n"
    assert "pretrained_model_name_or_path: Qwen/Qwen3-8B\n" in made.text


@pytest.mark.parametrize(("output", "named"), [("new.yml", "new.yml"), ("new.yaml", "new.yaml"), ("", "old.yml"),
                                               ("new.txt", "old.yml")])
def test_the_launch_names_the_file_that_is_written(tmp_path: Path, output: str, named: str) -> None:
    (tmp_path / "old.yml").write_text(convert(scenario(), "automodel").text, encoding="utf-8")
    made = convert(scenario(), "automodel", str(tmp_path / "old.yml"), output)
    made.expect_complete()
    assert made.launch == f"automodel {named} --nproc-per-node 8\n"


def test_a_key_that_the_format_cannot_say_is_refused_at_its_line() -> None:
    made = convert(scenario(AUTOMODEL + "  lora: {rank: 4}\ncheckpoint: {save: none}\n"), "automodel")
    assert [(one.where, one.message) for one in made.refused] == [
        ("mine.yaml:11", "not yet: checkpoint.save: no recipe of automodel says this")]
    with pytest.raises(NotYet):
        made.expect_complete()


def test_a_key_without_effect_is_listed() -> None:
    made = convert(scenario(AUTOMODEL + "  lora: {rank: 4}\n"), "automodel")
    assert [(one.where, one.key) for one in made.left] == [("mine.yaml:10", "training.lora.rank")]


def test_another_framework_is_refused_by_name() -> None:
    with pytest.raises(NotYet, match="recipes of automodel run automodel"):
        convert(scenario(AUTOMODEL.replace("framework: automodel", "framework: fsdp2")), "automodel")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InputError, match="expected one of automodel"):
        convert(scenario(), "nemo")


def test_what_differs_when_it_is_read_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from simcore.recipes.outline import Outline

    put = Outline.put
    monkeypatch.setattr(Outline, "put", lambda self, key, value, *said, **rest: put(
        self, key, 3 if key == "step_scheduler.local_batch_size" else value, *said, **rest))
    made = convert(scenario(), "automodel")
    assert "not read back" in made.refused[0].message
