"""The draft of a scenario while a recipe is read: each value with its origin, and what became of each key taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from simcore.errors import Problem
from simcore.frameworks.registry import has_option
from simcore.inputs.block import shorten
from simcore.inputs.sweep import split_key
from simcore.inputs.yaml_parser import KeyPath
from simcore.recipes.answers import Answer, Answers
from simcore.recipes.imported import Decided, Imported, Left, Origin, Question
from simcore.recipes.reader import Reader, Taken

__all__ = ["Draft"]

_HINTED: Final = 200
"""Unknown keys that are held against known spellings."""


@dataclass
class Draft:
    """Scenario that is being put together from a recipe. `format` and `path` are those of `Imported`.

    A format writes a key of the scenario by `put` (the recipe says it), `infer` (it follows from what the recipe says),
    `default` (the release's) or `ask` (the user must say). A key of the recipe that gives nothing is passed to `idle`
    or `unmodelled` with the reason, one that cannot be followed to `refuse`, one that decides over others, or says what
    is simulated anyway, to `use`. `imported` checks that every key that a reader handed out was passed to one of these,
    and lists those that no origin names (`Imported.decides`).
    """

    format: str
    path: str
    answers: Answers
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)
    barred: list[Problem] = field(default_factory=list)
    wrong: list[Problem] = field(default_factory=list)
    _used: dict[tuple[int, KeyPath], list[str]] = field(default_factory=dict)
    _reasons: dict[tuple[int, KeyPath], str] = field(default_factory=dict)
    _given_up: set[tuple[int, KeyPath]] = field(default_factory=set)

    # ---- keys of the scenario ----------------------------------------------------------------------------------
    def put(self, key: str, taken: Taken[Any] | None, value: Any = None, source: str = "") -> None:
        """Writes a key that the recipe states; None writes nothing. `value`: what the recipe's word means here."""
        if taken is not None:
            self._tell([taken], key)
            self._write(key, taken.value if value is None else value,
                        Origin("recipe", taken.where, taken.key, source))

    def infer(self, key: str, value: Any, rule: str, *by: Taken[Any] | None, source: str = "", where: str = "") -> None:
        """Writes a key that follows by a rule from others of the recipe, which count as used.

        `where`: the place that messages name; "": that of the first of them.
        """
        taken = [one for one in by if one is not None]
        self._tell(taken, key)
        where = where or (taken[0].where if taken else self.path)
        self._write(key, value, Origin("inferred", where, rule, source))

    def default(self, key: str, value: Any, release: str, source: str) -> None:
        """Writes the release's own default, where the simulation has another one, or the reader should see it."""
        self._write(key, value, Origin("default", self.path, release, source))

    def answered(self, key: str, answer: Answer, value: Any = None) -> None:
        """Writes a key that the user has answered; `value`: what follows from the answer."""
        self._write(key, answer.value if value is None else value, Origin("asked", answer.where, ""))

    def ask(self, key: str, option: str, text: str, by: Taken[Any] | None = None) -> None:
        """Asks for a key that the recipe leaves open, unless `--set` gives it. `by`: the key that leaves it open."""
        self._tell([by] if by else [], key)
        if key not in self.answers.settings:
            self.questions.append(Question(key, option, by.where if by else self.path, text))

    def leave_out(self, key: str) -> None:
        """Takes back a key that was written."""
        *path, last = map(str, split_key(key))
        inner = self.values
        for name in path:
            inner = inner.get(name, {})
        inner.pop(last, None)
        self.origins.pop((*path, last), None)

    # ---- keys of the recipe that give nothing ------------------------------------------------------------------
    def idle(self, taken: Taken[Any] | Iterable[Taken[Any]] | None, why: str) -> None:
        """Lists keys on which nothing depends that is simulated."""
        self._leave("no effect", taken, why)

    def unmodelled(self, taken: Taken[Any] | Iterable[Taken[Any]] | None, why: str) -> None:
        """Lists keys that change what upstream does by little, which the answer leaves out."""
        self._leave("not modelled", taken, why)

    def unmodelled_default(self, key: str, value: Any, why: str) -> None:
        """Lists a key that the recipe does not have, whose default changes what upstream does by little."""
        self.left.append(Left("not modelled", self.path, key, shorten(value), f"the default: {why}"))

    def release_default(self, key: str, value: Any, release: str, source: str) -> None:
        """Lists a key that the recipe does not have, whose default decides and is what the simulation takes by itself.

        `source`: file of the release that says it.
        """
        self.left.append(Left("default", self.path, key, shorten(value), f"default of {release} ({source})"))

    def refuse(self, taken: Taken[Any] | None, message: str, *, always: bool = False) -> None:
        """Refuses what the recipe asks for and no scenario can say: NotYet at its line. `always`: even if loose."""
        if taken is not None:
            self._given_up.add(_key(taken))
            problem = Problem(taken.where, f"not yet: {taken.key}: {message}")
            (self.barred if always else self.refused).append(problem)

    def refuses(self, key: str) -> bool:
        """True if a key of the recipe was refused."""
        return any(f": {key}: " in problem.message for problem in (*self.barred, *self.refused))

    def has_option(self, option: str) -> bool:
        """True if the framework that the recipe, or `--set`, has named so far has an option."""
        return has_option(str(self.values.get("framework", self.answers.settings.get("framework", ""))), option)

    @property
    def named_model(self) -> str:
        """Name or path of the model, "" where none is said yet."""
        name = self.values.get("model", self.answers.settings.get("model", ""))
        return name.get("config", "") if isinstance(name, dict) else str(name)

    def use(self, *taken: Taken[Any] | None, why: str = "") -> None:
        """Tells that values decide over others that are told elsewhere, or say what is simulated anyway.

        `why`: what a value does, for a key that no key of the scenario comes from; the first that is given is listed.
        """
        found = [one for one in taken if one is not None]
        self._tell(found)
        for one in found if why else ():
            self._reasons.setdefault(_key(one), why)

    def fail(self, where: str, message: str) -> None:
        """Records a problem of values that the format does not take, or that contradict each other."""
        self.wrong.append(Problem(where, message))

    # ---- result ------------------------------------------------------------------------------------------------
    def imported(self, readers: Sequence[Reader], *, loose: bool = False) -> Imported:
        """Scenario as far as it came. `loose`: keys that are unknown or not modelled are listed instead of refused.

        AssertionError if a format took a value and did not say what became of it, or said two things.
        """
        self._check(readers)
        rest = [one for reader in readers for one in reader.untouched() if not _says_nothing(one)]
        unknown = [Problem(one.where, f"unknown key {one.key!r}: this reader of {self.format} recipes does not know it "
                                      f"(--loose leaves it out){_hint(one) if number < _HINTED else ''}")
                   for number, one in enumerate(rest)]
        taken = {_key(one) for reader in readers for one in reader.handed_out()}
        nulls = [one for reader in readers for one in (*reader.unsaid(), *filter(_says_nothing, reader.untouched()))]
        left = [*self.left, *(Left("no effect", one.where, one.key, shorten(one.value), "says nothing")
                              for one in nulls if _key(one) not in taken)]
        used = [one.key for reader in readers for one in reader.handed_out() if _key(one) in self._used]
        if loose:
            left += [Left("unknown", one.where, one.key, shorten(one.value), "left out by --loose",
                          one.reader.near(one)) for one in rest]
            left += [Left("unknown", one.where, "", "", f"{one.message}; left out by --loose") for one in self.refused]
        wrong = [*self.wrong, *(problem for reader in readers for problem in reader.problems)]
        decides = tuple(self._decides(readers))
        return Imported(self.format, self.path, self.values, self.origins, left=tuple(left), used=tuple(used),
                        decides=decides,
                        questions=tuple(self.questions), unknown=() if loose else tuple(unknown),
                        refused=(*self.barred, *(() if loose else self.refused)), wrong=tuple(wrong))

    # ---- inner -------------------------------------------------------------------------------------------------
    def _write(self, key: str, value: Any, origin: Origin) -> None:
        path = tuple(map(str, split_key(key)))
        inner = self.values
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
        self.origins[path] = origin

    def _tell(self, taken: Sequence[Taken[Any]], scenario: str = "") -> None:
        for one in taken:
            self._used.setdefault(_key(one), []).extend([scenario] if scenario else [])

    def _decides(self, readers: Sequence[Reader]) -> Iterator[Decided]:
        """Keys that are used, and that neither an origin nor a list names, in the order in which they were read."""
        named = {(one.where, one.key) for one in self.left}
        named |= {(one.where, one.text) for one in self.origins.values() if one.kind == "recipe"}
        for one in (one for reader in readers for one in reader.handed_out()):
            if _key(one) in self._used and (one.where, one.key) not in named:
                yield Decided(one.where, one.key, shorten(one.value), tuple(dict.fromkeys(self._used[_key(one)])),
                              self._reasons.get(_key(one), ""))

    def _check(self, readers: Sequence[Reader]) -> None:
        taken = [one for reader in readers for one in reader.handed_out()]
        told, twice = self._used.keys() | self._given_up, self._used.keys() & self._given_up
        silent = [one.key for one in taken if _key(one) not in told]
        both = [one.key for one in taken if _key(one) in twice]
        assert not silent, f"the format {self.format} dropped {', '.join(silent)}"
        assert not both, f"the format {self.format} used and left out {', '.join(both)}"

    def _leave(self, kind: Literal["no effect", "not modelled"], taken: Taken[Any] | Iterable[Taken[Any]] | None,
               why: str) -> None:
        found = [] if taken is None else [taken] if isinstance(taken, Taken) else list(taken)
        self._given_up.update(map(_key, found))
        self.left += [Left(kind, one.where, one.key, shorten(one.value), why) for one in found]


def _says_nothing(one: Taken[Any]) -> bool:
    """True for a null at a key that the format has, which no block of the recipe asked for."""
    return one.value is None and len(one.path) == 1 and one.key in one.reader.fields


def _hint(taken: Taken[Any]) -> str:
    near = taken.reader.near(taken)
    return f"; did you mean {near!r}?" if near else ""


def _key(taken: Taken[Any]) -> tuple[int, KeyPath]:
    return id(taken.reader), taken.path
