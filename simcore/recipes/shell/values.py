"""Values of a script's variables and arguments, and what the script alone does not tell of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from simcore.recipes.shell.pieces import Piece, unknown, unquoted

__all__ = ["Values"]

_OF_SHELLS: Final = frozenset({
    "HOME", "PWD", "OLDPWD", "USER", "LOGNAME", "HOSTNAME", "PATH", "SHELL", "RANDOM", "SECONDS", "BASHPID", "UID",
    "EUID", "PPID", "LINENO", "BASH_SOURCE", "BASH_VERSION", "OSTYPE", "HOSTTYPE", "SHLVL", "FUNCNAME", "BASH_REMATCH",
    "PIPESTATUS", "EPOCHSECONDS", "SRANDOM", "REPLY"})
"""Variables that a shell or a login sets, so that a default beside them does not count."""
_HELD: Final = "__held_"


@dataclass
class Values:
    """Variables of a script while it is read: texts and arrays by name, both as pieces; an item as `NAME[KEY]`.

    `path`: name of the script in messages. `given`: values of the environment that the user says; they also answer for
    what the script does not decide. `arguments`: items of `$@`, as pieces of an array; None for the script's own, of
    which nothing is known. `sourced`: line of the first file that the script sources and that is not there, 0 for none.
    `exported`: names that commands see, all new ones with `exports_all`; `integers`, `tables`: names declared with -i,
    and with -A. `beside`: texts of the files that the user names beside the script, by their names; `inside`: line of
    the script that sources one of them, and its name, while it is read.
    """

    path: str
    values: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[tuple[Piece, ...], ...] | None = None
    sourced: int = 0
    exported: set[str] = field(default_factory=set)
    integers: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    exports_all: bool = False
    inside: tuple[int, str] | None = None
    beside: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sets what the user says."""
        self.values.update({name: (Piece(value, 1),) for name, value in self.given.items()})
        self.exported.update(self.given)

    def place(self, line: int) -> str:
        """Line in a message, with its file unless it is the script's own."""
        return f"line {line} of {self.inside[1]}" if self.inside else f"line {line}"

    def value(self, name: str, line: int) -> tuple[Piece, ...]:
        """Value of a variable; one piece that says so for a variable that the script does not set."""
        if name in self.values:
            return unquoted(self.values[name])
        if name in ("@", "*", "#") or name.isdigit():
            return self._argument(name, line)
        if name == "OPTIND":
            return (Piece("1", line),)
        if name in _OF_SHELLS or name in ("?", "!", "-", "$"):
            return (unknown(f"${name}", line, f"${name}, which the shell sets (--set env.{name}=VALUE gives it)"),)
        if self.sourced:
            return (unknown(f"${name}", line, f"${name}, which the file that is sourced at line {self.sourced} may set "
                                              f"(give that file too, or --set env.{name}=VALUE)"),)
        return (Piece(f"${name}", line, unknown=f"${name}, which the script does not set (--set env.{name}=VALUE gives "
                                                "it)", is_unset=True),)

    def forget(self, line: int, what: str) -> None:
        """Makes all variables unknown that a file may set, which is read at a line; those the user says stay."""
        self.sourced = self.sourced or line
        for name in self.values:
            if name in self.given:
                self.values[name] = (Piece(self.given[name], line),)
            elif not name.startswith(_HELD):
                self.values[name] = (unknown(f"${name}", line, f"${name}, which {what} may change (give that file too, "
                                                               f"or --set env.{name}=VALUE)"),)

    def make_unknown(self, name: str, line: int, reason: str) -> None:
        """Sets a variable to what the user says of it, or to a value that is not known, for a reason."""
        said = self.given.get(name)
        self.values[name] = (Piece(said, line) if said is not None else unknown(f"${name}", line, reason),)

    def retold(self, pieces: Sequence[Piece]) -> str:
        """Text that a shell reads once more: parts that are not known are variables there that hold them."""
        text = list[str]()
        for piece in pieces:
            if not piece.unknown:
                text.append(" " if piece.is_break else piece.text)
                continue
            name = f"{_HELD}{len(self.values)}"
            self.values[name] = (piece,)
            self.exported.add(name)
            text.append(f"${{{name}}}")
        return "".join(text)

    def seen_by_commands(self) -> dict[str, tuple[Piece, ...]]:
        """Variables that a shell has which the script starts: those that are exported and no arrays."""
        return {name: value for name, value in self.values.items()
                if name in self.exported and not any(piece.is_break for piece in value)}

    def held(self) -> list[str]:
        """Names of all variables of the script."""
        return [name for name in self.values if not name.startswith(_HELD) and "[" not in name]

    def _argument(self, name: str, line: int) -> tuple[Piece, ...]:
        """Value of `$@`, `$*`, `$#` or `$1`; one piece that says so where an item before may be several words."""
        items = self.arguments or ()
        if name in ("@", "*"):
            return tuple(piece for item in items for piece in (*unquoted(item), Piece("", line, is_break=True)))
        if name == "0":
            return (unknown("$0", line, "the name of the script"),)
        if self.arguments is None:
            return (Piece("0", line) if name == "#" else unknown(f"${name}", line, f"argument {name} of the script"),)
        number = len(items) if name == "#" else int(name[:9])
        several = next((piece for item in items[:number] for piece in item if piece.unknown and not piece.is_quoted),
                       None)
        if several is not None:
            return (unknown(f"${name}", line, several.unknown),)
        if name == "#":
            return (Piece(str(number), line),)
        return unquoted(items[number - 1]) if number <= len(items) else (Piece("", line, is_unset=True),)
