"""The text of an imported scenario is the scenario, with origins and lists as comments."""

from __future__ import annotations

from dataclasses import replace

from simcore.inputs.document import parse_document
from simcore.recipes.imported import Decided, Imported, Left, Origin
from simcore.recipes.text import scenario_text

IMPORTED = Imported(
    "toy", "mine.yaml",
    {"training": {"seq_len": 8, "lora": {"target_modules": ["*_proj", "x: y # z"]}}, "name": "no",
     "model": {"config": "a", "overrides": {"layers": 2}}, "mesh": {"tp": 2}},
    {("name",): Origin("inferred", "mine.yaml", "the file's name"),
     ("training", "seq_len"): Origin("recipe", "mine.yaml:3", "length\nname: other"),
     ("training", "lora", "target_modules"): Origin("recipe", "mine.yaml:4", "targets"),
     ("model",): Origin("asked", "--set model", ""), ("mesh", "tp"): Origin("default", "mine.yaml", "toy 1", "a.py")},
    (Left("no effect", "mine.yaml:5", "seed", "1", "random\nnumbers"),
     Left("not modelled", "mine.yaml:6", "fast", "true", "by little"), Left("unknown", "mine.yaml:7", "", "", "what?")))


def test_reading_the_text_gives_the_scenario() -> None:
    document = parse_document(scenario_text(IMPORTED), "mine.yaml")
    assert document.data == IMPORTED.values
    assert [*document.data] == ["name", "model", "mesh", "training"]


def test_origins_stand_beside_keys_and_lists_below() -> None:
    lines = scenario_text(IMPORTED).splitlines()
    assert "  tp: 2                                   # default of toy 1 (a.py)" in lines
    assert "  seq_len: 8                              # mine.yaml:3 length name: other" in lines
    assert lines[-6:] == [
        "# Not modelled: it changes what is run, and the answer leaves it out.",
        "#   mine.yaml:6 fast: true: by little",
        "# Left out by --loose.", "#   mine.yaml:7: what?",
        "# Without effect here.", "#   mine.yaml:5 seed: 1: random numbers"]


def test_the_folder_of_the_recipe_is_named_once() -> None:
    moved = replace(IMPORTED, path="recipes/mine.yaml", origins={("mesh", "tp"): Origin("recipe", "recipes/mine.yaml:9",
                                                                                      "tp_size")},
                    left=(Left("no effect", "recipes/mine.yaml:5", "seed", "1", "random"),
                          Left("no effect", "other/mine.yaml:6", "seed", "2", "random")))
    lines = scenario_text(moved).splitlines()
    assert lines[0].startswith("# Imported from recipes/mine.yaml (toy)")
    assert "  tp: 2                                   # mine.yaml:9 tp_size" in lines
    assert lines[-2:] == ["#   mine.yaml:5 seed: 1: random", "#   other/mine.yaml:6 seed: 2: random"]


def test_keys_of_one_place_and_reason_stand_together() -> None:
    """And those that no origin names say what they decide."""
    many = tuple(Left("no effect", "a.sh:1 toy", f"optimizer.rate_{number}", "[1, 2]", "rates") for number in range(9))
    decides = (Decided("a.sh:1 toy", "model.tp", "1", ("mesh.dp_shard", "mesh.tp")),
               Decided("a.sh:2", "model.kind", "'hf'", (), "names the class"), Decided("a.sh:2", "model.fast", "false"))
    lines = scenario_text(replace(IMPORTED, left=many, decides=decides)).splitlines()
    first = lines.index("# Without effect here.")
    assert lines[first + 1] == "#   a.sh:1 toy: rates:"
    assert [line.count("optimizer.") for line in lines[first + 2:first + 4]] == [5, 4]
    assert "#     optimizer.rate_5: [1, 2], " in lines[first + 3]
    assert lines[first + 4:] == [
        "# Read, and named in no line above.", "#   a.sh:1 toy model.tp: 1: decides mesh.dp_shard, mesh.tp",
        "#   a.sh:2 model.kind: 'hf': names the class",
        "#   a.sh:2 model.fast: false: decides how other keys are read, or says what is simulated anyway"]
