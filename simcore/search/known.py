"""Answers on layouts that this process has met: a later search, or another question about them, takes them from here.

[Note: what makes two layouts equal]
An answer depends on the scenario, on the files that it names, and on nothing else; so does whether a framework accepts
it, which is asked only of layouts that were not met. The key has all keys of the scenario but its name, all fields of
the model's configuration, and the machine's device as an object: a topology is read again when its file, or one that it
names, has changed (`inputs/file_cache.py`), and then has another device. The object is held with the answers, so no
other object can take its place.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Generic, TypeVar

from simcore.frameworks.setup import configuration
from simcore.inputs.scenario import Scenario
from simcore.simulation.simulation import Simulation, legal_simulation, machines_of

__all__ = ["Known"]

Answer = TypeVar("Answer")
_MOST: Final = 1 << 14
"""Answers that are kept of one kind, each of less than a kilobyte; the least recently used go first."""


class Known(Generic[Answer]):
    """Answers of one kind by layout."""

    def __init__(self, answer: Callable[[Simulation], Answer]) -> None:
        """Takes `answer`, which computes the answer on a legal layout."""
        self._answer = answer
        self._kept: OrderedDict[tuple[object, ...], Answer] = OrderedDict()

    def __call__(self, scenario: Scenario) -> Answer:
        """Answer on a scenario's layout. Raises what `legal_simulation` and `answer` raise."""
        key = _key(scenario)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        found = self._kept[key] = self._answer(legal_simulation(scenario))
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return found

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forgets all answers."""
        self._kept.clear()


class _Same:
    """An object that equals itself alone, and is held."""

    def __init__(self, held: object) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def _key(scenario: Scenario) -> tuple[object, ...]:
    """See [Note: what makes two layouts equal]; of the scenario and the configuration their digest."""
    keys = scenario.model_dump_json(exclude={"name", "search", "sweep"})
    fields = json.dumps(configuration(scenario), sort_keys=True, default=str)
    return blake2b(f"{keys}\n{fields}".encode(), digest_size=32).digest(), _Same(machines_of(scenario).device)
