"""References are resolved with their types and places; nothing is executed, and what grows without end is refused."""

from __future__ import annotations

import time

import pytest

from simcore.errors import InputError
from simcore.inputs.document import Document, parse_document
from simcore.recipes.inheritance.references import ARITHMETIC, resolved


def data(text: str) -> dict[str, object]:
    document, problems = resolved(parse_document(text, "r.yaml"), ARITHMETIC)
    assert problems == ()
    return document.data


def problem(text: str) -> str:
    _, problems = resolved(parse_document(text, "r.yaml"), ARITHMETIC)
    return str(problems[0])


def test_a_path_from_the_top_and_from_where_the_value_stands() -> None:
    found = data("a: {size: 8, same: '${.size}', up: {size: '${..size}', list: ['${a.size}', x]}}\n"
                 "b: ${a.up.list[0]}\n")
    assert found == {"a": {"size": 8, "same": 8, "up": {"size": 8, "list": [8, "x"]}}, "b": 8}


def test_a_reference_alone_keeps_its_type_and_one_within_a_text_is_text() -> None:
    assert data("n: 3\non: true\na: ${n}\nb: ${on}\nc: run-${n}-${on}\n") == {
        "n": 3, "on": True, "a": 3, "b": True, "c": "run-3-True"}


def test_functions_of_two_numbers_also_in_one_another() -> None:
    found = data("t: 4096\nm: 2\na: ${mul:${t}, ${m}}\nb: ${div:${mul:${t},3},${m}}\nc: ${add:1,${max:2,${m}}}\n"
                 "d: '${mul: ${mul:2, 2}, 0.5}'\n")
    assert (found["a"], found["b"], found["c"], found["d"]) == (8192, 6144.0, 3, 2.0)
    assert isinstance(found["a"], int)


def test_a_mapping_is_copied_with_its_own_references() -> None:
    found = data("base: {n: 2, twice: '${mul:${.n},2}'}\ncopy: ${base}\n")
    assert found["copy"] == {"n": 2, "twice": 4}


def test_select_takes_its_default_where_the_key_is_missing() -> None:
    found = data("a: {b: 5}\nx: ${oc.select:a.b,7}\ny: ${oc.select:a.c,7}\nz: ${oc.select:a.c}\n"
                 "w: ${oc.select:.a.c, no}\n")
    assert (found["x"], found["y"], found["z"], found["w"]) == (5, 7, None, "no")


def test_an_escaped_reference_is_text() -> None:
    assert data("a: 'costs \\${n}'\n") == {"a": "costs ${n}"}


def test_values_keep_their_places() -> None:
    document = parse_document("a: 1\nb:\n  c: ${a}\n", "r.yaml")
    assert resolved(document, ARITHMETIC)[0].where(("b", "c")) == "r.yaml:3"


@pytest.mark.parametrize(("text", "told"), [
    ("a: 1\nb: ${oc.env:HOME}\n", "r.yaml:2: b: '${oc.env:HOME}': the function oc.env is not read"),
    ("b: ${oc.decode:'1+1'}\n", "the function oc.decode is not read"),
    ("b: ${oc.create:x}\n", "the function oc.create is not read"),
    ("b: ${eval:1,2}\n", "the function eval is not read"),
    ("a: ${b.c}\nb: {d: 1}\n", "there is no key b.c"),
    ("a: ${....b}\n", "leads above the top"),
    ("a: ${mul:x,2}\n", "'x' is no number"),
    ("a: ${mul:2}\n", "takes two numbers, got 1"),
    ("a: ${div:2,0}\n", "division by zero"),
    ("a: ${b\n", "without its closing brace"),
    ("a: x-${b}\nb: {c: 1}\n", "a mapping or list within a text"),
])
def test_what_cannot_be_followed_is_told_at_its_line(text: str, told: str) -> None:
    assert told in problem(text)


def test_a_value_that_leads_to_a_refused_one_is_refused_too() -> None:
    _, problems = resolved(parse_document("a: ${oc.env:X}\nb: ${a}\n", "r.yaml"), ARITHMETIC)
    assert [one.where for one in problems] == ["r.yaml:1", "r.yaml:2"]


def test_an_idle_key_keeps_what_is_not_read() -> None:
    document, problems = resolved(parse_document("logger: {dir: '${oc.env:HOME}/x'}\n", "r.yaml"), ARITHMETIC,
                                  lambda path: path[0] == "logger")
    assert problems == ()
    assert document.data == {"logger": {"dir": "${oc.env:HOME}/x"}}


@pytest.mark.parametrize("text", [
    "a: ${b}\nb: ${c}\nc: ${a}\n",
    "a: {b: '${a}'}\n",
    "a: ${mul:${a},2}\n",
])
def test_a_circle_names_its_keys_and_lines(text: str) -> None:
    with pytest.raises(InputError, match=r"references in a circle: a.* \(r.yaml:1\).* -> "):
        data(text)


@pytest.mark.parametrize("text", [
    "a0: x\n" + "".join(f"a{n + 1}: ${{a{n}}}${{a{n}}}${{a{n}}}${{a{n}}}\n" for n in range(40)),
    "a0: [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
        f"a{n + 1}: [" + f"'${{a{n}}}', " * 9 + "]\n" for n in range(9)),
    "a0: 2\n" + "".join(f"a{n + 1}: ${{mul:${{a{n}}},${{a{n}}}}}\n" for n in range(60)),
    "a0: 2\n" + "".join(f"a{n + 1}: ${{a{n}}}\n" for n in range(500)),
    "a: " + "${" * 5000 + "\n",
])
def test_a_bomb_is_refused_in_a_second(text: str) -> None:
    document = parse_document(text, "r.yaml")
    lines = list(document.data.items())
    backwards = Document("r.yaml", dict(reversed(lines)), document.lines)
    for one in (document, backwards):
        start = time.process_time()
        try:
            _, problems = resolved(one, ARITHMETIC)
        except InputError as error:
            problems = error.problems
        assert time.process_time() - start < 2
        assert problems or text.startswith("a0: 2\na1: ${a0}")
