"""`rankscope import`, and recipes where other commands take scenarios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import SCENARIO, Run

RECIPE = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 4, local_batch_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: llama-3.2-1b
  backend: {gate_precision: float32}
peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 4}
distributed: {strategy: fsdp2, tp_size: 1}
dataset: {_target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset}
optimizer: {_target_: torch.optim.Adam, lr: 1e-5}
"""
ANSWERS = ("--gpus", 4, "--seq-len", 256, "--topology", "dgx-h100")


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "mine.yaml").write_text(RECIPE, encoding="utf-8")
    return "mine.yaml"


def test_import_prints_a_scenario_that_runs(ran: Run, recipe: str) -> None:
    printed = ran("import", recipe, *ANSWERS)
    assert printed.code == 0
    assert "mine.yaml:7 peft.dim" in printed.out
    Path("own.yaml").write_text(printed.out, encoding="utf-8")
    assert ran("check", "own.yaml").code == 0


def test_import_writes_it_once(ran: Run, recipe: str) -> None:
    first = ran("import", recipe, *ANSWERS, "-o", "own.yaml")
    assert (first.code, first.out) == (0, "")
    assert "wrote own.yaml: " in first.err
    assert "1 of the recipe's are not modelled" in first.err
    assert ran("import", recipe, *ANSWERS, "-o", "own.yaml").code == 2
    assert ran("import", recipe, *ANSWERS, "-o", "own.yaml", "--force").code == 0


def test_run_leaves_out_what_is_not_modelled_where_it_is_asked_to_and_names_it(ran: Run, recipe: str) -> None:
    Path(recipe).write_text(f"{RECIPE}mine: 3\nqat: {{enabled: true}}\n", encoding="utf-8")
    strict = ran("run", recipe, *ANSWERS)
    assert (strict.code, "unknown key 'mine'" in strict.err) == (2, True)
    loose = ran("run", recipe, *ANSWERS, "--loose", "--json")
    assert loose.code == 0
    assert "mine.yaml:11: mine: 3: unknown; left out by --loose" in loose.err
    assert "without qat.enabled" in loose.err
    assert "and mine of the recipe, which may change the answer" in loose.err
    Path(recipe).write_text(RECIPE, encoding="utf-8")
    assert json.loads(ran("run", recipe, *ANSWERS, "--json").out) == json.loads(loose.out)


def test_import_as_json_has_every_origin(ran: Run, recipe: str) -> None:
    [shown] = json.loads(ran("import", recipe, *ANSWERS, "--json").out)
    assert shown["format"] == "automodel"
    assert shown["origins"]["training.lora.rank"]["where"] == "mine.yaml:7"
    assert {one["key"] for one in shown["left"]} == {
        "model.backend.gate_precision", "optimizer.lr", "distributed.activation_checkpointing"}


def test_what_is_open_is_asked_once_with_the_options(ran: Run, recipe: str) -> None:
    asked = ran("import", recipe)
    assert asked.code == 2
    assert [option for option in ("--gpus N", "--seq-len N", "--topology NAME") if option in asked.err] == [
        "--gpus N", "--seq-len N", "--topology NAME"]


def test_set_answers_too(ran: Run, recipe: str) -> None:
    printed = ran("import", recipe, "--gpus", 4, "--set", "training.seq_len=64", "--set", "topology=dgx-h100")
    assert printed.code == 0
    assert "  seq_len: 64                             # --set training.seq_len" in printed.out


def test_a_value_that_no_scenario_has_is_an_error_at_the_recipes_line(ran: Run, recipe: str) -> None:
    Path(recipe).write_text(RECIPE.replace("dim: 4", "dim: 0"), encoding="utf-8")
    printed = ran("import", recipe, *ANSWERS)
    assert printed.code == 2
    assert "mine.yaml:7: training.lora.rank" in printed.err


@pytest.mark.parametrize(("old", "new", "told"), [
    ("llama-3.2-1b", "no/such-model", "mine.yaml:5: unknown model 'no/such-model'"),
    ("tp_size: 1", "tp_size: 3", "mine.yaml:8: ")])
def test_a_scenario_that_does_not_run_is_printed_and_told(ran: Run, recipe: str, old: str, new: str, told: str) -> None:
    Path(recipe).write_text(RECIPE.replace(old, new), encoding="utf-8")
    printed = ran("import", recipe, "--gpus", 12, *ANSWERS[2:], "--set", "training.global_batch_size=48")
    assert (printed.code, "framework: automodel" in printed.out) == (2, True)
    assert told in printed.err


@pytest.mark.parametrize("command", [("check",), ("place",), ("run", "--no-advise")])
def test_commands_take_a_recipe_as_it_is(ran: Run, recipe: str, command: tuple[str, ...]) -> None:
    printed = ran(*command, recipe, *ANSWERS, "--json")
    assert printed.code == 0
    assert json.loads(printed.out)[0]["scenario"]["training"]["lora"]["rank"] == 4
    assert "mine.yaml:6: model.backend.gate_precision: 'float32': not modelled" in printed.err


def test_explain_search_and_solve_take_it_too(ran: Run, recipe: str) -> None:
    explained = ran("explain", recipe, "trainable", *ANSWERS)
    assert explained.code == 0
    assert "training.lora.rank          4  [mine.yaml:7 peft.dim]" in explained.out
    assert ran("search", recipe, *ANSWERS, "--free", "training.micro_batch_size=1,2").code == 0
    solved = ran("solve", recipe, "--for", "micro_batch", "--set", "mesh.dp_shard=4", "--set", "topology=dgx-h100",
                 "--seq-len", 256)
    assert solved.code == 0


def test_answers_without_a_recipe_are_refused(ran: Run, file: str) -> None:
    printed = ran("check", file, "--gpus", 8)
    assert printed.code == 2
    assert "--gpus 8: answers what a recipe leaves open" in printed.err


def test_a_scenario_is_no_recipe(ran: Run, file: str) -> None:
    assert SCENARIO
    printed = ran("import", file)
    assert printed.code == 2
    assert "is of no format that is recognised" in printed.err


def test_files_beside_a_recipe_and_variables_of_its_script_answer(ran: Run, recipe: str) -> None:
    Path("run.sh").write_text(f"torchrun --nproc-per-node $EACH train.py --config {recipe}\n", encoding="utf-8")
    beside = ("--seq-len", 256, "--topology", "dgx-h100", "--with", "run.sh")
    refused = ran("check", recipe, *beside)
    assert refused.code == 2
    assert "--set env.EACH=VALUE gives it" in refused.err
    found = json.loads(ran("check", recipe, *beside, "--set", "env.EACH=4", "--json").out)
    assert found[0]["scenario"]["mesh"]["dp_shard"] == 4
    [made] = json.loads(ran("import", recipe, *beside, "--set", "env.EACH=4", "--json").out)
    assert made["scenario"]["mesh"]["dp_shard"] == 4
    assert ran("search", recipe, *beside, "--set", "env.EACH=4", "--free", "training.micro_batch_size=1").code == 0


def test_files_beside_a_scenario_are_an_error(ran: Run) -> None:
    Path("own.yaml").write_text(SCENARIO, encoding="utf-8")
    Path("run.sh").write_text("torchrun train.py\n", encoding="utf-8")
    for options in (("--with", "run.sh"), ("--set", "env.X=1")):
        printed = ran("check", "own.yaml", *options)
        assert printed.code == 2
        assert "answers what a recipe leaves open" in printed.err
    assert "expected env.NAME=VALUE" in ran("check", "own.yaml", "--set", "env.x y=1").err
