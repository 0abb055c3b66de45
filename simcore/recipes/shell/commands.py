"""Commands of a script: assignments, the shell's own, functions, files that are sourced, scripts in scripts."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.shell.changes import CHANGES, DECLARES, assign, is_assigned, reads_all, trimmed
from simcore.recipes.shell.conditions import holds
from simcore.recipes.shell.expansion import Variables
from simcore.recipes.shell.inner import Inner, inner_of
from simcore.recipes.shell.paths import joined
from simcore.recipes.shell.pieces import Piece, Word
from simcore.recipes.shell.syntax import Command, Node, nodes_of
from simcore.recipes.shell.tokens import Token, tokens_of

__all__ = ["Commands", "Started"]

_MAX_DEPTH: Final = 16
"""Functions and scripts in one another."""
_IDLE_FILES: Final = frozenset({"activate", ".bashrc", ".bash_profile", ".profile", "profile", "bashrc", "conda.sh",
                                "mamba.sh", "micromamba.sh", "modules.sh", "lmod.sh", "z00_lmod.sh", "setvars.sh",
                                "nvm.sh"})
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
class Commands(ABC):
    """Commands of a script that is being read, and its state.

    `within`: as in `Started`; `around`: words around a script in a script; `headers`: `#SBATCH` lines of scripts in it.
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

    @abstractmethod
    def take(self, nodes: Sequence[Node]) -> bool | None:
        """Takes statements up to one that ends them; truth of the last."""

    def command(self, node: Command) -> bool | None:
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
        if name == "read" and node.document is not None and reads_all(words):
            variables.values[words[-1].text] = trimmed(variables.document(node.document)) or (Piece("", words[0].line),)
            return None
        if name in CHANGES or (name == "printf" and len(words) > 2 and words[1].text == "-v"):
            return CHANGES["read" if name == "printf" else name](variables, words, self.within)
        if name in ("source", "."):
            self._source(words)
            return None
        if name in ("exit", "return", "break", "continue"):
            self.ended = name
            levels = [one.text for one in words[1:]]
            self.is_torn = self.is_torn or (name in ("break", "continue") and levels not in ([], ["1"]))
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
        changed = {name: value for name, value in self.variables.values.items() if assigned and name in self.before}
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
            told = f"{name}: more than {_MAX_DEPTH} files that source each other"
            raise InputError(Problem(f"{self.variables.path}:{line}", told))
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
        self.headers += [(inner.header, node.line)] if inner.header else []  # goes before those of the script
        self.variables.values = self.variables.seen_by_commands()
        self.functions = {name: body for name, body in functions.items() if name in self.variables.exported}
        self._within(inner.arguments, nodes)
        self.remember(values)
        self.variables.values, self.functions, self.ended, self.around = values, functions, ended, was_around

    def remember(self, outer: Mapping[str, tuple[Piece, ...]]) -> None:
        """Keeps variables that an inner shell exports, which are lost behind it, as set for its commands."""
        self.before |= {name: value for name, value in self.variables.values.items()
                        if name in self.variables.exported and outer.get(name) is not value}

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
            variables.values = joined(paths, variables, line, self.reason("condition", line))
        elif paths:
            variables.values = paths[0]
        self.ended = "" if paths else "exit"
        variables.arguments, self.returned, self.hidden = outer if is_function or arguments is not outer[0] else (
            variables.arguments, *outer[1:])
        self.depth -= 1

    def reason(self, what: str, line: int) -> str:
        told = ", which the script alone does not decide" if what == "condition" else ""
        return f"the {what} at {self.variables.place(line)}{told}"
