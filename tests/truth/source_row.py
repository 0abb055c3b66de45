"""Rows of the collections of published runs, read so that nothing in them goes unnoticed.

Each converter has a vocabulary: for every key of a row what may stand there and what it means. Reading a key gives the
meaning. An unknown key, an unknown word, and a key that a rule has not read are errors (`Unheard`), which name row,
key, word and the known words: a converter never takes a default for what it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping


class Unheard(ValueError):
    """A key or a word of a row that its converter does not know."""


class Unsayable(Exception):
    """Why no scenario can be written."""


class Words:
    """Known words, each with its meaning. A meaning that is `Missing` leaves the rule: no scenario can be written."""

    def __init__(self, meanings):
        self.meanings = meanings

    def meaning(self, told):
        key = tuple(told) if isinstance(told, list) else told
        for word, meaning in self.meanings.items():
            if word == key and isinstance(word, bool) == isinstance(key, bool):  # 1 is not True
                return meaning
        raise Unheard(f"known: {', '.join(map(repr, self.meanings))}")

    def __or__(self, others):
        return Words(self.meanings | others)


class Always(Words):
    """The words that a rule is written for, where they make no difference to it: their meaning is themselves."""

    def __init__(self, *words):
        super().__init__({word: word for word in words})


class Opinion(Words):
    """What a collection thinks of its row; a rule need not agree."""


class Missing:
    """Meaning of a word with which no scenario can be written, with the reason."""

    def __init__(self, reason):
        self.reason = reason


class Number:
    """A number. `or_none`: or nothing, where a run has no such axis."""

    def __init__(self, *, or_none=False, text=False):
        self.or_none, self.text = or_none, text

    def meaning(self, told):
        if told is None and self.or_none:
            return None
        if self.text and isinstance(told, str) and told.isdecimal():
            return int(told)
        if isinstance(told, bool) or not isinstance(told, int | float):
            raise Unheard("known: numbers" + (", none" if self.or_none else ""))
        return told


class Figure(Number):
    """A number or nothing that a rule may leave alone: a measured one, of which there are several for one thing."""

    def __init__(self):
        super().__init__(or_none=True)


class Listed:
    """A list of known words, the meaning of each in order."""

    def __init__(self, words):
        self.words = Words(words) if isinstance(words, Mapping) else Always(*words)

    def meaning(self, told):
        if not isinstance(told, list):
            raise Unheard(f"known: lists of {', '.join(map(repr, self.words.meanings))}")
        return [self.words.meaning(one) for one in told]


class Block:
    """A block of further keys. `or_none`: or nothing, which is read as an empty block."""

    def __init__(self, vocabulary, *, or_none=False):
        self.vocabulary, self.or_none = vocabulary, or_none


class Prose:
    """Free text: names, addresses and remarks."""


class Unread:
    """A key that a rule leaves alone, with the reason. `kind`: of its words, which must be known all the same."""

    def __init__(self, reason, kind=None):
        self.reason, self.kind = reason, kind


class Refused:
    """A key with which no scenario can be written, with the reason."""

    def __init__(self, reason):
        self.reason = reason


def named(kind, reasons):
    """Vocabulary of keys of a kind with a reason, from the names of keys by reason, with spaces in between."""
    return {name: kind(reason) for reason, names in reasons.items() for name in names.split()}


class SourceRow(Mapping):
    """A row of a collection, or a block in it, whose words are all known.

    `told`: the row as the collection has it; `vocabulary`: by key; `name`: of the row, for errors. Raises Unheard at
    once for an unknown key or word.
    """

    def __init__(self, told, vocabulary, name, place=""):
        self._told, self._name, self._place, self._read, self._left = told, name, place, set(), set()
        self._known = {key: self._kind(key, vocabulary) for key in told}
        self._meanings = {key: self._meaning(key) for key in told}

    def _kind(self, key, vocabulary):
        if key not in vocabulary:
            raise Unheard(f"row {self._name}: unknown key {self._place}{key}: {self._told[key]!r}; known keys: "
                          f"{', '.join(vocabulary)}")
        return vocabulary[key]

    def _meaning(self, key):
        kind, told = self._known[key], self._told[key]
        kind = kind.kind if isinstance(kind, Unread) else kind
        if kind is None or isinstance(kind, Prose | Refused):
            return told
        if isinstance(kind, Block):
            if isinstance(told, Mapping) or (told is None and kind.or_none):
                return SourceRow(told or {}, kind.vocabulary, self._name, f"{self._place}{key}.")
            raise Unheard(f"row {self._name}: {self._place}{key}: {told!r} is no block; known keys: "
                          f"{', '.join(kind.vocabulary)}")
        try:
            return kind.meaning(told)
        except Unheard as known:
            raise Unheard(f"row {self._name}: {self._place}{key}: unknown word {told!r}; {known}") from None

    def __getitem__(self, key):
        if key not in self._told:
            raise KeyError(key)
        if isinstance(self._known[key], Unread):
            raise Unheard(f"row {self._name}: {self._place}{key} is listed as left alone, and is read")
        self._read.add(key)
        meaning = self._meanings[key]
        if isinstance(meaning, Missing):
            raise Unsayable(meaning.reason)
        return meaning

    def __contains__(self, key):
        return key in self._told

    def __iter__(self):
        return iter(self._told)

    def __len__(self):
        return len(self._told)

    def changed(self, vocabulary, **changes):
        """The same row with other words, by another vocabulary."""
        return SourceRow(self._told | changes, vocabulary, self._name)

    def told(self, key):
        """The word itself, as the collection has it."""
        self._read.add(key)
        return self._told[key]

    def leave(self, *keys):
        """Counts keys as read that a rule does not need for this row, and all that is in them."""
        self._left.update(keys)

    def check_all_read(self):
        """Raise Unheard for keys that say something (not None, not false) and are not read, Unsayable for refused."""
        if unread_keys := list(self._unread()):
            raise Unheard(f"row {self._name}: keys that the rule does not read: {'; '.join(unread_keys)}")

    def _unread(self):
        for key, kind in self._known.items():
            says_nothing = self._told[key] is None or self._told[key] is False
            if key in self._left or says_nothing or isinstance(kind, Unread | Prose | Always | Figure | Opinion):
                continue
            if isinstance(kind, Refused):
                raise Unsayable(kind.reason)
            if isinstance(kind, Block):
                yield from self._meanings[key]._unread()
            elif key not in self._read:
                yield f"{self._place}{key}: {self._told[key]!r}"
