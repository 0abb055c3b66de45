"""Reading files: what is accepted, what is refused, and where it is told to be."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcore.inputs.document
from simcore.errors import InputError, Problem
from simcore.inputs.document import MAX_BYTES, parse_document, parse_value, read_bytes, read_document, read_lines
from simcore.inputs.yaml_parser import MAX_DEPTH


def told(text: str) -> str:
    with pytest.raises(InputError) as refused:
        parse_document(text, "f.yaml")
    return str(refused.value)


def refused_file(path: Path) -> str:
    with pytest.raises(InputError) as refused:
        read_document(path)
    return str(refused.value)


def write(folder: Path, content: bytes | str, name: str = "f.yaml") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_values_and_lines() -> None:
    document = parse_document("a: 1\nb:\n  c: [x, 2.5]\n  d:\n    - true\n    - {e: null}\n", "f.yaml")
    assert document.data == {"a": 1, "b": {"c": ["x", 2.5], "d": [True, {"e": None}]}}
    lines = {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", 1): 3, ("b", "d"): 4, ("b", "d", 1): 6}
    assert {key_path: document.line_of(key_path) for key_path in lines} == lines
    assert document.line_of(("b", "d", 1, "e")) == 6
    assert document.where(("b", "missing", "deeper")) == "f.yaml:2"
    assert document.where(("missing",)) == "f.yaml:1"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5), ("1e5", 1e5), ("+3", 3), ("-0", 0), ("0x10", 16), ("0o17", 15), ("1_000", 1000), (".5", 0.5),
        ("1.", 1.0), (".inf", float("inf")), ("no", "no"), ("on", "on"), ("1:30", "1:30"), ("2024-01-31", "2024-01-31"),
        ("~", None), ("", None), ("True", True), ("'8'", "8"), ('"null"', "null"), ("0.15.0", "0.15.0"), ("٣", "٣"),
        ("\uff18", "\uff18"), ("[1, [2]]", [1, [2]]), ("1_", "1_"), ("9" * 500, "9" * 500),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    parsed = parse_document(f"a: {text}", "f").data["a"]
    assert parsed == value
    assert type(parsed) is type(value)


@settings(deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp")), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcä 0-", max_size=5), inner, max_size=4),
    max_leaves=12,
))  # fmt: skip
def test_json_is_read_as_json(value: Any) -> None:
    for ascii_only in (True, False):
        text = json.dumps({"top": value}, ensure_ascii=ascii_only)
        if not any(character in text for character in "\ufffe\uffff"):
            assert parse_document(text, "f.json").data == {"top": value}


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("[]{}:,-&*a!|>'\"#%@`? \n\t\\Ux0", max_size=40))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    problems: tuple[Problem, ...] = (Problem("f.yaml:1", "read"),)
    try:
        parse_document(text, "f.yaml")
    except InputError as error:
        problems = error.problems
    assert problems
    assert all(problem.where.startswith("f.yaml:") and problem.message for problem in problems)


def test_a_long_pattern_in_json(tmp_path: Path) -> None:
    pattern = "M*E-" * 2500
    path = write(tmp_path, json.dumps({"hybrid_override_pattern": pattern}, indent="\t"), "config.json")
    assert read_document(path).data == {"hybrid_override_pattern": pattern}


def test_bom_and_crlf_are_accepted(tmp_path: Path) -> None:
    document = read_document(write(tmp_path, b"\xef\xbb\xbfa: 1\r\nb:\r\n  c: 2\r\n"))
    assert document.data == {"a": 1, "b": {"c": 2}}
    assert document.line_of(("b", "c")) == 3


def test_duplicate_key_names_both_lines() -> None:
    message = told("a: 1\nb: {c: 1,\n  c: 2}\na: 3\n")
    assert "f.yaml:3: duplicate key 'b.c', first given on line 2" in message
    assert "f.yaml:4: duplicate key 'a', first given on line 1" in message


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("", 1, "empty"), ("# nothing\n", 1, "empty"), ("---\n", 2, "empty"), ("null", 1, "empty"),
        ("- a\n- b\n", 1, "mapping"), ("just text", 1, "mapping"), ("a: 1\n---\nb: 2\n", 2, "one document"),
        ("a: &x [1, *x]", 1, "endless"), ("a: &x {b: {c: *x}}", 1, "endless"), ("a: 1\nb: *nowhere", 2, "anchor"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]", 2, "tag"), ("a: !custom x", 1, "tag"),
        ("a: !!int '3'", 1, "tag"), ("a:\n\tb: 1", 2, "tab"), ("a: 1\nb: x\x07y", 2, "U+0007"),
        ("a: 1\r\nb: \x00", 2, "U+0000"), ("a: [1, 2", 1, "YAML"), ("a: b: c", 1, "YAML"), ("a: 1\n  b: 2", 2, "YAML"),
        ("1: x", 1, "text key"), ("true: x", 1, "text key"), ("? [a]\n: 1", 1, "text key"), ("? {a: b}\n: 1", 1, "key"),
        ("a:\n  <<: [1]", 2, "a mapping"), ("a: 017", 1, "leading zero"), ('a: "\\UFFFFFFFF"', 1, "read"),
        ("a: '\u2028'", 1, "U+2028"), ("a: " + "[" * (MAX_DEPTH + 1), 1, "levels"),
        ("a: 1\nb: " + "{a: " * 20_000, 2, "levels"),
    ],
)  # fmt: skip
def test_refused_with_line(text: str, line: int, word: str) -> None:
    message = told(text)
    assert message.startswith(f"f.yaml:{line}: ")
    assert word in message


@pytest.mark.parametrize("text", [
    "? " * 30 + "{\"'\\\"\": 1}", "? [a]\n: 1", "{{a: 1}: 2}", "a: &x {b: 1}\nc: {*x : 1}"])
def test_keys_are_text(text: str) -> None:
    """A key made of keys would double in length at each level."""
    assert "expected a text key, got a" in told(text)


def test_after_very_many_problems_nothing_more_is_read() -> None:
    with pytest.raises(InputError) as refused:
        parse_document("a: 1\n" + "1: 2\n" * 5000, "f.yaml")
    assert len(refused.value.problems) == 1001
    assert refused.value.problems[-1].message == "1,000 problems: the rest was not read"


def test_bytes_of_an_argument_that_are_no_text() -> None:
    with pytest.raises(InputError, match="expected UTF-8 text"):
        parse_value("\udcff", "--set name")


def test_a_key_has_bounded_levels() -> None:
    document = parse_document("a: 1", "f.yaml")
    assert document.with_value(("b",) * MAX_DEPTH, 1, "--set").where(("b",)) == "--set"
    with pytest.raises(InputError, match="expected a key of at most 64 levels, got 453"):
        document.with_value(("b",) * 453, 1, "--set")


def test_all_lesser_problems_are_told_together() -> None:
    with pytest.raises(InputError) as refused:
        parse_document("a: !x 1\nb: 2\nb: 3\n4: 5\n", "f.yaml")
    assert [problem.where for problem in refused.value.problems] == ["f.yaml:1", "f.yaml:3", "f.yaml:4"]


def test_aliases_are_read_and_counted() -> None:
    assert parse_document("a: &x [1, 2]\nb: *x\nc: {d: *x}", "f").data == {"a": [1, 2], "b": [1, 2], "c": {"d": [1, 2]}}


def test_alias_bomb_is_refused() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
    assert "aliases expanded" in told(text)


def test_aliases_cannot_nest_deeper_than_text() -> None:
    chain = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, MAX_DEPTH + 1))
    assert "levels" in told(chain)


def test_just_deep_enough() -> None:
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert "a" in parse_document(f"a: {deep}", "f").data


def test_missing_file_and_directory(tmp_path: Path) -> None:
    assert refused_file(tmp_path / "none.yaml") == f"{tmp_path / 'none.yaml'}: no such file"
    assert "directory" in refused_file(tmp_path)
    (tmp_path / "link.yaml").symlink_to(tmp_path / "gone.yaml")
    assert "no such file" in refused_file(tmp_path / "link.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    assert "cannot be read" in refused_file(tmp_path / "loop.yaml")
    assert "cannot be read" in refused_file(Path("a\0b"))
    assert "cannot be read" in refused_file(Path("a" * 5000))


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "regular file" in refused_file(tmp_path / "pipe.yaml")
    assert "regular file" in refused_file(Path("/dev/zero"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a: 1")
    path.chmod(0)
    assert "permission denied" in refused_file(path)


def test_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert f"at most {MAX_BYTES:,} bytes" in refused_file(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_file_that_claims_to_be_empty(tmp_path: Path) -> None:
    if Path("/proc/self/environ").exists():
        assert refused_file(Path("/proc/self/environ"))


def test_not_utf8(tmp_path: Path) -> None:
    path = write(tmp_path, "a: 1\nname: café\n".encode("latin-1"))
    assert refused_file(path) == f"{path}:2: expected UTF-8 text, got byte 0xe9 at byte 14"
    assert "0xff" in refused_file(write(tmp_path, "a: 1".encode("utf-16")))


def test_parse_value_has_the_same_bounds() -> None:
    assert parse_value("[1, {a: no}]", "--set x") == [1, {"a": "no"}]
    assert parse_value("", "--set x") is None
    for text in ("!!python/name:os.system", "&x [*x]", "[1", "\x1b[0m", "a\n---\nb"):
        with pytest.raises(InputError) as refused:
            parse_value(text, "--set x")
        assert {problem.where for problem in refused.value.problems} == {"--set x"}


def test_with_value_copies_only_the_way() -> None:
    document = parse_document("a: {b: {c: 1}, d: {e: 2}}\nf: x\n", "f.yaml")
    changed = document.with_value(("a", "b", "c"), 3, "--set a.b.c=3").with_value(("g", "h"), 4, "--set g.h=4")
    assert document.data == {"a": {"b": {"c": 1}, "d": {"e": 2}}, "f": "x"}
    assert changed.data == {"a": {"b": {"c": 3}, "d": {"e": 2}}, "f": "x", "g": {"h": 4}}
    assert changed.data["a"]["d"] is document.data["a"]["d"]
    assert changed.where(("a", "b", "c")) == "--set a.b.c=3"
    assert changed.where(("a", "b")) == changed.where(("a", "d", "e")) == "f.yaml:1"
    assert changed.where(("g",)) == changed.where(("g", "i")) == "--set g.h=4"
    with pytest.raises(InputError, match=r"f is 'x', not a mapping"):
        document.with_value(("f", "g"), 1, "--set f.g=1")


def test_a_replaced_mapping_forgets_its_lines() -> None:
    document = parse_document("a:\n  b: 1\n", "f.yaml").with_value(("a",), {"b": 2}, "--set a")
    assert document.where(("a", "b")) == "--set a"


def test_import_is_light() -> None:
    code = ("import sys, simcore.inputs.document\n"
            "print(sorted({'numpy', 'networkx', 'pydantic', 'rich'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at it and the opening another process puts a pipe there."""
    plain, pipe = write(tmp_path, "a: 1"), tmp_path / "pipe"
    os.mkfifo(pipe)
    status = plain.stat()
    monkeypatch.setattr(Path, "stat", lambda self: status)
    monkeypatch.setattr(os, "open", _impatient(os.open))
    with pytest.raises(InputError, match="pipe: expected a regular file, got a pipe"):
        read_bytes(pipe)


def _impatient(opened: Callable[..., int]) -> Callable[..., int]:
    """The system's `open`, which is not to wait: it refuses to be called so that it may."""
    def called(path: Path, flags: int) -> int:
        assert flags & os.O_NONBLOCK
        return opened(path, flags)

    return called


def test_lines_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfone\r\ntwo\n\nlast")
    assert list(read_lines(path, 100)) == ["one\r\n", "two\n", "\n", "last"]
    lines = read_lines(path, 100)
    assert next(lines) == "one\r\n"


def test_lines_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simcore.inputs.document, "MAX_LINE", 4)
    with pytest.raises(InputError, match=r"f.yaml:2: expected at most 4 bytes, got 5 or more"):
        list(read_lines(write(tmp_path, b"abc\nabcdefgh\n"), 100))
    with pytest.raises(InputError, match=r"f.yaml: expected at most 6 bytes"):
        list(read_lines(write(tmp_path, b"abc\nabc\n"), 6))
    with pytest.raises(InputError, match=r"f.yaml:2: expected UTF-8 text, got byte 0xff at byte 1"):
        list(read_lines(write(tmp_path, b"abc\na\xff\n"), 100))


def test_settings_are_what_was_set_beside_the_file() -> None:
    document = parse_document("model: a\nmesh: {tp: 2}\n", "x.yaml")
    assert document.settings() == {}
    changed = document.with_value(("mesh", "tp"), 4, "--set mesh.tp=4")
    changed = changed.with_value(("b", "c", "d"), None, "--set b.c.d=null")
    assert changed.settings() == {"mesh.tp": 4, "b.c.d": None}
    whole = changed.with_value(("mesh",), {"ep": 2}, "--set mesh={ep: 2}")
    assert whole.settings() == {"mesh": {"ep": 2}, "b.c.d": None}
    assert whole.with_value(("mesh", "cp"), 8, "--set mesh.cp=8").settings() == {
        "mesh": {"ep": 2, "cp": 8}, "b.c.d": None, "mesh.cp": 8}


def test_values_set_together_are_values_set_one_after_the_other() -> None:
    base = parse_document("a:\n  b:\n    c: 1\nf: 2\n", "f.yaml")
    given = {"x": {"y": 1}}
    values: list[tuple[tuple[str, ...], object, str]] = [
        (("a", "b", "c"), 3, "first"), (("a", "b", "d"), 4, "second"), (("g",), given, "third"),
        (("g", "x", "z"), 5, "fourth"), (("h", "i"), 6, "fifth"), (("h", "j"), 7, "sixth")]
    together, one_by_one = base.with_values(values), base
    for value in values:
        one_by_one = one_by_one.with_value(*value)
    assert together == one_by_one
    assert together.settings() == one_by_one.settings()
    assert [together.where(key_path) for key_path, _, _ in values] == [
        one_by_one.where(key_path) for key_path, _, _ in values]
    assert base.data == {"a": {"b": {"c": 1}}, "f": 2}
    assert given == {"x": {"y": 1}}
    with pytest.raises(InputError, match="f is 2, not a mapping"):
        base.with_values([(("g",), 1, "--set"), (("f", "g"), 1, "--set")])


@pytest.mark.parametrize("text", ["a: " + "[" * 20_000, '{"a": ' + '{"b": [' * 5_000, "a: [\n" + "[\n" * 20_000])
def test_brackets_too_deep_are_refused_before_the_scanner_looks_ahead(text: str) -> None:
    started = time.process_time()
    with pytest.raises(InputError, match="at most 64 levels of nesting"):
        parse_document(text, "deep.yaml")
    assert time.process_time() - started < 0.3


def test_brackets_within_texts_are_no_nesting() -> None:
    written = f"a: '{'[' * 200}'\nb: |\n  {'{' * 200}\nc: x  # {'[' * 200}\nd: {'[' * 64}{']' * 64}\n"
    assert parse_document(written, "flat.yaml").data["a"] == "[" * 200


def test_keys_of_merged_mappings_stand_behind_ones_own() -> None:
    text = "b: &b {x: 1, y: {z: 2}}\nc: &c {x: 5, w: 3}\na:\n  y: 7\n  <<: [*b, *c]\nd:\n  <<: *b\ne: {'<': 1}\n"
    document = parse_document(text, "m.yaml")
    assert document.data["a"] == {"x": 1, "y": 7, "w": 3}
    assert document.data["d"] == {"x": 1, "y": {"z": 2}}
    assert [document.line_of(path) for path in (("a", "y"), ("a", "w"), ("d", "y", "z"))] == [4, 5, 7]
    assert document.lines.keys().isdisjoint({("a", "<<"), ("d", "<<")})
