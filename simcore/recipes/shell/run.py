"""Takes a script's statements in order, as far as the script alone decides which of them run, and how often."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.shell.changes import CHANGES, DECLARES, assign, is_assigned
from simcore.recipes.shell.conditions import holds, matches
from simcore.recipes.shell.expansion import Variables
from simcore.recipes.shell.inner import Inner, inner_of
from simcore.recipes.shell.paths import joined
from simcore.recipes.shell.pieces import Piece, Word, known_text, pattern_of, unknown
from simcore.recipes.shell.syntax import Case, Chain, Command, Function, Group, If, Loop, Node, nodes_of
from simcore.recipes.shell.tokens import Token, tokens_of

__all__ = ["Run", "Started"]

_MOST: Final = 4_000
"""Statements that are taken."""
_MAX_DEPTH: Final = 16
"""Functions and scripts in one another."""
_MOST_ROUNDS: Final = 64
"""Rounds of a loop; of one with more nothing is known."""
_SAYS: Final = frozenset({"echo", "printf", "cat", "sleep", "true", ":", "exit", "return", "set", "usage", "help", "die"})
"""Commands of a body that only tells what is wrong, and ends the script."""
_ASKS: Final = frozenset({"grep", "egrep", "fgrep", "command", "which", "type", "hash", "nvidia-smi", "pgrep", "ping", "diff",
                          "cmp", "rocm-smi", "nc", "getent"})
"""Commands that are started for whether they succeed; any other is taken to succeed before `&&`."""
_IDLE_FILES: Final = frozenset({"activate", ".bashrc", ".bash_profile", ".profile", "profile", "bashrc", "conda.sh", "mamba.sh",
                                "micromamba.sh", "modules.sh", "lmod.sh", "z00_lmod.sh", "setvars.sh", "nvm.sh"})
"""Files of a login, of Python's environments and of modules, which set paths alone."""
_IDLE_TEXTS: Final = re.compile(r"\b(conda|mamba|micromamba|pyenv|ssh-agent|direnv|modulecmd|brew)\b")


@dataclass(frozen=True, slots=True)
class Started:
    """A command that the script starts: its words, and the commands around it (`srun ... bash -c`) as words.

    `within`: the loop, or the condition that more than the script decides, that it lies in; "" for none.
    """

    words: tuple[Word, ...]
    around: tuple[Word, ...] = ()
    within: str = ""

    @property
    def line(self) -> int:
        """Line of the script that the command begins on."""
        return self.words[0].line


@dataclass
class Run:
    """State of a script that is being read. `within`: as in `Started`; `around`: words around a script in a script.

    `ended`: what ends the statements that are being taken (exit, return, break, continue; "gone": all ways do), ""
    for nothing. `returned`: variables of the ways on which the function has returned; `is_torn`: on some way the loop
    was left. `hidden`: variables that local ones of the function hide. `before`: variables set before a command alone.
    """

    variables: Variables
    commands: list[Started] = field(default_factory=list)
    functions: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    within: str = ""
    around: tuple[Word, ...] = ()
    depth: int = 0
    taken: int = 0
    ended: str = ""
    returned: list[dict[str, tuple[Piece, ...]]] = field(default_factory=list)
    is_torn: bool = False
    hidden: dict[str, tuple[Piece, ...] | None] | None = None
    before: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    headers: list[tuple[str, int]] = field(default_factory=list)

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
            return self._command(node)
        if isinstance(node, Chain):
            return self._chain(node)
        if isinstance(node, Group):
            return self._apart(node.body) if node.is_subshell else self.take(node.body)
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
                self._reason("condition", node.line) if open_bodies else "")
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
        variables, reason = self.variables, self._reason(what, line)
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

    def _reason(self, what: str, line: int) -> str:
        told = ", which the script alone does not decide" if what == "condition" else ""
        return f"the {what} at {self.variables.place(line)}{told}"

    def _apart(self, nodes: Sequence[Node]) -> bool | None:
        """Takes statements in brackets, whose variables are lost behind them."""
        values, functions = dict(self.variables.values), dict(self.functions)
        arguments, returned = self.variables.arguments, len(self.returned)
        truth = self.take(nodes)
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
        elif rounds > 1:
            reason = self._reason("loop", node.line)
            started = [replace(one, within=one.within or reason) for one in self.commands[count:]]
            self.commands[count:] = dict.fromkeys(started)  # those that are alike in every round once
        self.is_torn = was_torn

    def _rounds(self, node: Loop) -> int | None:
        """Takes a loop as often as it runs; None if that is not known, or too often."""
        rounds = 0
        for go_on in self._each_round(node):
            if go_on is None or rounds >= _MOST_ROUNDS:
                return None
            if not go_on or self.ended:
                break
            rounds += 1
            self.take(node.body)
            if self.is_torn:
                return None
            is_left, self.ended = self.ended == "break", self.ended if self.ended not in ("break", "continue") else ""
            if is_left or self.ended:
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
                self.variables.values[name] = (unknown(f"${name}", node.line, self._reason("loop", node.line)),)
            self._either([[*node.condition, *node.body], []], node.line, "loop")

    # ---- commands ----------------------------------------------------------------------------------------------
    def _command(self, node: Command) -> bool | None:
        words = list(node.words)
        is_negated = False
        while len(words) > 1 and words[0].kind == "word" and words[0].text == "!":
            words.pop(0)
            is_negated = not is_negated
        number = next((number for number, token in enumerate(words) if not is_assigned(token)), len(words))
        truth = self._simple(words[number:], words[:number], node)
        return truth if truth is None or not is_negated else not truth

    def _simple(self, words: list[Token], assigned: Sequence[Token], node: Command) -> bool | None:
        variables = self.variables
        if not words:
            for token in assigned:
                assign(variables, token)
            return None if any("$(" in token.text or "`" in token.text for token in assigned) else True
        name = words[0].text
        if words[0].kind == "arithmetic":
            value = variables.number(name, words[0].line)
            return None if value is None else value != 0
        if words[0].kind == "condition" or name in ("[", "test"):
            return holds(words, variables)
        if name in DECLARES:
            self._declare(words)
            return True
        if name in CHANGES or (name == "printf" and len(words) > 2 and words[1].text == "-v"):
            return CHANGES["read" if name == "printf" else name](variables, words, self.within)
        if name in ("source", "."):
            self._source(words)
            return None
        if name in ("exit", "return", "break", "continue"):
            self.ended = name
            self.is_torn = self.is_torn or (name in ("break", "continue") and len(words) > 1)
            return None
        return self._external([token for token in words if token.kind == "word"], assigned, node)

    def _external(self, tokens: list[Token], assigned: Sequence[Token], node: Command) -> bool | None:
        """Starts a command, with variables that are set for it alone, and that its own words do not see."""
        words = self.variables.words(tokens)
        was, exported = dict(self.variables.values), set(self.variables.exported)
        for token in assigned:
            assign(self.variables, token)
            name = token.text.partition("=")[0].rstrip("+")
            self.variables.exported.add(name)
            self.before[name] = self.variables.values.get(name, ())
        changed = {name: self.variables.values[name] for name in self.before if assigned and name in self.variables.values}
        self._start(words, node, tokens)
        if assigned:
            self.variables.exported = exported
            for name, value in changed.items():
                if self.variables.values.get(name) is value:
                    self.variables.values.pop(name)
                    self.variables.values.update({name: was[name]} if name in was else {})
        first = words[0].text if words else ""
        if first == "exec" and len(words) > 1:
            self.ended = "exit"
        return {"false": False, "echo": True, "printf": True, ":": True, "true": True}.get(first)

    def _declare(self, words: Sequence[Token]) -> None:
        """Takes export, declare, local, readonly and typeset."""
        variables, line = self.variables, words[0].line
        flags = "".join(token.text[1:] for token in words[1:] if token.kind == "word" and token.text[:1] == "-")
        is_local = self.hidden is not None and words[0].text in ("local", "declare", "typeset") and "g" not in flags
        for token in words[1:]:
            named = re.match(r"[A-Za-z_]\w*", token.text)
            if token.kind == "word" and token.text[:1] in ("-", "+"):
                continue
            if named is None or not (is_assigned(token) or named[0] == token.text):
                if any(word.unknown and word.may_hold for word in variables.words([token])):
                    variables.forget(line, f"what line {line} sets")
                continue
            name = named[0]
            if is_local and self.hidden is not None:
                self.hidden.setdefault(name, variables.values.get(name))
                if token.text == name:
                    variables.values.pop(name, None)
            if words[0].text == "export" or "x" in flags:
                variables.exported.add(name)
            variables.integers |= {name} if "i" in flags else set()
            variables.tables |= {name} if "A" in flags else set()
            if is_assigned(token):
                assign(variables, token)
            if "n" in flags and words[0].text != "export":
                variables.make_unknown(name, line, f"${name}, another name of a variable")

    def _source(self, words: Sequence[Token]) -> None:
        """Reads a file that the user names beside the script; any other may change all variables."""
        line = words[0].line
        given = self.variables.words(words[1:2])
        name = given[0].text.rpartition("/")[2] if given else ""
        if name in _IDLE_FILES or (given and given[0].text.endswith("/init/bash")):
            return
        text = self.variables.beside.get(name)
        if text is None:
            self.variables.forget(line, f"the file that is sourced at line {line}")
            return
        if self.depth >= _MAX_DEPTH:
            raise InputError(Problem(f"{self.variables.path}:{line}", f"{name}: more than {_MAX_DEPTH} files that source "
                                                                      "each other"))
        was = self.variables.inside
        self.variables.inside = was or (line, name)
        arguments = self.variables.given_to(words[2:]) if len(words) > 2 else self.variables.arguments
        self._within(arguments, nodes_of(tokens_of(text, name), name), is_function=False)
        self.variables.inside = was

    def _start(self, words: list[Word], node: Command, tokens: Sequence[Token]) -> None:
        if not words:
            return
        name = words[0].text
        if name in self.functions and self.depth < _MAX_DEPTH:
            if name in self.doubtful:
                told = f"{name}: a function that more than the script decides: it differs by a condition"
                raise InputError(Problem(f"{self.variables.path}:{node.line}", told))
            self._within(self.variables.given_to(tokens)[1:], self.functions[name])
            return
        if name == "eval" and any(word.unknown and not word.is_unset for word in words[1:2]):
            if not _IDLE_TEXTS.search(words[1].text):
                self.variables.forget(node.line, f"the text that line {node.line} evaluates")
                self.commands.append(Started(tuple(words), self.around, self.within))
            return
        inner = inner_of(words, node.document, self.variables)
        if inner is None or self.depth >= _MAX_DEPTH:
            self.commands.append(Started(tuple(words), self.around, self.within))
        else:
            self._inner(inner, node)

    def _inner(self, inner: Inner, node: Command) -> None:
        """Takes a script that a command has as its argument or input."""
        was_around, self.around = self.around, (*self.around, *inner.around)
        nodes = nodes_of(tokens_of(inner.text, self.variables.path, inner.line), self.variables.path)
        if inner.is_own:
            self._within(self.variables.arguments, nodes, is_function=False)
            self.around = was_around
            return
        values, functions, ended = self.variables.values, self.functions, self.ended
        self.headers += [(found[0], inner.line) for found in re.finditer(r"^#SBATCH\s.*$", inner.text, re.MULTILINE)]
        self.variables.values = self.variables.seen_by_commands()
        self.functions = {name: body for name, body in functions.items() if name in self.variables.exported}
        self._within(inner.arguments, nodes)
        self.variables.values, self.functions, self.ended, self.around = values, functions, ended, was_around

    def _within(self, arguments: tuple[tuple[Piece, ...], ...] | None, nodes: Sequence[Node], *,
                is_function: bool = True) -> None:
        """Takes the statements of a function, or of a script in the script, with its own `$@`."""
        variables = self.variables
        outer = (variables.arguments, self.returned, self.hidden)
        variables.arguments, self.returned, self.depth = arguments, [], self.depth + 1
        self.hidden = {} if is_function else self.hidden
        self.take(nodes)
        paths = [*([variables.values] if self.ended not in ("exit", "gone") else []), *self.returned]
        if is_function:
            for path in paths:
                for name, value in (self.hidden or {}).items():
                    path.pop(name, None)
                    path.update({} if value is None else {name: value})
        if len(paths) > 1:
            line = nodes[0].line if nodes else 1
            variables.values = joined(paths, variables, line, self._reason("condition", line))
        elif paths:
            variables.values = paths[0]
        self.ended = "" if paths else "exit"
        variables.arguments, self.returned, self.hidden = outer if is_function or arguments is not outer[0] else (
            variables.arguments, *outer[1:])
        self.depth -= 1


def _name(node: Node) -> str:
    return node.words[0].text if isinstance(node, Command) and node.words and node.words[0].kind == "word" else ""


def _asks(node: Node) -> bool:
    """True for a command that is there for whether it succeeds."""
    return isinstance(node, Command) and bool(node.words) and (
        node.words[0].kind in ("condition", "arithmetic", "array") or is_assigned(node.words[0])
        or node.words[0].text in ("[", "test", "!", *_ASKS))
