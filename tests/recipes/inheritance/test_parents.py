"""Parents of a recipe are merged below it, from its own tree alone, and every value keeps its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.recipes.inheritance.parents import with_parents
from simcore.recipes.recipe_file import read_files


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".yaml").write_text(text, encoding="utf-8")


def chain(path: Path, *beside: Path) -> dict[str, object]:
    first, *rest = read_files([str(path), *map(str, beside)])
    return with_parents(first, rest)[0].data


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        chain(path)
    return str(caught.value.problems[0])


def test_mappings_are_merged_and_anything_else_replaces(tmp_path: Path) -> None:
    write(tmp_path, base="a: {x: 1, y: 2, list: [1, 2]}\nb: {c: 1}\n",
          mine="defaults: base.yaml\na: {y: 3, list: [4]}\nb: null\n")
    assert chain(tmp_path / "mine.yaml") == {"a": {"x": 1, "y": 3, "list": [4]}, "b": None, "defaults": "base.yaml"}


def test_of_several_parents_the_later_wins_and_each_has_its_own(tmp_path: Path) -> None:
    write(tmp_path, top="a: 0\nb: 0\nc: 0\n", one="defaults: top.yaml\na: 1\nb: 1\n", two="b: 2\n",
          mine="defaults: [one.yaml, ./two.yaml]\n")
    assert chain(tmp_path / "mine.yaml") == {"a": 1, "b": 2, "c": 0, "defaults": ["one.yaml", "./two.yaml"]}


def test_a_value_keeps_the_file_and_line_where_it_was_said(tmp_path: Path) -> None:
    write(tmp_path, base="a:\n  x: 1\n  y: 2\n", sub__mine="defaults: ../base.yaml\na:\n  y: 3\n")
    (tmp_path / "pyproject.toml").touch()
    document, _ = with_parents(read_files([str(tmp_path / "sub/mine.yaml")])[0])
    assert document.where(("a", "x")) == f"{tmp_path}/base.yaml:2"
    assert document.where(("a", "y")) == f"{tmp_path}/sub/mine.yaml:3"


def test_a_mapping_that_overrides_replaces_its_parents_whole(tmp_path: Path) -> None:
    write(tmp_path, base="a: {x: 1}\nb: {in: {x: 1}}\n", mine="defaults: base.yaml\na: {_override_: true, y: 2}\n"
                                                             "b: {in: {_override_: true, y: 2}}\n")
    found = chain(tmp_path / "mine.yaml")
    assert found["a"] == {"y": 2}
    assert found["b"] == {"in": {"x": 1, "_override_": True, "y": 2}}, "upstream looks for it at the top alone"


def test_a_circle_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, a="x: 1\ndefaults: b.yaml\n", b="defaults:\n  - c.yaml\n", c="defaults: a.yaml\n")
    assert refused(tmp_path / "a.yaml") == (f"{tmp_path}/c.yaml:1: defaults in a circle: a.yaml -> b.yaml -> c.yaml -> "
                                            "a.yaml")


@pytest.mark.parametrize("name", ["../outside.yaml", "/etc/passwd", "../../../../../../etc/passwd",
                                  "sub/../../outside.yaml"])
def test_a_parent_outside_of_the_tree_is_not_read(tmp_path: Path, name: str) -> None:
    write(tmp_path, outside="a: 1\n", tree__mine=f"defaults: {name}\n")
    assert "lies outside of tree, the tree of the recipe" in refused(tmp_path / "tree/mine.yaml")


def test_a_link_out_of_the_tree_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, outside="a: 1\n", tree__mine="defaults: link.yaml\n")
    (tmp_path / "tree/link.yaml").symlink_to(tmp_path / "outside.yaml")
    assert "lies outside of tree" in refused(tmp_path / "tree/mine.yaml")


def test_a_parent_that_the_user_names_is_read_wherever_it_lies(tmp_path: Path) -> None:
    write(tmp_path, outside="a: 1\n", tree__mine="defaults: ../configs/outside.yaml\n")
    assert chain(tmp_path / "tree/mine.yaml", tmp_path / "outside.yaml")["a"] == 1


@pytest.mark.parametrize(("said", "told"), [
    ("nowhere.yaml", "defaults: nowhere.yaml: no such file: name it beside the recipe"),
    ("{a: 1}", "defaults: expected paths of files, got {'a': 1}"),
    ("[1]", "defaults: expected paths of files, got 1"),
    ("${oc.env:HOME}/x.yaml", "nothing is resolved in a path"),
])
def test_what_is_no_parent_is_told(tmp_path: Path, said: str, told: str) -> None:
    write(tmp_path, mine=f"x: 1\ndefaults: {said}\n")
    assert re.search(rf"mine.yaml:2: .*{re.escape(told)}", refused(tmp_path / "mine.yaml"))


def test_a_fan_of_parents_ends(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path, **{f"f{number}": f"defaults: [f{number + 1}.yaml, f{number + 1}.yaml]\n"})
    write(tmp_path, f30="a: 1\n")
    assert "more than 32 files" in refused(tmp_path / "f0.yaml")


def test_a_large_parent_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, mine="defaults: large.yaml\n")
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(100 * 2**20)
    assert "expected at most 262,144 bytes" in refused(tmp_path / "mine.yaml")
