"""Sweeps: which scenarios they make, what they are called, and what a mistake in one costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.inputs.document import parse_document
from simcore.inputs.loading import Entry, read
from simcore.inputs.sweep import MAX_MEMBERS, members

BODY = "name: n\nmodel: m\nframework: f\ntopology: t\ntraining: {seq_len: 128, global_batch_size: 64}\n"


def entries(tmp_path: Path, text: str, *overrides: str) -> list[Entry]:
    path = tmp_path / "s.yaml"
    path.write_text(BODY + text, encoding="utf-8")
    return read([path], overrides)


def names(found: list[Entry]) -> list[str]:
    return [entry.name for entry in found]


def test_product_in_file_order(tmp_path: Path) -> None:
    loaded = entries(tmp_path, "sweep: {mesh.ep: [1, 2], mesh.tp: [4, 8]}")
    assert names(loaded) == [f"n[mesh.ep={ep},mesh.tp={tp}]" for ep in (1, 2) for tp in (4, 8)]
    scenarios = [entry.scenario for entry in loaded]
    assert all(scenario is not None and scenario.swept for scenario in scenarios)
    assert [(s.mesh.ep, s.mesh.tp) for s in scenarios if s] == [(1, 4), (1, 8), (2, 4), (2, 8)]
    assert [s.name for s in scenarios if s] == names(loaded)
    assert not any("sweep" in s.normalised() for s in scenarios if s)


def test_keys_that_move_together(tmp_path: Path) -> None:
    text = "sweep:\n  - {mesh.ep: 2, mesh.tp: 4}\n  - mesh.ep: [8, 16]\n    training.recompute: [full, [moe]]\n"
    loaded = entries(tmp_path, text)
    assert names(loaded) == [
        "n[mesh.ep=2,mesh.tp=4]",
        "n[mesh.ep=8,training.recompute=full]", 'n[mesh.ep=8,training.recompute=["moe"]]',
        "n[mesh.ep=16,training.recompute=full]", 'n[mesh.ep=16,training.recompute=["moe"]]',
    ]  # fmt: skip
    assert [entry.where.rpartition(":")[2] for entry in loaded] == ["7", "8", "8", "8", "8"]
    assert all(entry.scenario for entry in loaded)


def test_whole_blocks_and_words(tmp_path: Path) -> None:
    loaded = entries(tmp_path, "sweep: {mesh: [{dp_shard: 2}, null], framework: [fsdp2]}")
    assert names(loaded) == ['n[mesh={"dp_shard":2},framework=fsdp2]', "n[mesh=null,framework=fsdp2]"]
    assert loaded[0].scenario is not None
    assert loaded[0].scenario.mesh.dp_shard == 2
    assert loaded[1].problems[0].message.startswith("mesh: expected a mapping")


def test_an_invalid_value_costs_only_its_member(tmp_path: Path) -> None:
    loaded = entries(tmp_path, "sweep:\n  mesh.tp: [1, 0, true, 2]\n  mesh.cp: [1]\n")
    assert [entry.scenario is not None for entry in loaded] == [True, False, False, True]
    assert names(loaded)[1] == "n[mesh.tp=0,mesh.cp=1]"
    told = [(problem.where.rpartition(":")[2], problem.message) for entry in loaded for problem in entry.problems]
    assert told == [("7", "mesh.tp: expected at least 1, got 0"), ("7", "mesh.tp: expected a whole number, got true")]


def test_a_batch_that_does_not_divide_costs_only_its_member(tmp_path: Path) -> None:
    loaded = entries(tmp_path, "sweep: {mesh.dp_shard: [1, 3, 64, 128]}")
    assert [entry.scenario is not None for entry in loaded] == [True, False, True, False]
    assert "64" in loaded[1].problems[0].message


def test_what_is_wrong_with_every_part_is_told_once(tmp_path: Path) -> None:
    loaded = entries(tmp_path, "meesh: {}\nsweep: {mesh.tp: [1, 0, 2]}")
    assert names(loaded) == ["n", "n[mesh.tp=0]"]
    assert [len(entry.problems) for entry in loaded] == [1, 1]
    assert "'meesh'" in loaded[0].problems[0].message
    assert names(entries(tmp_path, "sweep: {mesh.tpp: [1, 2, 3]}")) == ["n"]


def test_a_key_that_takes_a_list_is_swept_in_double_brackets(tmp_path: Path) -> None:
    lora = "training.lora.target_modules"
    (found,) = entries(tmp_path, f"sweep: {{{lora}: [q_proj, v_proj], mesh.dp_shard: [1, 2]}}\n")
    (problem,) = found.problems
    assert problem.message == (f"{lora}: expected 'auto' or a list, and a sweep takes the items of its list one by "
                               "one; write [[q_proj, v_proj]] for one value that is a list")
    fine = entries(tmp_path, f"sweep: {{{lora}: [[q_proj, v_proj]]}}\n")
    assert [one.problems for one in fine] == [()]


def test_the_base_may_lack_what_the_sweep_gives(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(BODY.replace("framework: f\n", "") + "sweep: {framework: [a, b]}", encoding="utf-8")
    assert [entry.scenario.framework for entry in read([path]) if entry.scenario] == ["a", "b"]


def test_two_equal_members_share_a_name(tmp_path: Path) -> None:
    loaded = entries(tmp_path, "sweep: {mesh.tp: [2, 2]}")
    assert [entry.scenario is not None for entry in loaded] == [True, False]
    assert "already the name" in loaded[1].problems[0].message


@pytest.mark.parametrize(
    "sweep",
    [
        "3", "[]", "{}", "[3]", "[{}]", "{mesh.tp: 3}", "{mesh.tp: []}", "{mesh.tp: {a: 1}}", "{name: [a, b]}",
        "{sweep: [1]}", "{mesh..tp: [1]}", "{mesh: [{tp: 1}], mesh.tp: [2]}", "[{mesh.tp: []}]", "true",
    ],
)  # fmt: skip
def test_a_wrong_sweep_is_a_problem_of_the_file(tmp_path: Path, sweep: str) -> None:
    (entry,) = entries(tmp_path, f"sweep: {sweep}")
    assert entry.scenario is None
    assert entry.name == "n"
    assert entry.problems[0].where.endswith("s.yaml:6")
    assert entry.problems[0].message.startswith("sweep: ")


def test_keys_that_set_a_part_of_another_are_told_in_any_order(tmp_path: Path) -> None:
    for keys in ("mesh: [{tp: 1}], mesh.tp: [2]", "mesh.tp: [2], mesh: [{tp: 1}]"):
        (entry,) = entries(tmp_path, f"sweep: {{{keys}}}")
        assert "set the same key" in entry.problems[0].message


def test_values_to_set_are_bounded() -> None:
    lists = ", ".join(f"k{i}: [1]" for i in range(1000)) + ", a: [" + "1, " * 30 + "1], b: [" + "1, " * 40 + "1]"
    with pytest.raises(InputError, match=r"at most 1,000,000 values to set, got 1,273,542"):
        members(parse_document(BODY + f"sweep: {{{lists}}}", "s.yaml"))


def test_null_is_no_sweep(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, "sweep: null")
    assert entry.scenario is not None
    assert not entry.scenario.swept


def test_a_key_below_a_word_is_a_problem_of_the_file(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, "sweep: {model.overrides.num_hidden_layers: [1, 2]}")
    assert "model is 'm', not a mapping" in entry.problems[0].message


def test_budget() -> None:
    values = list(range(1, 100))
    text = f"{BODY}sweep: {{mesh.tp: {values}, mesh.cp: {values}, mesh.ep: {values}}}"
    with pytest.raises(InputError, match=f"at most {MAX_MEMBERS:,} scenarios, got 970,299"):
        members(parse_document(text, "f.yaml"))


def test_overrides_come_before_the_sweep(tmp_path: Path) -> None:
    loaded = entries(tmp_path, "sweep: {mesh.ep: [1, 2]}", "mesh.tp=4", "name=other")
    assert names(loaded) == ["other[mesh.ep=1]", "other[mesh.ep=2]"]
    assert [entry.scenario.mesh.tp for entry in loaded if entry.scenario] == [4, 4]
    assert names(entries(tmp_path, "sweep: {mesh.ep: [1, 2]}", "sweep={mesh.tp: [2]}")) == ["n[mesh.tp=2]"]
    assert names(entries(tmp_path, "sweep: {mesh.ep: [1, 2]}", "sweep=null", "mesh.ep=8")) == ["n"]


def test_an_override_of_a_swept_key_is_not_lost_in_silence(tmp_path: Path) -> None:
    for override in ("mesh.ep=8", "mesh={ep: 8}"):
        (entry,) = entries(tmp_path, "sweep: {mesh.ep: [1, 2]}", override)
        assert f"also set by --set {override}" in entry.problems[0].message
    (entry,) = entries(tmp_path, "sweep: {mesh: [{ep: 8}]}", "mesh.tp=2")
    assert "also set by --set mesh.tp=2" in entry.problems[0].message
    assert names(entries(tmp_path, "sweep: {mesh.ep: [1]}", "mesh={tp: 2}")) == ["n[mesh.ep=1]"]


def test_long_names_are_cut_and_stay_unique(tmp_path: Path) -> None:
    keys = ["lengths", "recompute", "routing", "loss", "sequence_parallel", "micro_batch_size", "num_tokens", "method"]
    values = ["fixed", "none", "balanced", "auto", "auto", "1", "null", "full"]
    sweep = ", ".join(f"training.{key}: [{value}]" for key, value in zip(keys, values, strict=True))
    loaded = entries(tmp_path, f"sweep: {{{sweep}, mesh.ep: [1, 2]}}")
    assert all(entry.scenario and len(entry.name) <= 200 for entry in loaded)
    assert len(set(names(loaded))) == 2


def test_the_document_is_not_changed() -> None:
    document = parse_document(BODY + "mesh: {tp: 2}\nsweep: {mesh.tp: [3, 4], mesh.cp: [5]}", "f.yaml")
    parts = members(document)
    assert document.data["mesh"] == {"tp": 2}
    assert [part.document.data["mesh"] for part in parts] == [{"tp": 3, "cp": 5}, {"tp": 4, "cp": 5}]
    assert all(part.document.data["training"] is document.data["training"] for part in parts)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True), min_size=1, max_size=4))
def test_every_combination_once(lists: list[list[int]]) -> None:
    axes = ("pp", "cp", "tp", "ep")[: len(lists)]
    sweep = ", ".join(f"mesh.{axis}: {values}" for axis, values in zip(axes, lists, strict=True))
    parts = members(parse_document(f"{BODY}sweep: {{{sweep}}}", "f.yaml"))
    made = [tuple(part.document.data["mesh"][axis] for axis in axes) for part in parts]
    expected = 1
    for values in lists:
        expected *= len(values)
    assert len(made) == len(set(made)) == expected
    assert made == sorted(made, key=lambda degrees: [lists[i].index(degree) for i, degree in enumerate(degrees)])


def test_a_thousand_members(tmp_path: Path) -> None:
    text = f"sweep: {{mesh.tp: {list(range(1, 11))}, mesh.cp: {list(range(1, 11))}, mesh.ep: {list(range(1, 11))}}}"
    loaded = entries(tmp_path, text)
    assert sum(entry.scenario is not None for entry in loaded) == 1000
