"""Takes a script's statements in order, as far as the script alone decides which of them run, and how often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.shell.changes import is_assigned
from simcore.recipes.shell.commands import Commands
from simcore.recipes.shell.conditions import matches
from simcore.recipes.shell.endless import never_ends
from simcore.recipes.shell.paths import joined
from simcore.recipes.shell.pieces import Piece, known_text, pattern_of, unknown
from simcore.recipes.shell.syntax import Case, Chain, Command, Group, If, Loop, Node
from simcore.recipes.shell.tokens import Token

__all__ = ["Run"]

_MOST: Final = 4_000
"""Statements that are taken."""
_MOST_ROUNDS: Final = 64
_MOST_IN_LOOP: Final = 800
"""Rounds of a loop, and statements in it; of one with more nothing is known."""
_SAYS: Final = frozenset({"echo", "printf", "cat", "sleep", "true", ":", "exit", "return", "set", "usage", "help",
                          "die"})
"""Commands of a body that only tells what is wrong, and ends the script."""
_ASKS: Final = frozenset({"grep", "egrep", "fgrep", "command", "which", "type", "hash", "nvidia-smi", "pgrep", "ping",
                          "diff", "cmp", "rocm-smi", "nc", "getent"})
"""Commands that are started for whether they succeed; any other is taken to succeed before `&&`."""


@dataclass
class Run(Commands):
    """Statements of a script that is being read: lists, conditions, cases, loops and groups."""

    def take(self, nodes: Sequence[Node]) -> bool | None:
        """Takes statements up to one that ends them; truth of the last."""
        truth: bool | None = True
        for node in nodes:
            if self.ended:
                break
            self.taken += 1
            if self.taken > _MOST:
                raise InputError(Problem(f"{self.variables.path}:{node.line}", f"more than {_MOST:,} statements"))
            truth = self._one(node)
        return truth

    def _one(self, node: Node) -> bool | None:
        """Takes a statement; truth of it, where the script decides it."""
        if isinstance(node, Command):
            return self.command(node)
        if isinstance(node, Chain):
            return self._chain(node)
        if isinstance(node, Group):
            return self._apart(node) if node.is_subshell else self.take(node.body)
        if isinstance(node, If):
            self._if(node)
        elif isinstance(node, Case):
            self._case(node)
        elif isinstance(node, Loop):
            self._loop(node)
        else:
            self.functions[node.name] = node.body
            self.doubtful.discard(node.name)
        return None

    # ---- structures --------------------------------------------------------------------------------------------
    def _chain(self, node: Chain) -> bool | None:
        truth, asks = self._one(node.first), _asks(node.first)
        for sign, following in node.rest:
            if self.ended:
                break
            if (truth is not None and truth == (sign == "||")) or (truth is not None and self._is_check([following])):
                continue
            if truth is None and (asks or sign == "||"):
                self._either([[following], []], node.line, "condition")
            else:
                truth, asks = self._one(following), asks or _asks(following)
        return truth

    def _if(self, node: If) -> None:
        open_bodies: list[Sequence[Node]] = []
        chosen: Sequence[Node] = node.otherwise
        for condition, body in node.branches:
            was, self.within = self.within, self.within or (
                self.reason("condition", node.line) if open_bodies else "")
            truth = self.take(condition)
            self.within = was
            if truth is None:
                open_bodies.append(body)
            elif truth and not self._is_check(body):
                chosen = body
                break
        self._choose(open_bodies, chosen, node.line)

    def _case(self, node: Case) -> None:
        text = known_text(self.variables.pieces(node.subject.text, node.subject.line))
        open_bodies: list[Sequence[Node]] = []
        chosen: Sequence[Node] = ()
        for patterns, body in node.arms:
            given = [pattern_of(self.variables.pieces(pattern.text, pattern.line)) for pattern in patterns]
            found = [True if pattern == "*" else matches(text, pattern) for pattern in given]
            if True in found:
                chosen = () if self._is_check(body) else body
                break
            if None in found:
                open_bodies.append(body)
        self._choose(open_bodies, chosen, node.line)

    def _choose(self, open_bodies: Sequence[Sequence[Node]], chosen: Sequence[Node], line: int) -> None:
        if open_bodies:
            self._either([*open_bodies, chosen], line, "condition")
        else:
            self.take(chosen)

    def _either(self, bodies: Sequence[Sequence[Node]], line: int, what: str) -> None:
        """Takes each of several bodies, of which more than the script decides which one runs."""
        variables, reason = self.variables, self.reason(what, line)
        values, functions = dict(variables.values), dict(self.functions)
        was_within, self.within = self.within, self.within or reason
        paths: list[dict[str, tuple[Piece, ...]]] = []
        for body in bodies:
            variables.values, own = dict(values), dict(functions)
            self.functions = own
            self.take(body)
            self.doubtful |= {name for name, one in self.functions.items() if functions.get(name) is not one}
            functions = {**functions, **self.functions}
            ended, self.ended = self.ended, ""
            self.is_torn = self.is_torn or ended in ("break", "continue")
            if ended == "return":
                self.returned.append(variables.values)
            elif ended not in ("exit", "gone"):
                paths.append(variables.values)
        self.within, self.functions = was_within, functions
        variables.values = joined(paths, variables, line, reason) if paths else values
        self.ended = "" if paths else "gone"

    def _apart(self, node: Group) -> bool | None:
        """Takes statements in brackets, whose variables are lost behind them."""
        was_within = self.within
        values, functions = dict(self.variables.values), dict(self.functions)
        arguments, returned = self.variables.arguments, len(self.returned)
        truth = self.take(node.body)
        self.within = was_within if node.is_beside else self.within
        self.remember(values)
        self.variables.values, self.functions, self.variables.arguments = values, functions, arguments
        self.ended = ""
        del self.returned[returned:]
        return truth

    def _is_check(self, body: Sequence[Node]) -> bool:
        """True for a body that says what is missing and ends the script, which who starts it sees to."""
        nodes = [one for node in body for one in (node.body if isinstance(node, Group) else [node])]
        return bool(nodes) and all(self._only_says(node) for node in nodes) and self._exits(nodes[-1])

    def _only_says(self, node: Node) -> bool:
        name = _name(node)
        inner = self.functions.get(name)
        return name in _SAYS if inner is None else all(_name(one) in _SAYS for one in inner)

    def _exits(self, node: Node) -> bool:
        name = _name(node)
        return name == "exit" or any(_name(one) == "exit" for one in self.functions.get(name, ()))

    # ---- loops -------------------------------------------------------------------------------------------------
    def _loop(self, node: Loop) -> None:
        was_torn, self.is_torn = self.is_torn, False
        state = (dict(self.variables.values), dict(self.functions), self.variables.arguments, len(self.returned))
        count = len(self.commands)
        rounds = self._rounds(node)
        if rounds is None:
            self.variables.values, self.functions, self.variables.arguments = dict(state[0]), dict(state[1]), state[2]
            del self.returned[state[3]:], self.commands[count:]
            self.ended = ""
            self._open_loop(node)
            if never_ends(node, self.functions):
                self.within = self.within or f"the part behind the loop at line {node.line}, which never ends"
        elif rounds > 1:
            reason = self.reason("loop", node.line)
            started = [replace(one, within=one.within or reason) for one in self.commands[count:]]
            self.commands[count:] = dict.fromkeys(started)  # those that are alike in every round once
        self.is_torn = was_torn

    def _rounds(self, node: Loop) -> int | None:
        """Takes a loop as often as it runs; None if that is not known, or too often."""
        rounds, begun = 0, self.taken
        for go_on in self._each_round(node):
            if go_on is None or rounds >= _MOST_ROUNDS or self.taken - begun > _MOST_IN_LOOP:
                return None
            if not go_on or self.ended:
                break
            rounds += 1
            self.take(node.body)
            if self.is_torn:
                return None
            ended = self.ended
            self.ended = "" if ended in ("break", "continue") else ended
            if ended not in ("", "continue"):
                break
        return rounds

    def _each_round(self, node: Loop) -> Iterator[bool | None]:
        """True before each round, None where it is not known, False at the end; sets the loop's variable."""
        if node.word in ("while", "until"):
            while True:
                truth = self.take(node.condition)
                yield None if truth is None else truth == (node.word == "while")
        if node.names and node.names[0].kind == "arithmetic":
            yield from self._counting(node)
            return
        items = self._items(node)
        if items is None:
            yield None
            return
        for one in items:
            self.variables.values[node.names[0].text] = one
            yield True

    def _items(self, node: Loop) -> tuple[tuple[Piece, ...], ...] | None:
        """Values of the variable of `for`; None if they are not known."""
        tokens = node.names[2:] if len(node.names) > 1 else (Token("word", '"$@"', node.line),)
        items = self.variables.given_to(tokens) if node.word == "for" else None
        is_open = items is None or any(piece.unknown and not piece.is_quoted for one in items for piece in one)
        return None if is_open else items

    def _counting(self, node: Loop) -> Iterator[bool | None]:
        """Rounds of `for ((first; condition; step))`."""
        parts = node.names[0].text.split(";")
        if len(parts) != 3:
            yield None
            return
        self.variables.number(parts[0], node.line)
        while True:
            value = self.variables.number(parts[1], node.line) if parts[1].strip() else 1
            yield None if value is None else value != 0
            if parts[2].strip():
                self.variables.number(parts[2], node.line)

    def _open_loop(self, node: Loop) -> None:
        """Takes a loop of which more than the script decides how often it runs: twice, as what it sets may decide."""
        count = len(self.commands)
        for _ in range(2):
            del self.commands[count:]
            if node.word in ("for", "select") and node.names and node.names[0].kind == "word":
                name = node.names[0].text
                self.variables.values[name] = (unknown(f"${name}", node.line, self.reason("loop", node.line)),)
            self._either([[*node.condition, *node.body], []], node.line, "loop")


def _name(node: Node) -> str:
    return node.words[0].text if isinstance(node, Command) and node.words and node.words[0].kind == "word" else ""


def _asks(node: Node) -> bool:
    """True for a command that is there for whether it succeeds."""
    if isinstance(node, Group) and node.body:
        return _asks(node.body[-1])
    return isinstance(node, Command) and bool(node.words) and (
        node.words[0].kind in ("condition", "arithmetic", "array") or is_assigned(node.words[0])
        or node.words[0].text in ("[", "test", "!", *_ASKS))
