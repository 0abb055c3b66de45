"""Takes a shell script's statements in order: values of its variables, and the commands that it would start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.shell.conditions import holds, matches, text_of
from simcore.recipes.shell.expansion import Piece, Variables, Word
from simcore.recipes.shell.syntax import Case, Chain, Command, Function, Group, If, Loop, Node, nodes_of
from simcore.recipes.shell.tokens import Token, tokens_of

__all__ = ["Script", "Started", "read_script"]

_MOST: Final = 4_000
"""Statements that are taken."""
_MAX_DEPTH: Final = 16
"""Functions and scripts in one another."""
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARES: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
_RUNS_TEXT: Final = frozenset({"bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash"})
_SBATCH: Final = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)


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


@dataclass(frozen=True, slots=True)
class Script:
    """Commands of a script in order, its variables at its end as words, and the words of its `#SBATCH` lines."""

    commands: tuple[Started, ...]
    variables: Mapping[str, tuple[Word, ...]]
    sbatch: tuple[Word, ...]


def read_script(text: str, path: str, variables: Mapping[str, str] | None = None) -> Script:
    """Reads a script. InputError, with a line, for a text that is no shell script, or that expands beyond limits.

    `variables`: values that the environment gives, as far as they are known.
    """
    if "\0" in text:
        raise InputError(Problem(path, "not read as a shell script: it has a NUL byte"))
    given: dict[str, tuple[Piece, ...]] = {name: (Piece(value, 1),) for name, value in (variables or {}).items()}
    run = _Run(Variables(path, given))
    run.take(nodes_of(tokens_of(text, path), path))
    held = {name: tuple(run.variables.words([Token("word", f"${{{name}[@]}}", 1)])) for name in run.variables.values}
    headers = tuple(Word(word, text.count("\n", 0, found.start()) + 1)
                    for found in _SBATCH.finditer(text) for word in found[1].split("#")[0].split())
    return Script(tuple(run.commands), held, headers)


@dataclass
class _Run:
    """State of a script that is being read. `within`: as in `Started`; `around`: words around a script in a script."""

    variables: Variables
    commands: list[Started] = field(default_factory=list)
    functions: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    within: str = ""
    around: tuple[Word, ...] = ()
    depth: int = 0
    taken: int = 0

    def take(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.taken += 1
            if self.taken > _MOST:
                raise InputError(Problem(f"{self.variables.path}:{node.line}", f"more than {_MOST:,} statements"))
            self._one(node)

    def _one(self, node: Node) -> bool | None:
        """Takes a statement; truth of it, where it is a condition that the script decides."""
        if isinstance(node, Command):
            return self._command(node)
        if isinstance(node, Chain):
            self._chain(node)
        elif isinstance(node, If):
            self._if(node)
        elif isinstance(node, Case):
            self._case(node)
        elif isinstance(node, Loop):
            self._loop(node)
        elif isinstance(node, Function):
            self.functions[node.name] = node.body
        else:
            self.take(node.body)
        return None

    # ---- structures --------------------------------------------------------------------------------------------
    def _chain(self, node: Chain) -> None:
        truth = self._one(node.first)
        for sign, following in node.rest:
            if truth is not None and truth == (sign == "||"):
                continue
            if truth is None and _is_condition(node.first):
                if not _leaves(following):
                    self._maybe([following], node.line)
            else:
                truth = self._one(following)

    def _if(self, node: If) -> None:
        for condition, body in node.branches:
            truth = self._truth(condition)
            if truth is False or (body and _leaves(body[-1]) and truth is not None):
                continue
            if truth:
                return self.take(body)
            return self._open_branches(node)
        return self.take(node.otherwise)

    def _open_branches(self, node: If) -> None:
        """Takes all branches of a condition that more than the script decides, but for those that end the script."""
        for condition, body in node.branches:
            if self._truth(condition) is not False and not (body and _leaves(body[-1])):
                self._maybe(body, node.line)
        self._maybe(node.otherwise, node.line)

    def _truth(self, condition: Sequence[Node]) -> bool | None:
        last = condition[-1] if condition else None
        if isinstance(last, Command):
            return holds(last.words, self.variables) if last.words else None
        if isinstance(last, Chain):
            signs = {sign for sign, _ in last.rest}
            parts = [self._truth([one]) for one in (last.first, *(following for _, following in last.rest))]
            if signs == {"&&"}:
                return False if False in parts else None if None in parts else True
            if signs == {"||"}:
                return True if True in parts else None if None in parts else False
        return None

    def _case(self, node: Case) -> None:
        text = text_of(self.variables.pieces(node.subject.text, node.subject.line))
        for patterns, body in node.arms:
            given = [text_of(self.variables.pieces(pattern.text, pattern.line)) for pattern in patterns]
            found = [None if pattern is None else matches(text, pattern) for pattern in given]
            if True in found:
                return self.take(body)
            if None in found and not (body and _leaves(body[-1])):
                self._maybe(body, node.line)
        return None

    def _loop(self, node: Loop) -> None:
        if node.word in ("while", "until") and self._truth(node.condition) is (node.word == "until"):
            return
        if node.word == "for" and len(node.names) > 2 and not self.variables.words(node.names[2:]):
            return
        reason = f"the loop at line {node.line}"
        if node.word in ("for", "select") and node.names:
            self.variables.values[node.names[0].text] = (Piece(f"${node.names[0].text}", node.line, unknown=reason),)
        self._maybe(node.body, node.line, reason)

    def _maybe(self, nodes: Sequence[Node], line: int, reason: str = "") -> None:
        """Takes statements of which more than the script decides whether, or how often, they run."""
        reason = reason or f"the condition at line {line}, which the script alone does not decide"
        before, was_within = dict(self.variables.values), self.within
        self.within = self.within or reason
        self.take(nodes)
        self.within = was_within
        for name, value in self.variables.values.items():
            known = before.get(name)
            if value is known:
                continue
            kept = known if known is not None and value[:len(known)] == known else ()
            further = value[len(kept):] or (Piece("", line),)
            if not kept and _has_text(known) and not _has_text(value):  # emptied, or still what it was
                further = (Piece(f"${name}", line),)
            self.variables.values[name] = (*kept, *(
                piece if piece.is_break else replace(piece, unknown=piece.unknown or reason) for piece in further))

    # ---- commands ----------------------------------------------------------------------------------------------
    def _command(self, node: Command) -> bool | None:
        words = list(node.words)
        while words and (is_array := words[0].kind == "array" or bool(_ASSIGNED.match(words[0].text))):
            self._assign(words.pop(0), is_array=is_array)
        if not words:
            return None
        if words[0].kind in ("condition", "arithmetic") or words[0].text in ("[", "test", "!", "true", "false"):
            return holds(words, self.variables)
        if words[0].text in _DECLARES:
            for token in words[1:]:
                if token.kind == "array" or _ASSIGNED.match(token.text):
                    self._assign(token, is_array=token.kind == "array")
            return None
        if words[0].text in ("unset", "shift", "set", "source", "."):
            self._change(words)
            return None
        tokens = [token for token in words if token.kind == "word"]
        self._start(self.variables.words(tokens), node, tokens)
        return None

    def _assign(self, token: Token, *, is_array: bool) -> None:
        found = _ASSIGNED.match(token.text)
        if found is None:  # one item of an array
            return
        name, appends = found[1], found[2] == "+"
        if is_array and token.kind == "array":
            value = self.variables.items(token.items)
        else:
            value = tuple(self.variables.pieces(token.text[found.end():], token.line))
        old = self.variables.values.get(name, ()) if appends else ()
        value = (*old, *value)
        self.variables.values[name] = value if value or token.kind == "array" else (Piece("", token.line),)

    def _change(self, words: Sequence[Token]) -> None:
        """Takes a command that changes variables or `$@`. InputError for `$@` that more than the script decides."""
        variables, name, line = self.variables, words[0].text, words[0].line
        if name == "unset":
            for token in words[1:]:
                variables.values.pop(token.text, None)
        elif name in ("source", "."):
            is_idle = len(words) > 1 and words[1].text.strip("\"'").endswith("/activate")  # of Python: paths alone
            variables.sourced = variables.sourced or (0 if is_idle else line)
        elif name == "set" and [one.text for one in words[1:2]] == ["--"]:
            self._expect_simple(line, f"set lies in {self.within}" if self.within else "")
            variables.arguments = variables.given_to(words[2:])
        elif name == "shift" and variables.arguments:
            number = words[1].text if len(words) > 1 else "1"
            self._expect_simple(line, f"shift lies in {self.within}" if self.within else
                                "" if number.isdigit() else f"shift {number[:40]}")
            taken = int(number[:9])  # by more than there are it does nothing
            variables.arguments = variables.arguments[taken if taken <= len(variables.arguments) else 0:]

    def _expect_simple(self, line: int, wrong: str) -> None:
        """InputError for arguments that more than the script decides, if `wrong` says how."""
        if wrong:
            told = f"{wrong}: what the arguments then are is not known"
            raise InputError(Problem(f"{self.variables.path}:{line}", told))

    def _start(self, words: list[Word], node: Command, tokens: Sequence[Token]) -> None:
        if not words:
            return
        name = words[0].text
        if name in self.functions and self.depth < _MAX_DEPTH:
            self._within(self.variables.given_to(tokens)[1:], self.functions[name])
            return
        inner = next(_texts(words), None)
        if inner is None and node.document and name in (*_RUNS_TEXT, "sbatch", "srun"):
            inner = (words, node.document.text, node.document.line)
        if inner is None or self.depth >= _MAX_DEPTH:
            self.commands.append(Started(tuple(words), self.around, self.within))
            return
        before, text, line = inner
        was_around, self.around = self.around, (*self.around, *before)
        own = self.variables.arguments if name == "eval" else _arguments_behind(words, len(before))
        self._within(own, nodes_of(tokens_of(text, self.variables.path, line), self.variables.path))
        self.around = was_around

    def _within(self, arguments: tuple[tuple[Piece, ...], ...] | None, nodes: Sequence[Node]) -> None:
        """Takes the statements of a function, or of a script in the script, with its own `$@`."""
        outer, self.variables.arguments, self.depth = self.variables.arguments, arguments, self.depth + 1
        self.take(nodes)
        self.variables.arguments, self.depth = outer, self.depth - 1


def _texts(words: list[Word]) -> Iterator[tuple[list[Word], str, int]]:
    """Words before a script that is an argument (`bash -c TEXT`, `eval WORDS`), that script, and its line."""
    if words[0].text == "eval":
        yield [], " ".join(word.text for word in words[1:]), words[0].line
    for number, word in enumerate(words[:-2]):
        if word.text in _RUNS_TEXT and re.fullmatch(r"-[a-z]*c", words[number + 1].text):
            if not words[number + 2].unknown or " " in words[number + 2].text:
                yield words[:number], words[number + 2].text, words[number + 2].line
            return


def _arguments_behind(words: Sequence[Word], shell: int) -> tuple[tuple[Piece, ...], ...] | None:
    """Items of `$@` of `bash -c TEXT NAME ITEMS`, whose shell is at index `shell`; None where it has no such words."""
    behind = words[shell + 4:]
    return tuple((Piece(word.text, word.line, not word.may_hold, word.unknown, word.is_unset),)
                 for word in behind) if behind else None


def _has_text(value: Sequence[Piece] | None) -> bool:
    return any(piece.text for piece in value or ())


def _is_condition(node: Node) -> bool:
    return isinstance(node, Command) and bool(node.words) and (
        node.words[0].kind in ("condition", "arithmetic") or node.words[0].text in ("[", "test", "!"))


def _leaves(node: Node) -> bool:
    """True for statements that end the script, as checks of what it needs do."""
    if isinstance(node, Group):
        return bool(node.body) and _leaves(node.body[-1])
    return isinstance(node, Command) and bool(node.words) and node.words[0].text in ("exit", "return")
