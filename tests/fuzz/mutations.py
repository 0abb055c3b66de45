"""Trees and texts, changed: keys that go, come twice or change their type, values at the end of every range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any, Final

from simcore.inputs.scenario import scenario_schema

__all__ = ["EXTREMES", "extremes_of_schema", "mutated_bytes", "mutated_tree", "paths", "with_value"]

Path = tuple[str | int, ...]

NUMBERS: Final[tuple[Any, ...]] = (
    0, 1, -1, 2, 3, 7, 2**20, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 10**19, 10**30, 10**300,
    0.0, -0.0, 0.5, -0.5, 1.5, 1e-300, 1e300, 5e-324, float("nan"), float("inf"), float("-inf"))  # fmt: skip
TEXTS: Final = (
    "", " ", "auto", "none", "null", "true", "1", "-1", "1e3", "0x10", "1_000", ".nan", "80 GiB", "-5 GiB", "0 B",
    "450 GB/s", "1e400 GiB", "nan GB/s", "%", "=1+1", "@x", "~", "../../x", "/dev/null", "/", ".", "x" * 300,
    "y" * 5000, "ü", "\u202e", "\u2028", "\ud83d\ude00", "\U0001f4a5", "a\x00b", "a\x1b[31m", "a\nb", "a\tb",
    "<script>", "*", "[", "{", "&a", "!!int", "%s", "{0}", "${x}", "`", "\\", "'", '"', "llama-tiny", "fsdp2",
    "fp8", "host")  # fmt: skip
OTHERS: Final[tuple[Any, ...]] = (
    None, True, False, [], {}, [[]], [[[[[[]]]]]], [None], ["auto"], {"a": 1}, {"": ""}, [1, 2, 3], list(range(300)),
    {str(i): i for i in range(100)}, [{}], {"a": {"a": {"a": {}}}}, [0] * 5000)  # fmt: skip
EXTREMES: Final[tuple[Any, ...]] = (*NUMBERS, *TEXTS, *OTHERS)
KEYS: Final = ("", " ", "x", "<<", "<unknown>", "a.b", "name", "\u0430", "__class__", "0", "null", "*", "k" * 300)


# ---- trees ----------------------------------------------------------------------------------------------------------
def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Paths of all values in a tree except its root."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from paths(inner, (*path, key))


def with_value(tree: Any, path: Path, value: Any) -> Any:
    """A copy with one value set; mappings and lists on the way are made."""
    made = deepcopy(tree)
    inner = made
    for key, following in pairwise(path):
        held = inner[key] if isinstance(key, int) or key in inner else None
        wanted = list if isinstance(following, int) else dict
        if not isinstance(held, wanted):
            inner[key] = [None] if wanted is list else {}
        inner = inner[key]
    inner[path[-1]] = value
    return made


def mutated_tree(tree: Any, random: Random, times: int = 1) -> Any:
    """A copy that is changed in so many places."""
    for _ in range(times):
        places = list(paths(tree))
        if not places:
            return tree
        path = random.choice(places)
        tree = random.choice(_OF_TREES)(deepcopy(tree), path, random)
    return tree


def _holder(tree: Any, path: Path) -> Any:
    for key in path[:-1]:
        tree = tree[key]
    return tree


def _replaced(tree: Any, path: Path, random: Random) -> Any:
    _holder(tree, path)[path[-1]] = deepcopy(random.choice(EXTREMES))
    return tree


def _scaled(tree: Any, path: Path, random: Random) -> Any:
    """A number becomes another that is like it; what is none becomes one."""
    holder, key = _holder(tree, path), path[-1]
    old = holder[key]
    is_number = isinstance(old, (int, float)) and not isinstance(old, bool)
    factors = (-1, 0, 2, 3, 10, 1000, 10**6, 10**12, 0.5, 1.0, 1e-9)
    holder[key] = old * random.choice(factors) if is_number else random.choice(NUMBERS)
    return tree


def _removed(tree: Any, path: Path, random: Random) -> Any:
    del _holder(tree, path)[path[-1]]
    return tree


def _renamed(tree: Any, path: Path, random: Random) -> Any:
    holder, key = _holder(tree, path), path[-1]
    if isinstance(holder, dict):
        text = str(key)
        at = random.randrange(len(text) + 1)
        new = random.choice((text[:at] + text[at + 1:], text[:at] + "x" + text[at:], text.upper(), random.choice(KEYS)))
        held = holder.pop(key)
        holder[new] = held
    return tree


def _added(tree: Any, path: Path, random: Random) -> Any:
    holder = _holder(tree, path)
    if isinstance(holder, dict):
        holder[random.choice(KEYS)] = deepcopy(random.choice(EXTREMES))
    else:
        holder.append(deepcopy(random.choice((holder[-1], *EXTREMES))))
    return tree


def _wrapped(tree: Any, path: Path, random: Random) -> Any:
    holder, key = _holder(tree, path), path[-1]
    old = holder[key]
    holder[key] = random.choice(([old], {"x": old}, str(old), [old, old], {str(key): old}))
    return tree


def _moved(tree: Any, path: Path, random: Random) -> Any:
    """A value of the tree stands in the place of another."""
    inner = tree
    for key in random.choice(list(paths(tree))):
        inner = inner[key]
    _holder(tree, path)[path[-1]] = deepcopy(inner)
    return tree


_OF_TREES: Final[tuple[Callable[[Any, Path, Random], Any], ...]] = (
    _replaced, _replaced, _replaced, _scaled, _scaled, _scaled, _removed, _renamed, _added, _wrapped, _moved)


# ---- numbers of the schema ------------------------------------------------------------------------------------------
@cache
def extremes_of_schema() -> tuple[tuple[Path, int | float], ...]:
    """Every number of a scenario's schema at the ends of its range, and just outside."""
    schema = scenario_schema()
    return tuple((path, value) for path, low, high in _ranges(schema, schema, ()) for value in _ends(low, high))


def _ends(low: float | None, high: float | None) -> list[int | float]:
    ends = [value for value in (low, high) if value is not None]
    inside = [] if high is not None else [2**62, 10**19, 1e300]
    middle = [round((low or 1) * (high or 2**62) ** 0.5)]
    return [*ends, *(value + step for value in ends for step in (-1, 1)), *inside, *middle]


def _ranges(schema: Any, node: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """(path, least, most) of numbers."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for inner in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from _ranges(schema, inner, path)
    if node.get("type") in ("integer", "number"):
        yield path, node.get("minimum", node.get("exclusiveMinimum")), node.get("maximum", node.get("exclusiveMaximum"))
    for key, inner in node.get("properties", {}).items():
        yield from _ranges(schema, inner, (*path, key))
    if isinstance(node.get("items"), dict):
        yield from _ranges(schema, node["items"], (*path, 0))


# ---- texts ----------------------------------------------------------------------------------------------------------
_SYNTAX: Final = tuple(text.encode() for text in (
    "&a ", "*a", "<<: *a\n", "!!python/object:os.system ", "!!int ", "!x ", "- ", "? ", ": ", "# ", "---\n", "...\n",
    "%YAML 1.1\n", "|\n", ">\n", "{", "}", "[", "]", ",", "'", '"', "\t", "\r\n", "\x00", "\ufeff", "\u2028", "0o17",
    "017", ".inf", "-.inf", ".nan", "1e999", "9" * 5000, "yes", "~", "@", "`", "\\x41", "sweep: {mesh.tp: [1, 2]}\n"))
_LETTERS: Final = b"0123456789.-+eE:{}[],'\"#&*!|>%@ \n\tabfnox\x00\x7f\x80\xff"


def mutated_bytes(content: bytes, random: Random, times: int = 1) -> bytes:
    """A copy that is changed in so many places."""
    for _ in range(times):
        content = random.choice(_OF_TEXTS)(content, random)
    return content


def _flipped(content: bytes, random: Random) -> bytes:
    if not content:
        return b"\xff"
    at = random.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1:]


def _typed(content: bytes, random: Random) -> bytes:
    """Another letter in the place of one, or before it."""
    at = random.randrange(len(content) + 1)
    return content[:at] + bytes([random.choice(_LETTERS)]) + content[at + random.randrange(2):]


def _cut(content: bytes, random: Random) -> bytes:
    return content[:random.randrange(len(content) + 1)]


def _without(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + content[at + random.choice((1, 2, 10, 100)):]


def _with_syntax(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + random.choice(_SYNTAX) + content[at:]


def _with_other_lines(content: bytes, random: Random) -> bytes:
    """A line twice, two exchanged, or one with another indent."""
    lines = content.splitlines(keepends=True)
    if len(lines) < 2:
        return content * 2
    one, other = random.sample(range(len(lines)), 2)
    lines[one], lines[other] = random.choice(((lines[other], lines[one]), (lines[one] * 2, lines[other]),
                                              (b"  " + lines[one], lines[other]), (lines[other], lines[other])))
    return b"".join(lines)


def _with_number(content: bytes, random: Random) -> bytes:
    """Another number in the place of one."""
    digits = [at for at, byte in enumerate(content) if 48 <= byte <= 57]
    if not digits:
        return content
    start = random.choice(digits)
    end = start
    while end < len(content) and 48 <= content[end] <= 57:
        end += 1
    return content[:start] + str(random.choice(NUMBERS)).encode() + content[end:]


_OF_TEXTS: Final[tuple[Callable[[bytes, Random], bytes], ...]] = (
    _flipped, _typed, _typed, _cut, _without, _with_syntax, _with_syntax, _with_other_lines, _with_number, _with_number)
