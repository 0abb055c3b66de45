"""The draft keeps the origin of each key, and finds keys of the recipe that a format forgets."""

from __future__ import annotations

import pytest

from simcore.errors import InputError, NotYet
from simcore.inputs.document import parse_document
from simcore.recipes.answers import Answer, Answers
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

TEXT = "size: 8\nbatch: 2\nseed: 1\n"


def begun(text: str = TEXT, answers: Answers | None = None) -> tuple[Reader, Draft]:
    return Reader(parse_document(text, "mine.yaml")), Draft("toy", "mine.yaml", answers or Answers())


def test_each_key_has_its_origin() -> None:
    reader, draft = begun()
    draft.put("mesh.tp", reader.integer("size"))
    draft.infer("training.seq_len", 16, "eight times batch", reader.integer("batch"), source="toy.py")
    draft.default("training.recompute", "full", "toy 1.0", "toy.py:3")
    draft.answered("topology", Answer("dgx-h100", "--topology dgx-h100"))
    draft.idle(reader.integer("seed"), "random numbers")
    imported = draft.imported([reader])
    assert imported.values == {"mesh": {"tp": 8}, "training": {"seq_len": 16, "recompute": "full"},
                               "topology": "dgx-h100"}
    assert {".".join(map(str, path)): str(origin) for path, origin in imported.origins.items()} == {
        "mesh.tp": "mine.yaml:1 size", "training.seq_len": "mine.yaml:2: eight times batch (toy.py)",
        "training.recompute": "default of toy 1.0 (toy.py:3)", "topology": "--topology dgx-h100"}
    imported.expect_complete()


def test_a_document_names_the_recipes_line_as_the_place_of_a_key() -> None:
    reader, draft = begun("\nsize: 8\n")
    draft.put("mesh.tp", reader.integer("size"))
    document = draft.imported([reader]).document()
    assert document.where(("mesh", "tp")) == "mine.yaml:2"
    assert document.where(("mesh", "pp")) == "mine.yaml:1"


def test_a_word_may_mean_another_value() -> None:
    reader, draft = begun("deep: true\n")
    draft.put("training.recompute", reader.flag("deep"), "full")
    assert draft.imported([reader]).values == {"training": {"recompute": "full"}}


def test_a_format_that_drops_what_it_has_taken_is_found() -> None:
    reader, draft = begun()
    reader.integer("size")
    with pytest.raises(AssertionError, match="the format toy dropped size"):
        draft.imported([reader])


def test_a_format_that_says_two_things_about_a_key_is_found() -> None:
    reader, draft = begun()
    draft.put("mesh.tp", reader.integer("size"))
    draft.idle(reader.integer("size"), "of no use")
    with pytest.raises(AssertionError, match="the format toy used and left out size"):
        draft.imported([reader])


def test_a_key_that_nothing_asks_for_is_an_error_at_its_line() -> None:
    reader, draft = begun("size: 8\nsise: 9\n")
    draft.put("mesh.tp", reader.integer("size"))
    with pytest.raises(InputError, match=r"mine\.yaml:2: unknown key 'sise'"):
        draft.imported([reader]).expect_complete()


def test_loosely_it_is_listed() -> None:
    reader, draft = begun("size: 8\nsise: 9\nfast: true\n")
    draft.put("mesh.tp", reader.integer("size"))
    draft.refuse(reader.flag("fast"), "haste")
    imported = draft.imported([reader], loose=True)
    imported.expect_complete()
    assert [(one.kind, one.where, one.key) for one in imported.left] == [
        ("unknown", "mine.yaml:2", "sise"), ("unknown", "mine.yaml:3", "")]


def test_what_is_not_modelled_is_refused_by_name() -> None:
    reader, draft = begun("fast: true\n")
    draft.refuse(reader.flag("fast"), "haste")
    with pytest.raises(NotYet, match=r"mine\.yaml:1: not yet: fast: haste"):
        draft.imported([reader]).expect_complete()


def test_all_questions_are_asked_together() -> None:
    reader, draft = begun("size: 8\n")
    draft.ask("mesh.dp_shard", "--gpus N", "number of GPUs", reader.integer("size"))
    draft.ask("training.seq_len", "--seq-len N", "tokens of a sequence")
    with pytest.raises(InputError) as raised:
        draft.imported([reader]).expect_complete()
    assert [str(problem) for problem in raised.value.problems] == [
        "mine.yaml:1: the recipe leaves open: number of GPUs; answer with --gpus N",
        "mine.yaml: the recipe leaves open: tokens of a sequence; answer with --seq-len N"]


def test_what_set_gives_is_not_asked() -> None:
    _, draft = begun("{}\n", Answers(settings={"training.seq_len": 512}))
    draft.ask("training.seq_len", "--seq-len N", "tokens of a sequence")
    imported = draft.imported([]).with_settings({"training.seq_len": 512})
    imported.expect_complete()
    assert imported.values == {"training": {"seq_len": 512}}
    assert imported.document().where(("training", "seq_len")) == "--set training.seq_len"


def test_a_key_that_no_origin_names_says_what_it_decides() -> None:
    """A key that is put is its own origin; one that is used without any says why, or that it is read at all."""
    reader, draft = begun("size: 8\nbatch: 2\nkind: a\nfast: false\n")
    draft.put("mesh.tp", reader.integer("size"))
    draft.infer("training.seq_len", 16, "eight times it", reader.integer("batch"), reader.integer("size"))
    draft.use(reader.text("kind"), why="names the class")
    draft.use(reader.flag("fast"))
    found = draft.imported([reader]).decides
    assert [(one.key, str(one)) for one in found] == [
        ("batch", "decides training.seq_len"), ("kind", "names the class"),
        ("fast", "decides how other keys are read, or says what is simulated anyway")]


def test_keys_that_an_answer_goes_before_have_no_effect() -> None:
    reader, draft = begun("size: 8\nbatch: 2\n")
    draft.put("training.seq_len", reader.integer("size"))
    draft.infer("training.lora.rank", 16, "eight times it", reader.integer("batch"))
    draft.infer("mesh.tp", 2, "as it", reader.integer("batch"))
    imported = draft.imported([reader]).with_settings({"training": {"seq_len": 4}})
    assert [(one.key, one.why) for one in imported.left] == [("size", "--set training goes before it")]
    assert [one.keys for one in imported.decides] == [("mesh.tp",)]
    assert draft.imported([reader]).with_settings({"mesh.tp": 1, "training.lora": {}}).decides == ()
