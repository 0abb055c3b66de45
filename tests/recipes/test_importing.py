"""Files become a recipe of a format, on the fly too; hostile ones are refused by name, and nothing of them is run."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from samples_of_recipes import SAMPLES
from simcore.errors import InputError
from simcore.inputs.document import parse_document
from simcore.inputs.loading import read
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import Opener, import_recipe
from simcore.recipes.recipe_file import read_files
from simcore.recipes.registry import format_named, format_of, is_scenario, known_formats

SCENARIO = "name: mine\nmodel: llama-3.2-1b\nframework: ddp\ntopology: rtx-4090\ntraining: {seq_len: 64}\n"
RECIPE = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 8, local_batch_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: qwen3-8b
dataset: {_target_: MockIterableDataset, seq_len: 128}
optimizer: {_target_: torch.optim.Adam}
"""
ANSWERS = Answers.of_options(8, None, "dgx-h100")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_may_hold_scenarios_and_recipes() -> None:
    Path("a.yaml").write_text(SCENARIO, encoding="utf-8")
    Path("b.yaml").write_text(RECIPE, encoding="utf-8")
    taken: list[Imported] = []
    answers = Answers.of_options(8, None, "dgx-h100", {"training.optimizer.name": "adamw"})
    entries = read(["."], ["training.optimizer.name=adamw"], Opener(answers, taken.append))
    assert [(entry.name, entry.problems) for entry in entries] == [("mine", ()), ("b", ())]
    assert [entry.scenario.training.optimizer.name for entry in entries if entry.scenario] == ["adamw", "adamw"]
    assert [one.path for one in taken] == ["./b.yaml"]
    assert str(taken[0].origins["training", "optimizer", "name"]) == "--set training.optimizer.name"


def test_a_recipe_that_leaves_something_open_is_a_problem_of_its_entry() -> None:
    Path("b.yaml").write_text(RECIPE, encoding="utf-8")
    [entry] = read(["b.yaml"], (), Opener(Answers(), bool))
    assert [problem.message.partition(";")[0] for problem in entry.problems] == [
        "the recipe leaves open: machine", "the recipe leaves open: number of GPUs"]


def test_a_file_that_the_launch_script_sources_is_read_with_it() -> None:
    Path("b.yaml").write_text(RECIPE, encoding="utf-8")
    Path("run.sh").write_text("source $DIR/conf.sh\ntorchrun --nproc-per-node $EACH train.py --config b.yaml "
                              "--checkpoint.checkpoint_dir $HOME/out", encoding="utf-8")
    Path("conf.sh").write_text("EACH=4", encoding="utf-8")
    found = import_recipe(["b.yaml", "run.sh", "conf.sh"], Answers.of_options(topology="dgx-h100"))
    assert not found.wrong
    assert found.values["mesh"] == {"dp_shard": 4}
    assert "checkpoint.checkpoint_dir" in [one.key for one in found.left if one.kind == "no effect"]
    with pytest.raises(InputError, match=r"give that file too, or --set env\.EACH=VALUE"):
        import_recipe(["b.yaml", "run.sh"], Answers.of_options(topology="dgx-h100"))


def test_files_beside_a_recipe_belong_to_it() -> None:
    Path("b.yaml").write_text(RECIPE, encoding="utf-8")
    Path("run.sh").write_text("torchrun --nproc-per-node $EACH train.py --config b.yaml", encoding="utf-8")
    answers = Answers.of_options(topology="dgx-h100", variables={"EACH": "4"})
    [entry] = read(["b.yaml"], (), Opener(answers, bool, ("run.sh",)))
    assert entry.scenario is not None
    assert entry.scenario.mesh.dp_shard == 4
    [entry] = read(["b.yaml"], (), Opener(Answers.of_options(8, None, "dgx-h100", variables={"EACH": "4"}), bool))
    assert [str(problem) for problem in entry.problems] == [
        "--set env.EACH: no script of the recipe names this variable"]


def test_a_scenario_is_never_taken_for_a_recipe() -> None:
    assert is_scenario(parse_document(SCENARIO, "mine.yaml"))
    assert not is_scenario(parse_document(RECIPE, "mine.yaml"))


def test_formats_have_names_and_only_one_takes_a_file() -> None:
    names = [one.name for one in known_formats()]
    assert len({*names}) == len(names)
    assert [format_named(name, "") for name in names] == [*known_formats()]
    Path("b.yaml").write_text(RECIPE, encoding="utf-8")
    assert [one.name for one in known_formats() if one.recognises(read_files(["b.yaml"])[0])] == ["automodel"]


def test_a_named_format_reads_what_is_not_recognised() -> None:
    Path("b.yaml").write_text(RECIPE.partition("\n")[2].replace("nemo_automodel.", ""), encoding="utf-8")
    assert format_of(read_files(["b.yaml"])) is None
    with pytest.raises(InputError, match=r"b\.yaml: is of no format that is recognised"):
        import_recipe(["b.yaml"], ANSWERS)
    assert import_recipe(["b.yaml"], ANSWERS, "automodel").values["training"]["seq_len"] == 128


def test_an_unknown_format_is_told_with_those_that_exist() -> None:
    Path("b.yaml").write_text(RECIPE, encoding="utf-8")
    with pytest.raises(InputError, match="--from auto: expected one of automodel"):
        import_recipe(["b.yaml"], ANSWERS, "auto")


CANARY = "canary"


@pytest.mark.parametrize(("text", "message"), [
    (f"recipe: !!python/object/apply:os.system ['touch {CANARY}']\nmodel: {{}}\n", "tag 'tag:yaml.org,2002:python/"),
    (RECIPE.replace("qwen3-8b", "${oc.env:HOME}"), "mine.yaml:5: model.pretrained_model_name_or_path: expected"),
    (RECIPE.replace("qwen3-8b", f"$(touch {CANARY})"), "in which nothing is to be resolved"),
    (RECIPE.replace("torch.optim.Adam", "os.system"), "not yet: optimizer._target_: optimizer os.system"),
    (RECIPE + "lr_scheduler: " + "[" * 100 + "]" * 100, "at most 64 levels of nesting"),
    (RECIPE + "a: &a [x, x, x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip(
        "abcdefg", "bcdefgh", strict=True)), "at most 20,000 values"),
    (RECIPE + "loop: &loop [*loop]\n", "the value would be endless"),
    (RECIPE + "<<: 3\n", "<<: expected a mapping, or a list of them, got 3"),
    (RECIPE.replace("seq_len: 128", "seq_len: 1e400"), "expected a whole number"),
    (RECIPE.replace("seq_len: 128", "seq_len: -1"), "training.seq_len: expected at least 1, got -1"),
])
def test_a_hostile_file_is_refused_by_name(text: str, message: str) -> None:
    Path("mine.yaml").write_text(text, encoding="utf-8")
    begun = time.process_time()
    [entry] = read(["mine.yaml"], (), Opener(ANSWERS, bool))
    assert time.process_time() - begun < 2
    assert message in "\n".join(map(str, entry.problems))
    assert not Path(CANARY).exists()
    assert os.environ.get("HOME", "none") not in "\n".join(map(str, entry.problems))


def test_a_file_of_100_mb_is_refused_before_it_is_read() -> None:
    with Path("mine.yaml").open("wb") as file:
        file.truncate(100_000_000)
    begun = time.process_time()
    with pytest.raises(InputError, match=r"mine\.yaml: expected at most"):
        import_recipe(["mine.yaml"], ANSWERS)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(("name", "text", "message"), [
    ("a.toml", "[job", "not valid TOML"), ("a.json", '{"a": 1', "not valid JSON"),
    ("a.yaml", "", "the file is empty"),
    ("a.sh", "rm -rf /", "is of no format that is recognised")])
def test_a_file_of_no_format_tells_its_own_mistake(name: str, text: str, message: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        import_recipe([name], ANSWERS)


def test_toml_is_read() -> None:
    Path("a.toml").write_text("[training]\nsteps = 3\n", encoding="utf-8")
    assert read_files(["a.toml"])[0].document.data == {"training": {"steps": 3}}


@pytest.mark.parametrize(("line", "told"), [("TP=1", True), ("export TP=1", True), ("TP=${TP:-1}", False),
                                            ("[ -z $TP ] && TP=1", False)])
def test_a_variable_that_the_script_sets_anew_is_told(tmp_path: Path, line: str, told: bool) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"{line}\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 "
                    "--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 "
                    "--tensor-model-parallel-size $TP\n", encoding="utf-8")
    found = import_recipe([str(file)], Answers.of_options(None, None, "dgx-h100", variables={"TP": "2"}))
    assert [(one.key, one.why.endswith(":1 sets it anew")) for one in found.left if one.key == "env.TP"] == [
        ("env.TP", True)] * told


def test_the_length_of_the_option_goes_before_the_recipe_in_every_format() -> None:
    """Rows of several packed samples are a multiple of it, whose longest sample it is."""
    texts = {name: (sample, sample.text) for name, sample in SAMPLES.items()}
    unpacked, name = SAMPLES["automodel"], "packed_sequence_size"
    texts["automodel in packs"] = unpacked, unpacked.text.replace(f"{name}: 0", f"{name}: 512")
    texts["axolotl in packs"] = SAMPLES["axolotl"], re.sub(r"sample_packing: \w+", "sample_packing: true",
                                                         SAMPLES["axolotl"].text)
    for name, (sample, text) in texts.items():
        path = sample._replace(text=text).write(Path())
        found = import_recipe([path], Answers.of_options(16, 384, "dgx-h100", sample.settings))
        training = found.values["training"]
        assert found.origins[("training", "seq_len")].where == "--seq-len 384", name
        assert training.get("packed_length", training["seq_len"]) == 384, name
        assert training["seq_len"] % 384 == 0, name


def test_a_key_that_stands_twice_with_one_value_is_told_where_upstream_takes_it() -> None:
    for text, is_taken in ((f"{RECIPE}dataset: {{_target_: MockIterableDataset, seq_len: 128}}\n", True),
                           (f"{RECIPE}dataset: {{_target_: MockIterableDataset, seq_len: 256}}\n", False),
                           (f"{RECIPE}dataset: {{_target_: MockIterableDataset, seq_len: 128.0}}\n", False)):
        Path("a.yaml").write_text(text, encoding="utf-8")
        if is_taken:
            found = import_recipe(["a.yaml"], ANSWERS)
            assert [(one.where, one.why.split(" (")[0]) for one in found.left if one.key == "dataset"] == [
                ("a.yaml:8", "the same again as on line 6")]
            assert found.values["training"]["seq_len"] == 128
        else:
            with pytest.raises(InputError, match=r"duplicate key 'dataset', first given on line 6"):
                import_recipe(["a.yaml"], ANSWERS)


def test_a_key_that_stands_twice_is_refused_where_upstream_refuses_it() -> None:
    path = SAMPLES["nemo_rl"].write(Path())
    text = Path(path).read_text(encoding="utf-8")
    key = next(line for line in text.splitlines() if line and line[0].isalpha() and line.endswith(":"))
    last = text[text.index(f"{key}\n"):].splitlines()
    block = [key, *last[1:next((n for n, line in enumerate(last[1:], 1) if line[:1].strip()), len(last))]]
    Path(path).write_text(text.rstrip("\n") + "\n" + "\n".join(block) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=f"duplicate key '{key[:-1]}'"):
        import_recipe([path], ANSWERS)
