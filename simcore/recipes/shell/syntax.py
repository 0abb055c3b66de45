"""Syntax of a shell script: commands, lists, conditions, cases, loops and functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.shell.tokens import Token

__all__ = ["Case", "Chain", "Command", "Function", "Group", "If", "Loop", "Node", "nodes_of"]

_MAX_DEPTH: Final = 32
"""Conditions, loops and groups in one another."""
_ENDS: Final = frozenset({"fi", "done", "esac", "then", "do", "else", "elif", "}"})
_SEPARATORS: Final = frozenset({"\n", ";", "&", "|", "|&", "<", ">", ">>", "&>", "&>>", ">&", "<&", ">|", "<>", "<<<"})


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its words and arrays in order, and the text that is its input, if it is in the script."""

    line: int
    words: tuple[Token, ...]
    document: Token | None = None


@dataclass(frozen=True, slots=True)
class If:
    """Condition and body of `if` and of each `elif`, and the body of `else`."""

    line: int
    branches: tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]
    otherwise: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A word, and for each arm its patterns and its body."""

    line: int
    subject: Token
    arms: tuple[tuple[tuple[Token, ...], tuple[Node, ...]], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: `word` is for, while, until or select; `names`: the words after it, `condition` of while and until."""

    line: int
    word: str
    names: tuple[Token, ...]
    condition: tuple[Node, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is defined."""

    line: int
    name: str
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Commands in braces, or in round brackets (`is_subshell`); `is_beside`: the script goes on meanwhile (`&`)."""

    line: int
    body: tuple[Node, ...]
    is_subshell: bool = False
    is_beside: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Commands joined by `&&` and `||`; each further one with the operator before it."""

    line: int
    first: Node
    rest: tuple[tuple[str, Node], ...]


Node = Command | If | Case | Loop | Function | Group | Chain


def nodes_of(tokens: list[Token], path: str) -> tuple[Node, ...]:
    """Statements of a script. InputError, with a line, for what is no shell script."""
    parser = _Parser(tokens, path)
    found = parser.statements(frozenset(), 0)
    if (token := parser.peek()) is not None:
        raise parser.fail(token, f"{token.text!r} without a beginning")
    return found


class _Parser:
    def __init__(self, tokens: list[Token], path: str) -> None:
        self.tokens, self.path, self.at = tokens, path, 0

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def statements(self, ends: frozenset[str], depth: int) -> tuple[Node, ...]:
        """Statements up to one of the words or operators `ends`, which is left standing."""
        if depth > _MAX_DEPTH:
            raise self.fail(self.tokens[min(self.at, len(self.tokens) - 1)], f"more than {_MAX_DEPTH} levels")
        found: list[Node] = []
        is_fed = False
        while (token := self.peek()) is not None and token.text not in ends:
            if token.kind == "operator" and token.text in _SEPARATORS:
                self.at += 1
                if token.text in ("&", "|", "|&") and found:
                    found[-1] = _apart(found[-1], is_piped=token.text != "&")
                is_fed = token.text in ("|", "|&") or (is_fed and token.text == "\n")
            elif token.kind == "operator" and token.text in (")", ";;"):
                break
            else:
                found.append(_fed(found[-1], self._chain(depth)) if is_fed and found else self._chain(depth))
                is_fed = False
        return tuple(found)

    def _chain(self, depth: int) -> Node:
        first = self._statement(depth)
        rest: list[tuple[str, Node]] = []
        while (token := self.peek()) is not None and token.kind == "operator" and token.text in ("&&", "||"):
            self.at += 1
            while (following := self.peek()) is not None and following.text == "\n":
                self.at += 1
            rest.append((token.text, self._statement(depth)))
        return Chain(first.line, first, tuple(rest)) if rest else first

    def _statement(self, depth: int) -> Node:
        token = self.peek()
        if token is None:
            raise InputError(Problem(self.path, "not read as a shell script: it ends within a statement"))
        if token.kind == "word":
            if token.text == "if":
                return self._if(depth)
            if token.text == "case":
                return self._case(depth)
            if token.text in ("for", "while", "until", "select"):
                return self._loop(depth)
            if token.text == "{" or self._is_function():
                return self._braces(depth)
        if token.kind == "operator" and token.text == "(":
            self.at += 1
            body = self.statements(frozenset(), depth + 1)
            self._expect(")")
            return Group(token.line, body, is_subshell=True)
        return self._command()

    def _command(self) -> Command:
        words: list[Token] = []
        document: Token | None = None
        start = self.at
        while (token := self.peek()) is not None and token.kind != "operator":
            if token.kind in ("document", "literal"):
                document = token
            else:
                words.append(token)
            self.at += 1
        if token is not None and self.at == start:
            raise self.fail(token, f"no command begins with {token.text!r}")
        if words and words[0].text in _ENDS:
            raise self.fail(words[0], f"no command begins with {words[0].text!r}")
        return Command(words[0].line if words else self.tokens[start].line, tuple(words), document)

    def _if(self, depth: int) -> If:
        line, branches, otherwise = self._expect("if"), [], tuple[Node, ...]()
        while True:
            condition = self.statements(frozenset({"then"}), depth + 1)
            self._expect("then")
            branches.append((condition, self.statements(frozenset({"elif", "else", "fi"}), depth + 1)))
            token = self._next("fi")
            if token.text == "else":
                otherwise = self.statements(frozenset({"fi"}), depth + 1)
                self._expect("fi")
            if token.text != "elif":
                return If(line, tuple(branches), otherwise)

    def _case(self, depth: int) -> Case:
        line, arms = self._expect("case"), list[tuple[tuple[Token, ...], tuple[Node, ...]]]()
        subject = self._next("a word")
        self._skip_lines()
        self._expect("in")
        while True:
            self._skip_lines()
            token = self._next("esac")
            if token.text == "esac":
                return Case(line, subject, tuple(arms))
            patterns = [] if token.text == "(" else [token]
            while (token := self._next(")")).text != ")":
                patterns += [token] if token.kind == "word" else []
            arms.append((tuple(patterns), self.statements(frozenset({";;", "esac", ";&", ";;&"}), depth + 1)))
            following = self.peek()
            if following is not None and following.text in (";&", ";;&"):
                raise self.fail(following, f"{following.text!r}, which goes on with the next arm")
            self.at += following is not None and following.text == ";;"

    def _loop(self, depth: int) -> Loop:
        token = self._next("for")
        names, condition = list[Token](), tuple[Node, ...]()
        if token.text in ("while", "until"):
            condition = self.statements(frozenset({"do"}), depth + 1)
        else:
            while (following := self.peek()) is not None and following.text != "do":
                names += [following] if following.kind != "operator" else []
                self.at += 1
        self._expect("do")
        body = self.statements(frozenset({"done"}), depth + 1)
        self._expect("done")
        return Loop(token.line, token.text, tuple(names), condition, body)

    def _is_function(self) -> bool:
        texts = [one.text for one in self.tokens[self.at:self.at + 3]]
        return texts[:1] == ["function"] or (texts[1:3] == ["(", ")"] and self.tokens[self.at].kind == "word")

    def _braces(self, depth: int) -> Node:
        """A function, or a group in braces."""
        token, name = self._next("{"), ""
        if token.text != "{":
            name = self._next("a name").text if token.text == "function" else token.text
            while (following := self.peek()) is not None and following.text in ("(", ")", "\n"):
                self.at += 1
            self._expect("{")
        body = self.statements(frozenset({"}"}), depth + 1)
        self._expect("}")
        return Function(token.line, name, body) if name else Group(token.line, body)

    def _next(self, expected: str) -> Token:
        token = self.peek()
        if token is None:
            raise InputError(Problem(self.path, f"not read as a shell script: it ends before {expected!r}"))
        self.at += 1
        return token

    def _expect(self, text: str) -> int:
        token = self._next(text)
        if token.text != text:
            raise self.fail(token, f"expected {text!r}, got {token.text[:40]!r}")
        return token.line

    def _skip_lines(self) -> None:
        while (token := self.peek()) is not None and token.text in ("\n", ";"):
            self.at += 1

    def fail(self, token: Token, message: str) -> InputError:
        return InputError(Problem(f"{self.path}:{token.line}", f"not read as a shell script: {message}"))


def _apart(node: Node, *, is_piped: bool) -> Node:
    """Statement that runs in a shell of its own: before a pipe its last command alone, before `&` all of it."""
    if isinstance(node, Chain) and is_piped:
        *rest, (sign, last) = node.rest
        return Chain(node.line, node.first, (*rest, (sign, _apart(last, is_piped=True))))
    if isinstance(node, Group) and node.is_subshell:
        return replace(node, is_beside=not is_piped)
    return Group(node.line, (node,), is_subshell=True, is_beside=not is_piped)


def _fed(before: Node, node: Node) -> Node:
    """Statement behind a pipe; the input of its first command is the here-document that `cat` passes on."""
    if isinstance(node, Chain):
        return Chain(node.line, _fed(before, node.first), node.rest)
    while isinstance(before, Chain | Group) and (isinstance(before, Chain) or len(before.body) == 1):
        before = before.rest[-1][1] if isinstance(before, Chain) else before.body[0]
    if isinstance(before, Command) and before.document and isinstance(node, Command) and node.document is None and (
            [word.text for word in before.words] == ["cat"]):
        node = Command(node.line, node.words, before.document)
    return _apart(node, is_piped=True)
