"""Special files in the place of the user's: odd keys and names, pipes, links, huge files, zeroes.

Each of these once stood for a defect that was found by hand, and that mutations of files do not come to by chance.
"""

from __future__ import annotations

import json
import os
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from fuzz import seeds
from fuzz.case import Content, Input, Special, Tree
from fuzz.commands import LINES, say
from fuzz.mutations import mutated_bytes, mutated_tree, paths, with_value

__all__ = ["folder", "shape", "zero"]

FILE: Final = "f.yaml"
_DEPTHS: Final = (5, 50, 200, 500, 1500, 5000)
_NESTED: Final = (3, 10, 40, 60, 60, 500)
"""Around the deepest nesting that a file may have: what doubles with each level is seen below that."""
_COUNTS: Final = (300, 3000, 5000)
_PLAIN: Final = Input({FILE: seeds.PLAIN}).content(FILE)


# ---- shapes of files, keys and names --------------------------------------------------------------------------------
def shape(random: Random) -> Input:
    """A file, a key or a name of a shape that is easily forgotten."""
    return random.choice((_complex_keys, _many_swept, _long_setting, _long_swept, _odd_name))(random)


def _command(random: Random) -> str:
    return random.choice(("check", "run", "place", "explain"))


def _complex_keys(random: Random) -> Input:
    """Keys that are mappings, lists or themselves complex, as `? ` writes them."""
    depth = random.choice(_NESTED)
    key = random.choice((
        "? " * depth + "a", "? - " * depth + "a", "? [a, b]\n: 1", "? {a: b}\n: 1", "? |\n  a\n: 1", "? &a x\n: *a",
        "{" * depth + "a" + ": 1}" * depth, "? " + "[" * depth + "]" * depth + "\n: 1", "{? a: 1, ? [b]: 2}",
        "".join(f"{' ' * at}? k\n{' ' * at}:\n" for at in range(min(depth, 400))) + " " * 401 + "1"))
    held = random.choice((f"{key}\n", f"mesh:\n  {key}\n", f"name: s\n{key}\nmodel: llama-tiny\n"))
    return Input({FILE: held.encode()}, (_command(random), FILE), (LINES,))


def _many_swept(random: Random) -> Input:
    """A sweep of thousands of keys, or over one key with thousands of values."""
    count = random.choice(_COUNTS)
    key = random.choice(("x{}", "mesh.x{}", "model.overrides.k{}", "training.x{}.y",
                         "model.overrides.k{}", "framework_options.o{}"))
    swept: Tree = {key.format(at): random.choice(([1], [1], [1], [1, 2])) if at < 2 else [1] for at in range(count)}
    if random.random() < 0.2:
        swept = {"training.seq_len": [random.choice((0, -1, "x"))] * count}
    base = {**seeds.PLAIN, "model": {"config": "llama-tiny", "overrides": {}}}
    text = json.dumps({**base, "sweep": swept}, separators=(",\n", ": "))  # short, so that more keys are within bounds
    return Input({FILE: text.encode()}, ("check", FILE), (LINES,))


def _dotted(random: Random) -> str:
    return ".".join((random.choice(("model.overrides", "framework_options", "mesh", "x", "sweep")),
                     *[random.choice(("a", "k", "0"))] * random.choice(_DEPTHS)))


def _long_setting(random: Random) -> Input:
    base: Tree = dict(seeds.PLAIN)
    if random.random() < 0.7:
        base["model"] = {"config": "llama-tiny", "overrides": {}}
    return Input({FILE: base}, (_command(random), FILE, "--set", f"{_dotted(random)}={random.choice((1, 'x', []))}"),
                 (LINES,))


def _long_swept(random: Random) -> Input:
    base: Tree = {**seeds.PLAIN, "sweep": {_dotted(random): [1, 2]}}
    if random.random() < 0.7:
        base["model"] = {"config": "llama-tiny", "overrides": {}}
    return Input({FILE: base}, (_command(random), FILE), (LINES,))


_ODD: Final = ("y\udcff", "\udc80", "a\udce9b", "y\n", "y\t", "\u202ey", "y'", "-y", " y", "y\x1b[31m", "y*", "y[",
               "~y")  # fmt: skip
"""Beginnings of names; a lone surrogate is a byte that is not UTF-8."""


def _odd_name(random: Random) -> Input:
    """A name, of a file, a folder, a model or a page, that is no text, or has letters that a terminal acts on."""
    odd = random.choice(_ODD)
    name, kind = f"{odd}.yaml", random.choice(("file", "folder", "folder", "model", "out", "results"))
    broken = mutated_bytes(_PLAIN, random) if random.random() < 0.4 else random.choice((_PLAIN, b"x: 1\n"))
    plain = ("./" if odd.startswith("-") else "") + name
    if kind == "file":
        extra = random.choice(((), ("--json",), ("--html", f"./{odd}.html"), ("--format", "junit")))
        command = random.choice(("run", "check"))
        return Input({name: broken}, (command, plain, *(extra if command == "run" else ())))
    if kind == "folder":
        words = random.choice((("check", "d"), ("check", "d/*.yaml"), ("run", "d", "--json"),
                               ("run", "d", "-o", "out")))
        return Input({f"d/{name}": broken, "d/z.yaml": {**seeds.PLAIN, "name": "z"}}, words)
    if kind == "model":
        return Input({FILE: {**seeds.PLAIN, "model": f"./{odd}.json"}, f"{odd}.json": b"{}"}, ("check", FILE))
    if kind == "out":
        return Input({FILE: seeds.PLAIN}, ("run", FILE, "-o", f"./{odd}"))
    rows = [deepcopy(seeds.results()[0])]
    words = random.choice((("report", f"./{odd}.json", "-o", "p.html"), ("compare", f"./{odd}.json", FILE),
                           ("run", FILE, "--baseline", f"./{odd}.json")))
    return Input({FILE: seeds.PLAIN, f"{odd}.json": rows}, words)


# ---- folders of results ---------------------------------------------------------------------------------------------
_SWEPT: Final[Tree] = {**seeds.PLAIN, "sweep": {"training.seq_len": [64, 128, 256]}}
_RESULTS, _PART = "out/results.jsonl", "out/results.jsonl.part"
_CONTENTS, _LOCK, _AHEAD = "out/.batch/contents.json", "out/.batch/lock", "out/.batch/ahead.jsonl"
_NUMBERS: Final = (b"1e999", b"-5", b"1" + b"0" * 23, b"-1e999", b"NaN", b"0", b"1.5", b"null", b'"7"', b"true",
                   b"9" * 5000, b"[]")  # fmt: skip


@cache
def _kept() -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Files of a folder with a finished batch of `_SWEPT`, and with one that is under way."""
    back = Path.cwd()
    with TemporaryDirectory(prefix="fuzz-") as place:
        os.chdir(place)
        try:
            Path(FILE).write_bytes(Input({FILE: _SWEPT}).content(FILE))
            say(("run", FILE, "-o", "out"))
            finished = {name: Path(name).read_bytes() for name in (_RESULTS, _CONTENTS, _LOCK)}
        finally:
            os.chdir(back)
    contents = json.loads(finished[_CONTENTS])
    (batches,) = contents["published"].values()
    contents |= {"published": {}, "under_way": [{**batches[-1], "lines": 0}]}
    lines = finished[_RESULTS].splitlines(keepends=True)
    return finished, {_PART: lines[0], _AHEAD: b"2\t" + lines[2], _LOCK: finished[_LOCK],
                      _CONTENTS: (json.dumps(contents, indent=1) + "\n").encode()}


def folder(random: Random) -> Input:
    """A folder of `run -o` in which something is not what was left there."""
    files: dict[str, Content] = {**random.choice(_kept())}
    name = random.choice((_RESULTS, _PART, _CONTENTS, _CONTENTS, _CONTENTS, _LOCK, _AHEAD))
    if name == _CONTENTS and random.random() < 0.75:
        files[name] = _damaged(files[name], random)
    elif random.random() < 0.75:
        files[name] = random.choice((
            Special("pipe"), Special("sparse", size=2**40), Special("sparse", size=2**31), Special("link", "../f.yaml"),
            Special("link", "nowhere"), Special("link", Path(name).name), Special("link", "/dev/zero"),
            Special("link", "/dev/null"), Special("link", "."), Special("folder")))
    else:
        held = files.get(name, b"")
        files[name] = mutated_bytes(held if isinstance(held, bytes) else b"", random)
    other = {"name": "t"} if random.random() < 0.3 else {}
    how = random.choice(((), (), ("--append",), ("--overwrite",)))
    words = ("run", FILE, "-o", "out", *how) if random.random() < 0.8 else ("report", "out", "-o", "p.html")
    return Input({FILE: {**_SWEPT, **other}, **files}, words)


def _damaged(content: Content | None, random: Random) -> bytes:
    """Contents with another number in the place of one, or otherwise mutated."""
    assert isinstance(content, bytes)
    tree = json.loads(content)
    if random.random() < 0.2:
        return json.dumps(mutated_tree(tree, random), indent=1).encode()
    counts = [path for path in paths(tree) if path[-1] in ("lines", "scenarios", "version")]
    marked = json.dumps(with_value(tree, random.choice(counts), "<here>"), indent=1).encode()
    return marked.replace(b'"<here>"', random.choice(_NUMBERS))


# ---- numbers that are nothing ---------------------------------------------------------------------------------------
_OFTEN: Final = ("step_s", "capacity_bytes", "allocated_bytes", "reserved_bytes", "device_bytes", "executed_flops",
                 "num_ranks", "world_size", "usable_bytes", "tokens_per_s", "model_flops", "limit_s")  # fmt: skip


def zero(random: Random) -> Input:
    """Results of earlier runs in which a number, or all of one name, is 0."""
    rows = [deepcopy(row) for row in random.sample(seeds.results(), random.randint(1, 2))]
    if not any(row["status"] == "ok" for row in rows):
        rows[0] = deepcopy(seeds.results()[0])
    row = random.choice([row for row in rows if row["status"] == "ok"])
    numbers = [path for path in paths(row) if isinstance(_held(row, path), (int, float)) and path[0] != "scenario"]
    often = [path for path in numbers if path[-1] in _OFTEN]
    chosen = random.choice(often if often and random.random() < 0.6 else numbers)
    everywhere = random.random() < 0.5
    for path in numbers:
        if path == chosen or (everywhere and path[-1] == chosen[-1]):
            _holder_of(row, path)[path[-1]] = 0
    name = random.choice(("r.json", "r.jsonl"))
    command = random.choice((
        ("report", name, "-o", "p.html"), ("report", name, "--figures", "figures"), ("compare", name, FILE),
        ("compare", "s.json", name), ("compare", name, "s.json", "--json"), ("run", FILE, "--baseline", name),
        ("run", FILE, "--json", "--baseline", name), ("run", FILE, "--baseline", name, "--format", "junit"),
        ("export", "csv", name, "-o", "t.csv"), ("export", "csv", name, "--table", "ranks", "-o", "t.csv")))
    if command[0] == "compare":
        rows = [row]
    return Input({FILE: seeds.PLAIN, "s.json": [seeds.results()[0]], name: rows}, command)


def _holder_of(tree: Any, path: tuple[str | int, ...]) -> Any:
    for key in path[:-1]:
        tree = tree[key]
    return tree


def _held(tree: Any, path: tuple[str | int, ...]) -> Any:
    value = _holder_of(tree, path)[path[-1]]
    return None if isinstance(value, bool) else value
