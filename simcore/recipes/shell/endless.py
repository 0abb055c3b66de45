"""Loops that never end: a condition that nothing changes, and no word in the body that leaves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from simcore.recipes.shell.syntax import Case, Chain, Command, Function, Group, If, Loop, Node

__all__ = ["never_ends"]

_TRUE: Final = frozenset({("true",), (":",), ("[", "1", "]"), ("[", "true", "]"), ("test", "1"), ("/bin/true",)})
_FALSE: Final = frozenset({("false",), ("/bin/false",)})
_ALWAYS: Final = frozenset({"((1))", "(( 1 ))", "[[ 1 ]]", "[[ true ]]", "1"})
_LEAVES: Final = frozenset({"break", "return", "eval", "source", ".", "trap", "kill", "pkill", "exec"})
"""Words by which a body may leave its loop; `exit` ends the script, and what is behind the loop is not reached."""


def never_ends(node: Loop, functions: Collection[str]) -> bool:
    """True for `while true`, `until false` and `for ((;;))` that nothing in their bodies leaves.

    `functions`: names of the script's own, which may.
    """
    names = {command.words[0].text for command in _commands(node.body) if command.words}
    return _is_always(node) and names.isdisjoint(_LEAVES) and names.isdisjoint(functions)


def _is_always(node: Loop) -> bool:
    if node.word in ("while", "until"):
        words = [tuple(token.text for token in one.words) for one in node.condition if isinstance(one, Command)]
        if len(words) != 1 or len(node.condition) != 1:
            return False
        is_constant = words[0] in _TRUE or "".join(words[0]).strip() in _ALWAYS
        return is_constant if node.word == "while" else words[0] in _FALSE
    if node.word != "for" or not node.names or node.names[0].kind != "arithmetic":
        return False
    parts = node.names[0].text.split(";")
    return len(parts) == 3 and not parts[1].strip()


def _commands(nodes: Sequence[Node]) -> Iterator[Command]:
    """Commands of statements and of all within them."""
    for node in nodes:
        if isinstance(node, Command):
            yield node
        for inner in _bodies(node):
            yield from _commands(inner)


def _bodies(node: Node) -> Iterator[Sequence[Node]]:
    if isinstance(node, If):
        for condition, body in node.branches:
            yield from (condition, body)
        yield node.otherwise
    elif isinstance(node, Case):
        yield from (body for _, body in node.arms)
    elif isinstance(node, Loop):
        yield from (node.condition, node.body)
    elif isinstance(node, Group | Function):
        yield node.body
    elif isinstance(node, Chain):
        yield (node.first, *(one for _, one in node.rest))
